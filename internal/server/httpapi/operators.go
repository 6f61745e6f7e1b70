package httpapi

import (
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/select-service/select-service/internal/selection/rankstate"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/internal/server/doctor"
	"github.com/select-service/select-service/internal/server/ranks"
	"github.com/select-service/select-service/internal/server/replicastatus"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/reservations"
)

// Operators has what the routes for operators show; where a part is nil, its route does not exist.
type Operators struct {
	Ranks    *ranks.View
	History  *ranks.History
	Prefixes *ranks.Prefixes
	Doctor   *doctor.Doctor
	Replicas *replicastatus.Reader
	// Prompts reads the prompts of /tokenize, which is there without it: nil is that no tokenizer is
	// configured.
	Prompts PromptReader
}

type operatorRoutes struct {
	Operators
	d dialect
}

func (o operatorRoutes) addTo(r router) {
	a := r.api
	add := func(there bool, path string, h endpoint) {
		if !there {
			h = anyScope(a.serve(routeNotFound))
		}
		r.get(access.Read, path, h)
	}
	add(o.Ranks != nil, "/fleet", a.narrowed(o.ranks))
	add(o.History != nil, "/history", a.narrowed(o.history))
	add(o.Prefixes != nil, "/index/prefixes", a.gathered(o.prefixes))
	add(o.Doctor != nil, "/doctor", a.gathered(o.doctor))
	add(o.Replicas != nil, "/replicas", a.gathered(o.replicas))
	r.post(access.Read, "/tokenize", withBody(a, newTokenizeBody(o.d), o.tokenize))
}

// narrowed returns an endpoint whose query may have a filter, which is narrowed to the caller's
// scope.
func (a api) narrowed(use func(c request, f catalog.ScopeFilter, out []byte) ([]byte, error)) endpoint {
	return anyScope(a.list(func(c request, out []byte) (int, []byte, error) {
		f, err := filterOf(c.Request)
		if err == nil {
			f, err = c.who.Narrow(f)
		}
		if err == nil {
			out, err = use(c, f, out)
		}
		return http.StatusOK, out, err
	}))
}

// gathered is narrowed for what takes long before the answer is made, because it asks others or waits its turn:
// gather does that, and returns what appends the answer.
func (a api) gathered(gather func(c request, f catalog.ScopeFilter) (write func(out []byte) []byte, err error)) endpoint {
	return anyScope(a.serveList(func(c request) (answerFunc, error) {
		f, err := filterOf(c.Request)
		if err == nil {
			f, err = c.who.Narrow(f)
		}
		if err != nil {
			return nil, err
		}
		write, err := gather(c, f)
		if err != nil {
			return nil, err
		}
		return func(_ request, out []byte) (int, []byte, error) { return http.StatusOK, write(out), nil }, nil
	}))
}

// queryValue returns a value of the query, nil if it is not there.
func queryValue(r *http.Request, name string) (value *string, err error) {
	err = readQuery(r, func(key string) **string {
		if key == name {
			return &value
		}
		return nil
	})
	return value, err
}

// queryUint returns a number of the query from least to most; absent is its value if it is not
// there.
func queryUint(r *http.Request, name string, least, most, absent uint64) (uint64, error) {
	text, err := queryValue(r, name)
	if err != nil || text == nil {
		return absent, err
	}
	n, err := strconv.ParseUint(*text, 10, 64)
	if err != nil || n < least || n > most {
		return 0, badRequest(queryPrefix + name + ": expected an integer from " + strconv.FormatUint(least, 10) + " to " + strconv.FormatUint(most, 10))
	}
	return n, nil
}

// queryBool returns a truth value of the query; absent is its value if it is not there.
func queryBool(r *http.Request, name string, absent bool) (bool, error) {
	text, err := queryValue(r, name)
	switch {
	case err != nil || text == nil:
		return absent, err
	case *text == "true", *text == "false":
		return *text == "true", nil
	}
	return false, badRequest(queryPrefix + name + ": expected true or false")
}

func (o operatorRoutes) ranks(c request, f catalog.ScopeFilter, out []byte) ([]byte, error) {
	since, err := queryValue(c.Request, "since")
	if err != nil {
		return nil, err
	}
	if since == nil {
		since = new(string)
	}
	o.Ranks.Since(*since, f, func(p *ranks.Page) { out = o.d.appendRanks(out, p, c.who) })
	return out, nil
}

func (d dialect) appendRanks(out []byte, p *ranks.Page, who *access.Caller) []byte {
	const others = 4 << 10 // bytes of other members
	size := p.Size()
	out = append(slices.Grow(out, size+size/64+others), '{') // a row has more than 64 bytes, and a comma
	out = appendStringField(out, "version", p.Version)
	out = appendBoolField(out, "full", p.Full)
	out = appendTime(out, "time", p.Time)
	out = appendUintField(out, "interval_seconds", uint64(ranks.Interval/time.Second))
	out = append(appendKey(out, "roles"), '[')
	for _, r := range access.Grantable {
		if who.May(r) {
			out = appendString(appendComma(out), r.String())
		}
	}
	out = append(out, ']')
	out = appendTotals(append(appendKey(out, "totals"), '{'), &p.Totals)
	out = append(appendKey(append(out, '}'), "scopes"), '[')
	for s := range p.Scopes {
		out = d.appendSummary(appendComma(out), s)
	}
	out = append(appendKey(append(out, ']'), "rows"), '[')
	for text := range p.Rows {
		out = append(appendComma(out), text...)
	}
	out = append(appendKey(append(out, ']'), "removed"), '[')
	for number, rank := range p.Removed {
		if rank != nil {
			out = appendRank(append(appendComma(out), '{'), *rank)
			out = append(appendUintField(out, "scope", number), '}')
		}
	}
	out = append(appendKey(append(out, ']'), "removed_scopes"), '[')
	for number, rank := range p.Removed {
		if rank == nil {
			out = appendUint(appendComma(out), number)
		}
	}
	out = append(out, ']')
	return append(appendBoolField(out, "truncated", p.Truncated), '}')
}

// appendComma appends the comma before an element, unless it is the first of its list.
func appendComma(out []byte) []byte {
	if out[len(out)-1] == '[' {
		return out
	}
	return append(out, ',')
}

func appendTime(out []byte, name string, t time.Time) []byte {
	return appendStringField(out, name, timeText(t))
}

// timeText returns a time as answers have it.
func timeText(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// appendTotals appends the members of an open object.
func appendTotals(out []byte, t *ranks.Totals) []byte {
	out = appendUintField(out, "workers", uint64(t.Workers))
	out = appendUintField(out, "ranks", uint64(t.Ranks))
	out = append(appendKey(out, "states"), '{')
	for s, n := range t.States {
		out = appendCount(out, rankstate.State(s).String(), uint64(n))
	}
	out = append(out, '}')
	out = appendUintField(out, "running", t.Running)
	out = appendUintField(out, "waiting", t.Waiting)
	out = appendUintField(out, "queued", t.Queued)
	out = appendUintField(out, "requests", t.Requests)
	out = appendUintField(out, "active_blocks", t.ActiveBlocks)
	out = appendUintField(out, "total_blocks", t.TotalBlocks)
	out = appendUintField(out, "prefill_tokens", t.PrefillTokens)
	out = appendUintField(out, "selections", t.Selections)
	out = appendUintField(out, "refused", t.Refused)
	out = appendUintField(out, "prompt_blocks", t.PromptBlocks)
	return appendUintField(out, "cached_blocks", t.CachedBlocks)
}

// appendCount appends a number unless it is 0.
func appendCount(out []byte, name string, n uint64) []byte {
	if n == 0 {
		return out
	}
	return appendUintField(out, name, n)
}

// appendRate appends a hit rate unless it is not known.
func appendRate(out []byte, r ranks.Rate) []byte {
	if rate, known := r.Get(); known {
		out = appendFloatField(out, "hit_rate", rate)
	}
	return out
}

func (d dialect) appendSummary(out []byte, s *ranks.Summary) []byte {
	out = appendUintField(append(out, '{'), "scope", s.Number)
	out = d.appendScope(out, s.Scope)
	out = appendCount(out, "block_size", uint64(s.BlockSize))
	out = appendTotals(out, &s.Totals)
	out = appendCount(out, "queued_tokens", s.QueuedTokens)
	out = appendRate(out, s.Hits)
	return append(appendUintField(out, "unique_blocks", uint64(s.UniqueBlocks)), '}')
}

// AppendRank appends a rank as a row of /fleet, which is the same in all dialects.
func AppendRank(out []byte, r *ranks.Row, scope uint64) []byte {
	out = appendRank(append(out, '{'), r.Rank)
	out = appendUintField(out, "scope", scope)
	out = appendStringField(out, "source", r.Source)
	out = appendStringField(out, "state", r.State.String())
	if r.Reason != "" {
		out = appendStringField(out, "reason", r.Reason)
	}
	if r.Causes != 0 {
		out = append(appendKey(out, "causes"), '[')
		for c := range r.Causes.All {
			out = append(append(append(appendComma(out), '"'), c.String()...), '"')
		}
		out = append(out, ']')
	}
	out = appendCount(out, "urgency", uint64(r.Urgency()))
	if r.Stream.Known {
		out = appendStringField(out, "stream", r.Stream.State.String())
		out = appendCount(out, "lag", uint64(r.Stream.Lag))
		out = appendCount(out, "lost", r.Stream.Lost)
	}
	out = appendCount(out, "requests", uint64(r.Requests))
	out = appendCount(out, "active_blocks", r.ActiveBlocks)
	out = appendCount(out, "prefill_tokens", r.PrefillTokens)
	out = appendCount(out, "cached_blocks", uint64(r.CachedBlocks))
	out = appendCount(out, "total_blocks", r.TotalBlocks)
	out = appendCount(out, "max_batched_tokens", r.MaxBatchedTokens)
	out = appendRate(out, r.Hits)
	if r.Reported.Known {
		out = appendEngineReport(out, &r.Reported)
	}
	if r.Foreign != (reservations.Foreign{}) {
		out = appendForeign(out, r.Foreign)
	}
	if r.Drained {
		out = append(appendKey(out, "drain"), '{')
		if r.DrainDeadline != 0 {
			out = appendTime(out, "deadline", time.Unix(r.DrainDeadline, 0))
		}
		out = append(out, '}')
	}
	return append(out, '}')
}

func appendEngineReport(out []byte, r *ranks.Reported) []byte {
	out = append(appendKey(out, "reported"), '{')
	out = appendStringField(out, "source", r.Source.String())
	if r.Stale {
		out = appendTime(appendBoolField(out, "stale", true), "last", time.Unix(r.Last, 0))
	}
	for _, x := range [...]struct {
		name string
		n    interface{ Get() (uint64, bool) }
	}{{"running", r.Running}, {"waiting", r.Waiting}, {"kv_blocks_used", r.UsedBlocks}, {"kv_blocks_total", r.TotalBlocks}} {
		if n, known := x.n.Get(); known {
			out = appendUintField(out, x.name, n)
		}
	}
	return append(out, '}')
}

func (o operatorRoutes) history(c request, f catalog.ScopeFilter, out []byte) ([]byte, error) {
	seconds, err := queryUint(c.Request, "seconds", 5, uint64(ranks.Kept/time.Second), uint64(ranks.Kept/time.Second))
	if err != nil {
		return nil, err
	}
	back := time.Duration(seconds) * time.Second
	worker, err := queryValue(c.Request, "worker_id")
	if err != nil {
		return nil, err
	}
	if worker == nil {
		return o.d.appendPast(out, o.History.Scopes(f, back)), nil
	}
	id, err := queryUint(c.Request, "worker_id", 0, math.MaxUint64, 0)
	if err != nil {
		return nil, err
	}
	return o.d.appendPast(out, o.History.Ranks(f, id, back)), nil
}

func (d dialect) appendPast(out []byte, p ranks.Past) []byte {
	out = appendUintField(append(out, '{'), "interval_seconds", uint64(p.Interval/time.Second))
	if p.End.IsZero() {
		out = appendNull(out, "end")
	} else {
		out = appendTime(out, "end", p.End)
	}
	out = appendList(appendKey(out, "series"), p.Series, d.appendSeries)
	return append(appendBoolField(out, "truncated", p.Truncated), '}')
}

func (d dialect) appendSeries(out []byte, s ranks.Series) []byte {
	out = d.appendScope(append(out, '{'), s.Scope)
	if s.Rank != nil {
		out = appendRank(out, *s.Rank)
	}
	for c, values := range s.Columns {
		out = appendList(appendKey(out, ranks.Column(c).String()), values, func(out []byte, v float32) []byte {
			if v != v { // NaN: not known
				return append(out, "null"...)
			}
			return appendFloat(out, float64(v), 32)
		})
	}
	return append(out, '}')
}

// defaultPrefixes is how many prefixes are listed if the query does not say.
const defaultPrefixes = 100

func (o operatorRoutes) prefixes(c request, f catalog.ScopeFilter) (func(out []byte) []byte, error) {
	limit, err := queryUint(c.Request, "limit", 1, ranks.MaxPrefixes, defaultPrefixes)
	if err != nil {
		return nil, err
	}
	sc := catalog.Scope{Model: catalog.DefaultName, Tenant: catalog.DefaultName}
	if f.Model != nil {
		sc.Model = *f.Model
	}
	if f.Tenant != nil {
		sc.Tenant = *f.Tenant
	}
	h := o.Prefixes.Hottest(sc, int(limit))
	return func(out []byte) []byte { return o.d.appendHottest(out, h) }, nil
}

func (d dialect) appendHottest(out []byte, h *ranks.Hottest) []byte {
	out = d.appendScope(append(out, '{'), h.Scope)
	out = appendTime(out, "time", h.Time)
	out = appendCount(out, "block_size", uint64(h.BlockSize))
	out = appendUintField(out, "unique_blocks", uint64(h.UniqueBlocks))
	out = appendUintField(out, "held_blocks", uint64(h.HeldBlocks))
	out = append(appendKey(out, "nodes"), '[')
	for i := range h.Runs {
		out = appendHotRun(appendComma(out), i, &h.Runs[i])
	}
	out = append(out, ']')
	out = appendUintField(out, "walked", uint64(h.Walked))
	return append(appendBoolField(out, "truncated", h.Truncated), '}')
}

func appendHotRun(out []byte, i int, r *ranks.HotRun) []byte {
	out = appendUintField(append(out, '{'), "id", uint64(i))
	if r.Parent < 0 {
		out = appendNull(out, "parent")
	} else {
		out = appendUintField(out, "parent", uint64(r.Parent))
	}
	out = appendUintField(out, "depth", r.Depth)
	out = appendUintField(out, "blocks", r.Blocks)
	out = appendUintField(out, "holders", r.Holders)
	out = appendUintField(out, "held", uint64(r.Blocks)*uint64(r.Holders))
	out = appendUintField(out, "subtree_blocks", r.SubtreeBlocks)
	out = appendUintField(out, "subtree_held", r.SubtreeHeld)
	out = append(appendKey(out, "tiers"), '{')
	for tier, n := range r.Tiers {
		out = appendCount(out, indexer.Tier(tier).String(), uint64(n))
	}
	out = appendList(appendKey(append(out, '}'), "ranks"), r.Ranks, func(out []byte, of catalog.Rank) []byte {
		return append(appendRank(append(out, '{'), of), '}')
	})
	if r.Known {
		out = appendHash(appendKey(out, "block_hash"), r.Local)
	}
	if r.KeysKnown {
		out = appendBoolField(appendStringField(out, "lora_name", r.LoRA), "salted", r.Salted)
	}
	out = appendCount(out, "hottest", uint64(r.Place))
	return append(out, '}')
}
