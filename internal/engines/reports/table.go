// Package reports keeps what engines say of their ranks, and tells the ledger what it means for
// choices: the load beyond the reservations, the load in all, the capacity. It is where the
// sources of package load deliver.
package reports

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/engines/load"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

const (
	// DefaultTTL is how long a report of a source that speaks often is used.
	DefaultTTL = 5 * time.Second
	// applyEvery is how often the ledger is told what has changed.
	applyEvery = 100 * time.Millisecond
	// settleAge is the age from which on an engine must know of a reservation: younger ones may
	// still be on their way to it.
	settleAge = 500 * time.Millisecond
)

// Config has the settings of a Table.
type Config struct {
	// TTL is how long a report is used, at least 2.5 intervals of its source.
	TTL time.Duration
	// StalledAfter is how long a rank with unfinished work may give no sign of life; not positive:
	// no rank is excluded for that it gives none.
	StalledAfter time.Duration
	// Changed is called after the load of some rank went down, or ranks became alive.
	Changed func()
	// Measured is told the prefill rate of a rank in tokens per second, as its engine measures it;
	// nil: nobody is. It is called while the table is locked.
	Measured func(sc catalog.Scope, e catalog.Entry, rate float64)
	// Events returns a number that is another one after each KV event of a rank; nil: there are
	// none.
	Events func(catalog.Rank) uint64
	// FirstToken returns how many seconds the oldest unfinished prefill of a rank should take. It
	// is called under the ledger's lock. Nil: only measured rates are known.
	FirstToken func(*reservations.View, catalog.Entry) float64
	// Now is the clock.
	Now func() time.Time
	Log zerolog.Logger
}

// Table has the latest report of each source of each rank. It implements load.Sink. Its memory is
// bounded by the number of ranks: reports of ranks that no worker has are dropped.
type Table struct {
	config  Config
	catalog *catalog.Catalog
	ledger  *reservations.Ledger
	woken   chan struct{} // there is something for Run to do

	excluded    atomic.Pointer[map[catalog.Scope]Exclusions] // nil: none
	allExcluded atomic.Uint64
	used        atomic.Bool // something has ever been reported

	// mu guards the fields below. The ledger may be called while it is held, not the reverse.
	mu     sync.Mutex
	scopes map[catalog.Scope]*scope
	of     map[uint64]catalog.Scope // by worker id: the scope that has its ranks, or had them last
	unused uint64                   // reports of ranks that were not attached

	loadsOf []reservations.RankEngineLoad // memory of loads, of one call
	freshOf []*heard

	exclusionsChanged bool // since they were published
	becameExcluded    [numStates]uint64
}

// scope has the ranks of a scope that have reported, or whose answers are awaited.
type scope struct {
	name     catalog.Scope
	ranks    map[catalog.Rank]*rank
	workers  map[uint64]int    // how many of ranks a worker has
	snapshot *catalog.Snapshot // by which ranks was last cleaned
	order    []*rank           // ranks in the order of those of snapshot, nil for one that is not in ranks; nil: to be made
	watched  time.Time         // when signs of life were looked at
	reported bool              // there are reports, or the ledger knows of some that were there

	came     []*rank        // ranks with reports of which the ledger has not been told
	known    [numParts]bool // the parts of which all ranks are heard, until allFresh
	allFresh time.Time      // until when all ranks have fresh reports; zero: not all have, or not of the same parts
}

// rank has what the sources of one rank have said, and the signs of its life.
type rank struct {
	by      [load.Sources]heard
	index   int    // in the scope's order
	came    bool   // is in the scope's came
	awaited int    // streamed answers of which no byte has come; see Await
	blocks  uint64 // room for, by the latest report that says it; 0: unknown
	warned  bool   // that the record has another number of blocks
	life    life
	prefill prefill
}

// heard is the latest report of one source.
type heard struct {
	load.Report
	at     time.Time // zero: none
	paused bool      // see load.Sink
	// foreign has the load beyond the reservations that were live when the report came.
	foreign parts
}

// parts are the numbers of a reservations.Foreign, each unless it is unknown.
type parts [numParts]load.Amount

const (
	requests = iota
	waiting
	prefillTokens
	blocks
	numParts
)

// New returns an empty table for the ranks of a catalog and their ledger.
func New(config Config, c *catalog.Catalog, l *reservations.Ledger) *Table {
	return &Table{
		config: config, catalog: c, ledger: l,
		woken:  make(chan struct{}, 1),
		scopes: make(map[catalog.Scope]*scope),
		of:     make(map[uint64]catalog.Scope),
	}
}

// Report implements load.Sink.
func (t *Table) Report(of catalog.Rank, report load.Report, at time.Time) {
	snap, e, ok := t.find(of)
	var booked reservations.Settled
	if ok {
		booked, ok = t.ledger.Settled(snap.Scope, e.Slot, of, settleAge)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !ok {
		t.unused++
		return
	}
	s, r := t.rank(snap.Scope, of)
	s.reported = true
	if !r.came {
		r.came = true
		s.came = append(s.came, r)
	}
	changed := report.Changed
	report.Changed = false
	if was := &r.by[report.Source]; changed || was.at.IsZero() || was.paused || was.Report != report {
		r.life.last, r.life.signed = at, true
	}
	if r.prefill.add(&report) && t.config.Measured != nil {
		if rate := r.prefill.rate(); rate > 0 {
			t.config.Measured(snap.Scope, e, rate)
		}
	}
	r.by[report.Source] = heard{Report: report, at: at, foreign: foreign(&report, &booked, snap.BlockSize)}
	if tokens, known := report.KVTokensTotal.Get(); known {
		r.blocks = tokens / uint64(snap.BlockSize)
		t.compareCapacity(snap.Scope, e, r)
	}
}

// rank returns what is kept of a rank and of its scope. It needs t.mu.
func (t *Table) rank(sc catalog.Scope, of catalog.Rank) (*scope, *rank) {
	t.of[of.Worker] = sc
	s := t.scopes[sc]
	if s == nil {
		s = &scope{name: sc, ranks: make(map[catalog.Rank]*rank), workers: make(map[uint64]int)}
		t.scopes[sc] = s
		t.used.Store(true)
		t.wake()
	}
	r := s.ranks[of]
	if r == nil {
		r = new(rank)
		s.ranks[of], s.order = r, nil
		s.workers[of.Worker]++
	}
	return s, r
}

// Pause implements load.Sink.
func (t *Table) Pause(of catalog.Rank, source load.Source) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.scopes[t.of[of.Worker]]; s != nil && s.ranks[of] != nil {
		s.ranks[of].by[source].paused = true
	}
}

// Remove implements load.Sink.
func (t *Table) Remove(of catalog.Rank, source load.Source) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.scopes[t.of[of.Worker]]
	if s == nil || s.ranks[of] == nil {
		return
	}
	r := s.ranks[of]
	r.by[source], s.allFresh = heard{}, time.Time{}
	if r.latest() == nil && r.awaited == 0 {
		t.drop(s, of)
	}
}

// drop forgets a rank. It needs t.mu.
func (t *Table) drop(s *scope, of catalog.Rank) {
	t.exclusionsChanged = t.exclusionsChanged || s.ranks[of].life.excluded != nil
	delete(s.ranks, of)
	s.order = nil
	if s.workers[of.Worker]--; s.workers[of.Worker] == 0 {
		t.dropWorker(s, of.Worker)
	}
}

// dropWorker forgets a worker of which the scope has no ranks any more. It needs t.mu.
func (t *Table) dropWorker(s *scope, id uint64) {
	delete(s.workers, id)
	if t.of[id] == s.name {
		delete(t.of, id)
	}
}

// ordered returns order.
func (s *scope) ordered() []*rank {
	if s.order == nil {
		s.order = make([]*rank, s.snapshot.NumRanks)
		for i, e := range s.snapshot.Ranks() {
			if r := s.ranks[e.Rank]; r != nil {
				s.order[i], r.index = r, i
			}
		}
	}
	return s.order
}

// find returns the schedulable rank with its scope.
func (t *Table) find(of catalog.Rank) (*catalog.Snapshot, catalog.Entry, bool) {
	t.mu.Lock()
	sc, known := t.of[of.Worker]
	t.mu.Unlock()
	if known {
		if snap := t.catalog.Snapshot(sc); snap != nil {
			if e, ok := snap.Entry(of); ok {
				return snap, e, true
			}
		}
	}
	for _, snap := range t.catalog.Snapshots() {
		if e, ok := snap.Entry(of); ok {
			return snap, e, true
		}
	}
	return nil, catalog.Entry{}, false
}

func (t *Table) wake() {
	select {
	case t.woken <- struct{}{}:
	default:
	}
}

// compareCapacity warns, once, if a worker's record has another number of blocks than its engine.
func (t *Table) compareCapacity(sc catalog.Scope, e catalog.Entry, r *rank) {
	recorded := e.Worker.TotalKVBlocks
	if recorded == nil || r.warned || !catalog.CapacityDiffers(*recorded, r.blocks) {
		return
	}
	r.warned = true
	t.config.Log.Warn().Str("model", catalog.Clip(sc.Model)).Str("tenant", catalog.Clip(sc.Tenant)).
		Uint64("worker_id", e.Rank.Worker).Uint32("dp_rank", e.Rank.DP).
		Uint64("total_kv_blocks", *recorded).Uint64("reported", r.blocks).
		Msg("engine has another number of KV blocks than its worker's record")
}

// foreign returns what the engine has beyond the bookings that it must know of.
func foreign(r *load.Report, booked *reservations.Settled, blockSize uint32) (f parts) {
	_, running := r.Running.Get()
	n, waits := r.Waiting.Get()
	if running || waits {
		f[requests] = beyond(r.Running.Or(0)+n, uint64(booked.Requests))
	}
	if waits {
		f[waiting] = beyond(n, uint64(booked.Prefills))
	}
	if tokens, known := r.WaitingUncachedTokens.Get(); known {
		f[prefillTokens] = beyond(tokens, booked.PrefillTokens)
	}
	if tokens, known := r.KVTokensUsed.Get(); known {
		f[blocks] = beyond(inBlocks(tokens, blockSize), booked.Blocks)
	}
	return f
}

func beyond(all, booked uint64) load.Amount { return load.Known(all - min(all, booked)) }

// inBlocks returns the blocks that tokens fill, the last one perhaps in part.
func inBlocks(tokens uint64, blockSize uint32) uint64 {
	size := uint64(blockSize)
	return (tokens + size - 1) / size
}

// ttl returns how long a report is used.
func (t *Table) ttl(r *load.Report) time.Duration { return max(t.config.TTL, quiet(r.Interval)) }

// quiet returns how long a source with the given interval may be quiet before something is wrong.
func quiet(interval time.Duration) time.Duration { return interval * 5 / 2 }

// fresh returns the report that is used at a time, of the first source that has one that is young
// enough; nil: none.
func (t *Table) fresh(r *rank, now time.Time) *heard {
	for i := range r.by {
		if h := &r.by[i]; !h.at.IsZero() && now.Sub(h.at) < t.ttl(&h.Report) {
			return h
		}
	}
	return nil
}

// latest returns the report that came last, nil if there is none.
func (r *rank) latest() (last *heard) {
	for i := range r.by {
		if h := &r.by[i]; !h.at.IsZero() && (last == nil || h.at.After(last.at)) {
			last = h
		}
	}
	return last
}

// Status is the report of a rank that is used or, if none is fresh, the one that came last.
type Status struct {
	load.Report
	Age   time.Duration
	Stale bool // it is not used any more
	State State
}

// Status returns the status of a rank; ok is false if no source of it has reported.
func (t *Table) Status(sc catalog.Scope, of catalog.Rank) (st Status, ok bool) {
	now := t.config.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.scopes[sc]
	if s == nil || s.ranks[of] == nil || s.ranks[of].latest() == nil {
		return st, false
	}
	h := t.fresh(s.ranks[of], now)
	if st.Stale = h == nil; st.Stale {
		h = s.ranks[of].latest()
	}
	st.State = s.ranks[of].state()
	st.Report, st.Age = h.Report, max(0, now.Sub(h.at))
	return st, true
}

// Counts are the numbers of ranks and events of a Table.
type Counts struct {
	Fresh, Stale int               // ranks that have reported
	Excluded     [numStates]int    // ranks that are not alive, by state
	Became       [numStates]uint64 // how often ranks became so
	AllExcluded  uint64            // see NoteAllExcluded
	Unused       uint64            // reports for ranks that were not schedulable
}

// Counts returns the counts.
func (t *Table) Counts() (n Counts) {
	now := t.config.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.scopes {
		for _, r := range s.ranks {
			switch {
			case t.fresh(r, now) != nil:
				n.Fresh++
			case r.latest() != nil:
				n.Stale++
			}
			n.Excluded[r.state()]++
		}
	}
	n.Excluded[Alive] = 0
	n.Became, n.AllExcluded, n.Unused = t.becameExcluded, t.allExcluded.Load(), t.unused
	return n
}

// Run tells the ledger what the reports say until ctx ends. It does nothing until the first report
// comes.
func (t *Table) Run(ctx context.Context) error {
	due := time.NewTicker(applyEvery)
	due.Stop()
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.woken:
			due.Reset(applyEvery)
		case <-due.C:
			if !t.apply() {
				due.Stop()
			}
		}
	}
}
