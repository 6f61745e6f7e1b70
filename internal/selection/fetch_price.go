package selection

import (
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/select-service/select-service/internal/engines/reports"
	"github.com/select-service/select-service/internal/selection/counts"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
	"github.com/select-service/select-service/pkg/selector/ttft"
)

// PricedFetch is what the engine of a candidate is told to fetch with selector.FetchPriced, or why it is not.
type PricedFetch struct {
	Takes  bool         // the engine takes hints; otherwise there is nothing more to tell
	Source catalog.Rank // none with NoHintSource
	Tokens uint64       // that it would fetch in place of computing them
	// Time and Saves are the predicted seconds of the fetch, and by how much it makes the first token sooner. Both are 0 while the
	// link is tried.
	Time, Saves float64
	Result      counts.Hint
}

// fetchOffer is a PricedFetch with what is needed to carry it out.
type fetchOffer struct {
	PricedFetch
	link     link
	target   catalog.Rank
	slot     uint32 // of the source
	blocks   int    // that the source has
	endpoint string
	peer     bool
	tries    bool    // nothing is known of the link, or nothing recent
	rest     float64 // predicted seconds to the first token, without the time of the fetch
	// hidden: nothing is learned from the first token. It is reported late, or another request has perhaps fetched the same before.
	hidden bool
}

func (f *fetchOffer) given() bool { return f.Takes && f.Result == counts.HintGiven }

// pricesFetches reports whether the choice weighs fetches against computing. Where the policy predicts no times it cannot.
func (c *choice) pricesFetches() bool {
	return c.api.config.Fetch == selector.FetchPriced && c.Hint != NoHint && (c.reserve || c.ExplainOnly) && c.canFetch() && c.predictor() != nil
}

// priceFetches finds what each of the ranks, which are the candidates, would fetch, and adds it to the decision.
func (c *choice) priceFetches(ranks []catalog.Entry, v *reservations.View) {
	sources := c.fetchSources(v, &c.decision.Model.Parameters)
	c.fetched = c.fetched[:0]
	for i := range ranks {
		c.fetched = append(c.fetched, selector.Fetch{Unshared: c.fetchLoad(ranks[i].Slot).by > 0})
	}
	c.decision.Fetches = c.fetched
	links := &c.api.fetches // locked once, not for each rank and source
	links.mu.Lock()
	defer links.mu.Unlock()
	for i := range ranks {
		x := c.priceFetch(&ranks[i], i, sources)
		c.fetches = append(c.fetches, x)
		if x.given() && !x.tries { // a try of a link changes no choice
			c.fetched[i].Tokens, c.fetched[i].Time = x.Tokens, x.Time
		}
	}
}

// fetchSource is a rank that other engines can fetch the prompt from, unless it is unfit: stalled or silent.
type fetchSource struct {
	catalog.Entry
	linked
	kind   string // of the engines that ask it by its control endpoint; "": none do
	peer   bool   // sidecars ask it
	blocks int
	wait   float64 // seconds until it has done what it has to
	unfit  bool
}

// alike reports whether the same targets can fetch from two sources.
func (s *fetchSource) alike(o *fetchSource) bool {
	return s.linked == o.linked && s.kind == o.kind && s.peer == o.peer && s.unfit == o.unfit
}

// before reports whether one source is better than another that is alike.
func (s *fetchSource) before(o *fetchSource) bool {
	return s.blocks > o.blocks || s.blocks == o.blocks && s.wait < o.wait
}

// maxFetchSources bounds the sources of one choice.
const maxFetchSources = 64

// fetchSources lists the best two sources, of different workers, of those that are alike. It needs the loads of the choice.
func (c *choice) fetchSources(v *reservations.View, times *ttft.Parameters) (sources []fetchSource) {
	l := c.scope.rules.Policies.Learner
	silent := c.api.reports.Excluded(c.Scope)
	ranks := c.scope.snapshot.Ranks()
	for i := range ranks {
		e := &ranks[i]
		blocks := min(c.prompt.fetchable(e.Slot), MaxFetchHashes)
		if blocks == 0 || e.Worker.OnlyEncodes() || !v.Known(e.Slot, e.Rank) {
			continue
		}
		s := fetchSource{Entry: *e, linked: linkedOf(e.Worker), peer: peerEndpoint(e.Worker) != "", blocks: blocks}
		if controlEndpoint(e) != "" {
			s.kind = hintType(e.Worker)
		}
		if s.kind == "" && !s.peer {
			continue
		}
		q := QueueOf(v, *e, l)
		wait, stall := times.Wait(&q)
		s.wait = wait + c.fetchLoad(e.Slot).from
		s.unfit = stall > 1 || silent.State(e.Rank) != reports.Alive
		sources = addSource(sources, s)
	}
	return sources
}

// addSource adds a source to the list, if it is one of the best two that are alike.
func addSource(list []fetchSource, s fetchSource) []fetchSource {
	worst, of := -1, 0
	for i := range list {
		o := &list[i]
		if !o.alike(&s) {
			continue
		}
		if o.Rank.Worker == s.Rank.Worker {
			if s.before(o) {
				*o = s
			}
			return list
		}
		if of++; worst < 0 || list[worst].before(o) {
			worst = i
		}
	}
	switch {
	case of < 2 && len(list) < maxFetchSources:
		list = append(list, s)
	case of == 2 && s.before(&list[worst]):
		list[worst] = s
	}
	return list
}

// priceFetch returns what candidate i, the rank e, would fetch. It needs the lock of the links.
func (c *choice) priceFetch(e *catalog.Entry, i int, sources []fetchSource) fetchOffer {
	endpointOf, peer := c.Hint.sources(e.Worker)
	if endpointOf == nil || c.frontendPicks(e) {
		return fetchOffer{}
	}
	best := fetchOffer{PricedFetch: PricedFetch{Takes: true, Result: counts.NoHintSource}}
	d, of := &c.decision, linkedOf(e.Worker)
	weights := c.predictor().Own
	all := d.Predict(weights, i, &c.queues[i]).Prefill
	u := d.ToCompute(weights, i)
	for n := range sources {
		s := &sources[n]
		at, left := c.offers(s, e, endpointOf)
		if at == "" || left >= u || !s.with(of) {
			continue
		}
		x := fetchOffer{
			PricedFetch: PricedFetch{Takes: true, Source: s.Rank, Tokens: u - left}, link: link{c.scope.snapshot.Scope, s.linked, of},
			target: e.Rank, slot: s.Slot, blocks: s.blocks, endpoint: at, peer: peer, hidden: c.queues[i].Late || c.fetched[i].Unshared,
		}
		rest := d.Model.Cost(float64(left), float64(d.Prompt.Tokens), &c.queues[i], d.Model.Crowding)
		x.rest = rest.Wait + rest.Prefill
		x.price(&c.api.fetches, all-rest.Prefill, s, d.Model.Learned)
		if x.better(&best) {
			best = x
		}
	}
	return best
}

// offers returns by which name a source is asked for what it has more of the prompt than the rank e, "" if e cannot ask it, and how
// many tokens are left to compute then.
func (c *choice) offers(s *fetchSource, e *catalog.Entry, endpointOf func(*catalog.Entry) string) (at string, left uint64) {
	if s.blocks <= c.prompt.fetchable(e.Slot) || s.Rank == e.Rank {
		return "", 0
	}
	size := c.prompt.size
	return endpointOf(&s.Entry), max(1, size.Tokens-min(size.Tokens, uint64(s.blocks)*uint64(size.BlockSize)))
}

// leastPrefill returns a function that says how many seconds a rank takes at least, once it has its turn, for the prompt, of which
// it would have to compute u tokens: it computes them, or fetches over a link that is known. How busy the source will be then is not
// known.
func (c *choice) leastPrefill(l *ttft.Learner) func(e *catalog.Entry, u uint64, speed float64) float64 {
	m, size := l.Model(), c.prompt.size
	computing := func(u uint64, speed float64) float64 { return speed * m.Prefill(float64(u), float64(size.Tokens)) }
	var sources []fetchSource
	if c.pricesFetches() && m.Learned && !m.Fallback {
		c.api.ledger.Look(c.Scope, nil, func(v *reservations.View) {
			c.loads = c.api.fetches.loads(c.scope.snapshot.Scope, v, c.loads)
			sources = c.fetchSources(v, &m.Parameters)
		})
	}
	return func(e *catalog.Entry, u uint64, speed float64) float64 {
		least := computing(u, speed)
		endpointOf, _ := c.Hint.sources(e.Worker)
		if len(sources) == 0 || endpointOf == nil || c.frontendPicks(e) {
			return least
		}
		of, links := linkedOf(e.Worker), &c.api.fetches
		links.mu.Lock()
		defer links.mu.Unlock()
		for i := range sources {
			s := &sources[i]
			at, left := c.offers(s, e, endpointOf)
			if at == "" || left >= u || s.unfit || !s.with(of) {
				continue
			}
			if took, state := links.price(link{c.scope.snapshot.Scope, s.linked, of}, u-left); state == linkKnown || state == linkOld {
				least = min(least, took+computing(left, speed))
			}
		}
		return least
	}
}

// price decides whether the candidate fetches from a source, which saves it so many seconds of computing. It needs of.mu.
func (f *fetchOffer) price(of *fetches, computing float64, s *fetchSource, learned bool) {
	took, state := of.price(f.link, f.Tokens)
	switch {
	case s.unfit:
		f.Result = counts.HintSourceStalled
		return
	case !learned || state == linkTried || state == linkUnknown && f.hidden:
		f.Result = counts.HintLearning
		return
	case state == linkKnown || state == linkOld && (took < computing || f.hidden):
		f.Time, f.Saves = took, computing-took
	default:
		f.tries = true
	}
	switch saves := computing - f.Time; {
	case saves <= 0:
		f.Result = counts.HintDearer
	case s.wait > saves:
		f.Result = counts.HintSourceBusy
	default:
		f.Result = counts.HintGiven
	}
}

// better reports whether a fetch is better than another: it saves more, or a link is tried, or it says more of why there is none.
func (f *fetchOffer) better(o *fetchOffer) bool {
	rank := func(f *fetchOffer) int {
		return slices.Index([]counts.Hint{
			counts.NoHintSource, counts.HintSourceStalled, counts.HintLearning, counts.HintDearer, counts.HintSourceBusy, counts.HintGiven,
		}, f.Result)
	}
	if a, b := rank(f), rank(o); a != b {
		return a > b
	}
	return f.Saves > o.Saves || f.Saves == o.Saves && f.tries && o.tries && f.Tokens > o.Tokens
}

// findPricedFetch is findFetch where the choice has weighed fetches.
func (a *attempt) findPricedFetch(c *choice) *Fetch {
	x := c.fetch
	if x == nil || !x.Takes {
		return nil
	}
	if x.given() && a.reserve {
		f := &Fetch{Source: x.Source, Endpoint: x.endpoint, Peer: x.peer}
		if a.listNames(f, c, x.slot, x.blocks) {
			return f
		}
		x.Result = counts.HintSourceLost
		a.fetching.end(false)
		a.computeInstead(c)
	}
	a.api.selections.Of(a.Scope.Model).Hinted(x.Result)
	return nil
}

// computeInstead corrects what was booked for the rank of c, which is not told to fetch after all: it computes all that it has not.
// So does what is charged for it, but for a pair, see chargePair. It must be called outside all locks.
func (a *attempt) computeInstead(c *choice) {
	f := a.fetching
	c.uncached = f.uncached
	a.api.ledger.SetUncached(f.id, f.record, f.uncached, func() {
		if paid := f.record.charge; paid != nil { // nil for a pair
			a.chargeAfter(f.record, paid.before)
		}
	})
}

// fetches has what is learned of links by fetches, and the ranks of those that go on. The zero value is empty.
type fetches struct {
	transfers
	ranks  map[catalog.Scope]map[catalog.Rank]fetchLoad // guarded by mu
	going  map[*fetching]struct{}                       // that go on; guarded by mu
	active atomic.Int64                                 // their number
}

// fetchLoad has the fetches of a rank that go on: how many in all, those from it in seconds, and the number of those by it.
type fetchLoad struct {
	n, by int
	from  float64
}

// linkState says what is known of how long fetches take over a link.
type linkState uint8

const (
	linkUnknown linkState = iota // nothing is known, nor does any request try it
	linkTried                    // a request tries it
	linkKnown
	linkOld // as linkKnown, from long ago
)

// retryLink is how long after the latest fetch over a link it is tried once more, although that seems not worth it: it may have
// become faster.
const retryLink = 10 * time.Minute

// price returns how long a fetch of some tokens is expected to take over a link, in seconds, if that is known. It needs f.mu.
func (f *fetches) price(l link, tokens uint64) (seconds float64, state linkState) {
	x := f.byLink[l]
	switch {
	case x == nil && f.full():
		return 0, linkTried // nothing would be learned
	case x == nil:
		return 0, linkUnknown
	case x.samples < minTransfers && x.trying > 0:
		return 0, linkTried
	case x.samples < minTransfers:
		return 0, linkUnknown
	case x.trying == 0 && time.Since(x.last) > retryLink:
		return x.seconds(tokens), linkOld
	}
	return x.seconds(tokens), linkKnown
}

// loads returns the fetches of a scope that go on, by the slots of their ranks, in the memory of into; slots that are not in it have
// none.
func (f *fetches) loads(sc catalog.Scope, v *reservations.View, into []fetchLoad) []fetchLoad {
	into = into[:0]
	if f.active.Load() == 0 {
		return into
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for r, x := range f.ranks[sc] {
		slot, ok := v.Slot(r)
		if !ok {
			continue
		}
		for int(slot) >= len(into) {
			into = append(into, fetchLoad{})
		}
		into[slot] = x
	}
	return into
}

// fetchLoad returns the fetches of a rank that went on when the ranks were scored.
func (c *choice) fetchLoad(slot uint32) fetchLoad {
	if int(slot) < len(c.loads) {
		return c.loads[slot]
	}
	return fetchLoad{}
}

// begin notes that a fetch goes on. It needs f.mu.
func (f *fetches) begin(x *fetching) {
	if f.going == nil {
		f.going = make(map[*fetching]struct{})
	}
	f.going[x] = struct{}{}
	f.count(&x.fetch, 1)
}

// count adds a fetch that begins (1) or has ended (-1) to what its ranks do. It needs f.mu.
func (f *fetches) count(x *fetchOffer, n int) {
	f.active.Add(int64(n))
	f.add(x.link.scope, x.Source, fetchLoad{n: n, from: float64(n) * x.Time})
	f.add(x.link.scope, x.target, fetchLoad{n: n, by: n})
}

func (f *fetches) add(sc catalog.Scope, r catalog.Rank, d fetchLoad) {
	of := f.ranks[sc]
	x := of[r]
	if x.n += d.n; x.n == 0 {
		if delete(of, r); len(of) == 0 {
			delete(f.ranks, sc)
		}
		return
	}
	x.by, x.from = x.by+d.by, max(0, x.from+d.from) // rounded
	if of == nil {
		if f.ranks == nil {
			f.ranks = make(map[catalog.Scope]map[catalog.Rank]fetchLoad)
		}
		of = make(map[catalog.Rank]fetchLoad)
		f.ranks[sc] = of
	}
	of[r] = x
}

// fetching is a fetch that a reservation's engine was told of, until its first token. It belongs to the record of the reservation.
type fetching struct {
	all   *fetches
	fetch fetchOffer
	since time.Time
	// The reservation of the rank that fetches, and its record.
	id     string
	record *idempotencyRecord
	// uncached is what the rank computes if it does not fetch, in tokens.
	uncached     uint64
	registration uint64 // of the source, see reservations.View.Registration
	ended        atomic.Bool
}

// startFetch charges the source with the fetch of the choice, for a reservation that is about to be booked, with its record; nil:
// there is none. It is called under the lock of the scope's ledger, so that no other choice tries the link too.
func (c *choice) startFetch(id string, record *idempotencyRecord, v *reservations.View) *fetching {
	if c.fetch == nil || !c.fetch.given() {
		return nil
	}
	f := &fetching{
		all: &c.api.fetches, fetch: *c.fetch, since: time.Now(), id: id, record: record,
		uncached: c.uncached, registration: v.Registration(c.fetch.slot),
	}
	if !f.fetch.tries { // else it was booked so
		f.uncached += f.fetch.Tokens
	}
	record.fetching = f
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	f.all.begin(f)
	if f.fetch.tries {
		x := f.all.entry(f.fetch.link)
		if f.fetch.tries = x != nil; f.fetch.tries {
			x.trying++
		}
	}
	return f
}

// end notes that the fetch has ended. If a caller has reported the first token, it learns what the fetch has taken: the time until
// then, without that of waiting and computing. f may be nil, and end may be called again.
func (f *fetching) end(reported bool) {
	if f == nil || f.ended.Swap(true) {
		return
	}
	x := &f.fetch
	f.all.mu.Lock()
	delete(f.all.going, f)
	f.all.count(x, -1)
	if x.tries {
		f.all.byLink[x.link].trying--
	}
	f.all.mu.Unlock()
	if reported && !x.hidden {
		took := time.Since(f.since) - time.Duration(x.rest*float64(time.Second))
		f.all.note(x.link, x.Tokens, max(0, took))
	}
}

// endLost ends the fetches whose source has left, or gives no sign of life, since their engines were told of it. What was booked for
// these is corrected: they compute all that they have not. Those who pay for the requests pay what was predicted when they
// were booked. It must be called outside all locks, about every second.
func (f *fetches) endLost(l *reservations.Ledger, r *reports.Reports) {
	if f.active.Load() == 0 {
		return
	}
	f.mu.Lock()
	going := slices.Collect(maps.Keys(f.going))
	f.mu.Unlock()
	for _, x := range going {
		if x.serves(l, r) {
			continue
		}
		x.end(false)
		l.SetUncached(x.id, x.record, x.uncached, nil)
	}
}

// serves reports whether the source is the engine that it was, as far as is known, and gives signs of life. It looks into the ledger
// in any case: a reservation that is being booked is booked after that, and can be corrected.
func (f *fetching) serves(l *reservations.Ledger, r *reports.Reports) (same bool) {
	sc, source := f.fetch.link.scope, f.fetch.Source
	l.Look(sc, nil, func(v *reservations.View) {
		slot, ok := v.Slot(source)
		same = ok && v.Registration(slot) == f.registration
	})
	return same && r.Excluded(sc).State(source) != reports.Silent
}
