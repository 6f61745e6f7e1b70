package ranks

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/rankstate"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

const (
	// Interval is how often a View is renewed at most.
	Interval = time.Second
	// early is how much earlier than after an Interval a View may be renewed, for those who ask
	// once in an Interval.
	early = Interval / 10
	// MaxRows bounds the rows of an answer.
	MaxRows = 16384
	// maxRemoved bounds the removed rows and scopes that are remembered.
	maxRemoved = 16384
)

// View shows all ranks. It is renewed when somebody asks or its History takes a point, at most once
// per Interval. It knows in which version each row has changed last, so that who asks
// often gets the changes alone.
type View struct {
	parts  node.Parts
	encode func(out []byte, r *Row, scope uint64) []byte
	now    func() time.Time
	id     string // of this View among those of all processes

	// mu guards the fields below and the rows.
	mu      sync.RWMutex
	renewed time.Time
	version uint64
	scopes  []*scopeRows // by model and tenant
	opened  uint64       // scopes so far
	removed []removal
	// complete is the oldest version since which removed has all removals.
	complete uint64
	used     []int     // scratch: blocks on devices by slot
	carried  []carried // scratch: by row
}

// carried is the load of a rank.
type carried struct {
	reservations.SlotLoad
	foreign     reservations.Foreign
	totalBlocks uint64 // as the engine reports it; 0: not known
	overloaded  bool   // its worker is above a busy threshold
}

// scopeRows are the rows of one scope.
type scopeRows struct {
	scope   catalog.Scope
	number  uint64 // of the scope
	rows    []*versionedRow
	changed uint64 // version of the last change of any row
	summary Summary
	shown   uint64 // version of the last change of summary
	hits    hits   // of the scope as a whole
}

// versionedRow is a row as it was last read, with the version of its last change, its text, and
// where to read it anew.
type versionedRow struct {
	Row
	version uint64
	text    []byte
	hits    hits

	worker   *catalog.Worker
	slot     uint32 // while attached
	attached bool   // the index or the ledger has the rank
}

// removal is a row or, with a nil rank, a scope that is gone.
type removal struct {
	version uint64
	scope   catalog.Scope
	number  uint64
	rank    *catalog.Rank
}

// Totals add up ranks.
type Totals struct {
	Workers, Ranks            int
	States                    [rankstate.NumStates]int // ranks
	Running, Waiting          uint64                   // in engines, by their own word, else reservations
	Queued                    uint64                   // requests that wait for a rank
	Requests                  uint64                   // live reservations
	ActiveBlocks, TotalBlocks uint64
	PrefillTokens             uint64
	// Counts since the start:
	Selections, Refused        uint64
	PromptBlocks, CachedBlocks uint64
}

func (t *Totals) add(o *Totals) {
	t.Workers += o.Workers
	t.Ranks += o.Ranks
	for s, n := range o.States {
		t.States[s] += n
	}
	t.Running += o.Running
	t.Waiting += o.Waiting
	t.Queued += o.Queued
	t.Requests += o.Requests
	t.ActiveBlocks += o.ActiveBlocks
	t.TotalBlocks += o.TotalBlocks
	t.PrefillTokens += o.PrefillTokens
	t.Selections += o.Selections
	t.Refused += o.Refused
	t.PromptBlocks += o.PromptBlocks
	t.CachedBlocks += o.CachedBlocks
}

// Summary is a scope as a whole.
type Summary struct {
	Scope catalog.Scope
	// Number belongs to one scope for as long as it has workers, and then to none.
	Number uint64
	Totals
	BlockSize    uint32 // tokens; 0: no worker is attached
	QueuedTokens uint64 // of the prompts that wait
	UniqueBlocks int    // in the index
	Hits         Rate
}

// New returns a view of a service's parts. encode appends the text of a row, given the number of
// its scope; it is called once for each change.
func New(parts node.Parts, encode func(out []byte, r *Row, scope uint64) []byte, now func() time.Time) *View {
	return &View{parts: parts, encode: encode, now: now, id: strconv.FormatUint(rand.Uint64(), 36)}
}

// Page is what has changed in some scopes since a version. It is valid during the call of Since's
// function.
type Page struct {
	Version string
	// Full: it is not a difference, but all there is.
	Full   bool
	Time   time.Time // when the view was renewed
	Totals Totals    // of all matching scopes
	// Truncated: there are rows beyond MaxRows. A difference has all of its rows.
	Truncated bool

	view  *View
	since uint64
	of    catalog.ScopeFilter
}

// Since renews the view if it is time, and calls use with what has changed since a version, the
// Page.Version of an earlier call; all of it, if the version is not known.
func (v *View) Since(version string, of catalog.ScopeFilter, use func(*Page)) {
	v.mu.RLock()
	due := v.now().Sub(v.renewed) >= Interval-early
	v.mu.RUnlock()
	if due {
		v.mu.Lock()
		v.renewIfDueLocked()
		v.mu.Unlock()
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	p := &Page{view: v, of: of, Time: v.renewed, Version: v.id + "-" + strconv.FormatUint(v.version, 10)}
	p.since, p.Full = v.sinceLocked(version)
	if !p.Full && p.count() > MaxRows {
		p.since, p.Full = 0, true // a difference has no room for a part of it: the rest would be lost
	}
	for _, s := range v.scopes {
		if s.scope.Matches(of.Model, of.Tenant) {
			p.Totals.add(&s.summary.Totals)
		}
	}
	use(p)
}

// sinceLocked returns the number of a version; full: it is not known, or too old.
func (v *View) sinceLocked(version string) (since uint64, full bool) {
	id, number, _ := strings.Cut(version, "-")
	since, err := strconv.ParseUint(number, 10, 64)
	if err != nil || id != v.id || since > v.version || since < v.complete {
		return 0, true
	}
	return since, false
}

// Scopes yields the scopes whose summary has changed.
func (p *Page) Scopes(yield func(*Summary) bool) {
	for _, s := range p.view.scopes {
		if (p.Full || s.shown > p.since) && s.scope.Matches(p.of.Model, p.of.Tenant) && !yield(&s.summary) {
			return
		}
	}
}

// Rows yields the texts of the rows that have changed, by scope, worker and rank, at most MaxRows.
// The texts must not be kept.
func (p *Page) Rows(yield func(text []byte) bool) {
	left := MaxRows
	for r := range p.changed {
		if left == 0 {
			p.Truncated = true
			return
		}
		left--
		if !yield(r.text) {
			return
		}
	}
}

// Size returns the bytes of the texts that have changed, so that they are copied once.
func (p *Page) Size() (bytes int) {
	for r := range p.changed {
		bytes += len(r.text)
	}
	return bytes
}

// count counts the rows that have changed.
func (p *Page) count() (n int) {
	for range p.changed {
		n++
	}
	return n
}

// changed yields the rows that have changed.
func (p *Page) changed(yield func(*versionedRow) bool) {
	for _, s := range p.view.scopes {
		if !p.Full && s.changed <= p.since || !s.scope.Matches(p.of.Model, p.of.Tenant) {
			continue
		}
		for _, r := range s.rows {
			if (p.Full || r.version > p.since) && !yield(r) {
				return
			}
		}
	}
}

// Removed yields the rows, and with a nil rank the scopes, that are gone since the version and have not
// come back.
func (p *Page) Removed(yield func(number uint64, rank *catalog.Rank) bool) {
	if p.Full {
		return
	}
	for i := range p.view.removed {
		r := &p.view.removed[i]
		if r.version > p.since && r.scope.Matches(p.of.Model, p.of.Tenant) && !p.view.has(r) && !yield(r.number, r.rank) {
			return
		}
	}
}

// has reports whether what was removed is there again. The number of a scope never is.
func (v *View) has(r *removal) bool {
	if r.rank == nil {
		return false
	}
	i := slices.IndexFunc(v.scopes, func(s *scopeRows) bool { return s.number == r.number })
	if i < 0 {
		return false
	}
	_, found := slices.BinarySearchFunc(v.scopes[i].rows, *r.rank, func(row *versionedRow, of catalog.Rank) int { return row.Rank.Compare(of) })
	return found
}

// renewIfDueLocked renews the view unless somebody has just done so.
func (v *View) renewIfDueLocked() {
	if v.now().Sub(v.renewed) >= Interval-early {
		v.renewLocked()
	}
}

// renewLocked reads everything anew.
func (v *View) renewLocked() {
	v.renewed = v.now()
	v.version++
	workers := v.parts.Catalog.List(nil, nil)
	old := v.scopes
	v.scopes = make([]*scopeRows, 0, len(old))
	for len(workers) > 0 {
		sc := workers[0].Scope
		n := slices.IndexFunc(workers, func(w *catalog.Worker) bool { return w.Scope != sc })
		if n < 0 {
			n = len(workers)
		}
		for len(old) > 0 && old[0].scope.Compare(sc) < 0 {
			v.dropLocked(old[0])
			old = old[1:]
		}
		var s *scopeRows
		if len(old) > 0 && old[0].scope == sc {
			s, old = old[0], old[1:]
		} else {
			v.opened++
			s = &scopeRows{scope: sc, number: v.opened}
		}
		v.scopes = append(v.scopes, s)
		v.renewScope(s, workers[:n])
		workers = workers[n:]
	}
	for _, s := range old {
		v.dropLocked(s)
	}
}

// dropLocked forgets a scope with its rows.
func (v *View) dropLocked(s *scopeRows) {
	for _, r := range s.rows {
		v.removeLocked(removal{scope: s.scope, number: s.number, rank: new(r.Rank)})
	}
	v.removeLocked(removal{scope: s.scope, number: s.number})
}

// removeLocked remembers that something is gone.
func (v *View) removeLocked(r removal) {
	r.version = v.version
	if len(v.removed) == maxRemoved {
		v.complete = v.removed[maxRemoved/2-1].version
		v.removed = append(v.removed[:0], v.removed[maxRemoved/2:]...)
	}
	v.removed = append(v.removed, r)
}

// renewScope reads the rows of a scope, whose workers are given by id.
func (v *View) renewScope(s *scopeRows, workers []*catalog.Worker) {
	state, snap := v.parts.Scopes.Of(s.scope), v.parts.Catalog.Snapshot(s.scope)
	v.matchRows(s, workers, snap)
	v.readIndex(state)
	v.readLedger(s, snap)
	summary := Summary{Scope: s.scope, Number: s.number, Hits: s.hits.rate}
	summary.Workers = len(workers)
	if snap != nil {
		summary.BlockSize = snap.BlockSize
	}
	excluded := v.parts.Reports.Excluded(s.scope)
	for i, r := range s.rows {
		next := v.readRow(r, &v.carried[i], s.scope, summary.BlockSize)
		next.Verdict = rankstate.Judge(rankstate.Facts{
			Worker: r.worker, DP: r.Rank.DP, Liveness: excluded.State(r.Rank), Overloaded: v.carried[i].overloaded, Stream: next.Stream,
		})
		next.Reason = next.Verdict.Reason(r.worker)
		if r.version == 0 || next != r.Row {
			r.version, s.changed, r.Row = v.version, v.version, next
			r.text = v.encode(r.text[:0], &r.Row, s.number)
		}
		summary.count(&r.Row)
	}
	if state != nil {
		summary.read(state)
	}
	if s.shown == 0 || summary != s.summary {
		s.summary, s.shown = summary, v.version
	}
}

// readRow reads a row anew, but for its verdict.
func (v *View) readRow(r *versionedRow, c *carried, sc catalog.Scope, blockSize uint32) Row {
	next := Row{
		Rank: r.Rank, Requests: c.Requests, ActiveBlocks: c.Blocks, PrefillTokens: c.PrefillTokens, Foreign: c.foreign, Hits: r.hits.rate,
	}
	next.describe(r.worker)
	next.TotalBlocks = cmp.Or(next.TotalBlocks, c.totalBlocks)
	if r.attached && int(r.slot) < len(v.used) {
		next.CachedBlocks = v.used[r.slot]
	}
	if r.attached {
		next.readStream(v.parts.Streams)
	}
	next.readReport(&v.parts, sc, blockSize, v.renewed)
	return next
}

// count adds a row.
func (s *Summary) count(r *Row) {
	s.Ranks++
	s.States[r.State]++
	s.Running += r.Reported.Running.Or(uint64(r.Requests))
	s.Waiting += r.Reported.Waiting.Or(0)
	s.Requests += uint64(r.Requests)
	s.ActiveBlocks += r.ActiveBlocks
	s.TotalBlocks += r.TotalBlocks
	s.PrefillTokens += r.PrefillTokens
}

// read reads what is counted for a scope as a whole.
func (s *Summary) read(state *scopes.State) {
	n, tokens := state.Rules().Queue.Pending()
	s.Queued, s.QueuedTokens = uint64(n), tokens
	s.Selections, s.Refused = state.Traffic.Total()
	s.CachedBlocks, s.PromptBlocks = state.Hits.Total()
	s.UniqueBlocks = state.Space.Stats().Unique
}

// matchRows gives a scope one row for each attached rank of its workers, and for each worker
// without one a row of its first rank. Rows of ranks that stay are kept.
func (v *View) matchRows(s *scopeRows, workers []*catalog.Worker, snap *catalog.Snapshot) {
	i := 0
	rows := s.rows
	copied := false
	take := func(rank catalog.Rank) *versionedRow {
		if !copied && i < len(s.rows) && s.rows[i].Rank == rank {
			i++
			return s.rows[i-1]
		}
		if !copied { // the list of ranks is another one
			rows, copied = slices.Clone(s.rows[:i]), true
		}
		for i < len(s.rows) && s.rows[i].Rank.Compare(rank) < 0 {
			v.removeLocked(removal{scope: s.scope, number: s.number, rank: new(s.rows[i].Rank)})
			i++
		}
		r := &versionedRow{Row: Row{Rank: rank}}
		if i < len(s.rows) && s.rows[i].Rank == rank {
			r = s.rows[i]
			i++
		}
		rows = append(rows, r)
		return r
	}
	for _, w := range workers {
		var known []catalog.Entry
		if snap != nil {
			known = snap.KnownOf(w.ID)
		}
		for _, e := range known {
			r := take(e.Rank)
			if !r.attached || r.slot != e.Slot {
				r.hits = hits{}
			}
			r.worker, r.slot, r.attached = w, e.Slot, true
		}
		if len(known) == 0 {
			r := take(catalog.Rank{Worker: w.ID, DP: w.FirstRank()})
			r.worker, r.attached = w, false
		}
	}
	for _, r := range s.rows[i:] {
		v.removeLocked(removal{scope: s.scope, number: s.number, rank: new(r.Rank)})
		if !copied {
			rows = rows[:i]
		}
	}
	s.rows = rows
}

// readIndex reads how much ranks have cached.
func (v *View) readIndex(state *scopes.State) {
	v.used = v.used[:0]
	if state != nil {
		v.used = state.Space.DeviceBlocks(v.used)
	}
}

// readLedger reads the load of ranks, and which workers are overloaded.
func (v *View) readLedger(s *scopeRows, snap *catalog.Snapshot) {
	v.carried = slices.Grow(v.carried[:0], len(s.rows))[:len(s.rows)]
	clear(v.carried)
	if snap == nil {
		return
	}
	limits := v.parts.Thresholds.Of(s.scope.Model)
	over := make(map[uint64]bool)
	v.parts.Ledger.Look(s.scope, nil, func(l *reservations.View) {
		for i, r := range s.rows {
			if !r.attached || !l.Known(r.slot, r.Rank) {
				continue
			}
			c := &v.carried[i]
			c.SlotLoad = l.Load(r.slot)
			if of := l.Engine(r.slot); of != nil {
				c.foreign, c.totalBlocks = of.Foreign, of.TotalBlocks
			}
		}
		if limits.Any() {
			for w, is := range rankstate.OverloadedWorkers(limits, snap.Ranks(), l) {
				if is {
					over[w.ID] = true
				}
			}
		}
	})
	if len(over) == 0 {
		return
	}
	for i, r := range s.rows {
		v.carried[i].overloaded = over[r.Rank.Worker]
	}
}
