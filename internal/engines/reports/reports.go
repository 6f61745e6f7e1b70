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

// Config has the settings of Reports.
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

// Reports has the latest report of each source of each rank. It implements load.Sink. Its memory is
// bounded by the number of ranks: reports of ranks that no worker has are dropped.
type Reports struct {
	Liveness
	catalog *catalog.Catalog
	ledger  *reservations.Ledger
	woken   chan struct{} // there is something for Run to do

	used atomic.Bool // something has ever been reported

	// mu guards the fields below. The ledger may be called while it is held, not the reverse.
	mu     sync.Mutex
	scopes map[catalog.Scope]*scopeReports
	of     map[uint64]catalog.Scope // by worker id: the scope that has its ranks, or had them last
	unused uint64                   // reports of ranks that were not attached

	loadsOf []reservations.RankEngineLoad // memory of loads, of one call
	freshOf []*lastReport
}

// scopeReports has the ranks of a scope that have reported, or whose answers are awaited.
type scopeReports struct {
	name     catalog.Scope
	ranks    map[catalog.Rank]*rankReport
	workers  map[uint64]int    // how many of ranks a worker has
	snapshot *catalog.Snapshot // by which ranks was last cleaned
	order    []*rankReport     // ranks in the order of those of snapshot, nil for one that is not in ranks; nil: to be made
	watched  time.Time         // when signs of life were looked at
	reported bool              // there are reports, or the ledger knows of some that were there

	came     []*rankReport  // ranks with reports of which the ledger has not been told
	known    [numParts]bool // the parts of which all ranks are heard, until allFresh
	allFresh time.Time      // until when all ranks have fresh reports; zero: not all have, or not of the same parts
}

// rankReport has what the sources of one rank have said, and the signs of its life.
type rankReport struct {
	by      [load.Sources]lastReport
	index   int    // in the scope's order
	came    bool   // is in the scope's came
	awaited int    // streamed answers of which no byte has come; see Await
	blocks  uint64 // room for, by the latest report that says it; 0: unknown
	warned  bool   // that the record has another number of blocks
	life    life
	prefill prefill
}

// lastReport is the latest report of one source.
type lastReport struct {
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
func New(config Config, c *catalog.Catalog, l *reservations.Ledger) *Reports {
	return &Reports{
		Liveness: Liveness{config: config}, catalog: c, ledger: l,
		woken:  make(chan struct{}, 1),
		scopes: make(map[catalog.Scope]*scopeReports),
		of:     make(map[uint64]catalog.Scope),
	}
}

// Report implements load.Sink.
func (rs *Reports) Report(of catalog.Rank, report load.Report, at time.Time) {
	snap, e, ok := rs.find(of)
	var booked reservations.Settled
	if ok {
		booked, ok = rs.ledger.Settled(snap.Scope, e.Slot, of, settleAge)
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if !ok {
		rs.unused++
		return
	}
	s, r := rs.rank(snap.Scope, of)
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
	if r.prefill.add(&report) && rs.config.Measured != nil {
		if rate := r.prefill.rate(); rate > 0 {
			rs.config.Measured(snap.Scope, e, rate)
		}
	}
	r.by[report.Source] = lastReport{Report: report, at: at, foreign: foreign(&report, &booked, snap.BlockSize)}
	if tokens, known := report.KVTokensTotal.Get(); known {
		r.blocks = tokens / uint64(snap.BlockSize)
		rs.compareCapacity(snap.Scope, e, r)
	}
}

// rank returns what is kept of a rank and of its scope. It needs rs.mu.
func (rs *Reports) rank(sc catalog.Scope, of catalog.Rank) (*scopeReports, *rankReport) {
	rs.of[of.Worker] = sc
	s := rs.scopes[sc]
	if s == nil {
		s = &scopeReports{name: sc, ranks: make(map[catalog.Rank]*rankReport), workers: make(map[uint64]int)}
		rs.scopes[sc] = s
		rs.used.Store(true)
		rs.wake()
	}
	r := s.ranks[of]
	if r == nil {
		r = new(rankReport)
		s.ranks[of], s.order = r, nil
		s.workers[of.Worker]++
	}
	return s, r
}

// Pause implements load.Sink.
func (rs *Reports) Pause(of catalog.Rank, source load.Source) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if s := rs.scopes[rs.of[of.Worker]]; s != nil && s.ranks[of] != nil {
		s.ranks[of].by[source].paused = true
	}
}

// Remove implements load.Sink.
func (rs *Reports) Remove(of catalog.Rank, source load.Source) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	s := rs.scopes[rs.of[of.Worker]]
	if s == nil || s.ranks[of] == nil {
		return
	}
	r := s.ranks[of]
	r.by[source], s.allFresh = lastReport{}, time.Time{}
	if r.latest() == nil && r.awaited == 0 {
		rs.drop(s, of)
	}
}

// drop forgets a rank. It needs rs.mu.
func (rs *Reports) drop(s *scopeReports, of catalog.Rank) {
	rs.changed = rs.changed || s.ranks[of].life.excluded != nil
	delete(s.ranks, of)
	s.order = nil
	if s.workers[of.Worker]--; s.workers[of.Worker] == 0 {
		rs.dropWorker(s, of.Worker)
	}
}

// dropWorker forgets a worker of which the scope has no ranks any more. It needs rs.mu.
func (rs *Reports) dropWorker(s *scopeReports, id uint64) {
	delete(s.workers, id)
	if rs.of[id] == s.name {
		delete(rs.of, id)
	}
}

// ordered returns order.
func (s *scopeReports) ordered() []*rankReport {
	if s.order == nil {
		s.order = make([]*rankReport, s.snapshot.NumRanks)
		for i, e := range s.snapshot.Ranks() {
			if r := s.ranks[e.Rank]; r != nil {
				s.order[i], r.index = r, i
			}
		}
	}
	return s.order
}

// find returns the schedulable rank with its scope.
func (rs *Reports) find(of catalog.Rank) (*catalog.Snapshot, catalog.Entry, bool) {
	rs.mu.Lock()
	sc, known := rs.of[of.Worker]
	rs.mu.Unlock()
	if known {
		if snap := rs.catalog.Snapshot(sc); snap != nil {
			if e, ok := snap.Entry(of); ok {
				return snap, e, true
			}
		}
	}
	for _, snap := range rs.catalog.Snapshots() {
		if e, ok := snap.Entry(of); ok {
			return snap, e, true
		}
	}
	return nil, catalog.Entry{}, false
}

func (rs *Reports) wake() {
	select {
	case rs.woken <- struct{}{}:
	default:
	}
}

// compareCapacity warns, once, if a worker's record has another number of blocks than its engine.
func (rs *Reports) compareCapacity(sc catalog.Scope, e catalog.Entry, r *rankReport) {
	recorded := e.Worker.TotalKVBlocks
	if recorded == nil || r.warned || !catalog.CapacityDiffers(*recorded, r.blocks) {
		return
	}
	r.warned = true
	rs.config.Log.Warn().Str("model", catalog.Clip(sc.Model)).Str("tenant", catalog.Clip(sc.Tenant)).
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
func (rs *Reports) ttl(r *load.Report) time.Duration { return max(rs.config.TTL, quiet(r.Interval)) }

// quiet returns how long a source with the given interval may be quiet before something is wrong.
func quiet(interval time.Duration) time.Duration { return interval * 5 / 2 }

// fresh returns the report that is used at a time, of the first source that has one that is young
// enough; nil: none.
func (rs *Reports) fresh(r *rankReport, now time.Time) *lastReport {
	for i := range r.by {
		if h := &r.by[i]; !h.at.IsZero() && now.Sub(h.at) < rs.ttl(&h.Report) {
			return h
		}
	}
	return nil
}

// latest returns the report that came last, nil if there is none.
func (r *rankReport) latest() (last *lastReport) {
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
func (rs *Reports) Status(sc catalog.Scope, of catalog.Rank) (st Status, ok bool) {
	now := rs.config.Now()
	rs.mu.Lock()
	defer rs.mu.Unlock()
	s := rs.scopes[sc]
	if s == nil || s.ranks[of] == nil || s.ranks[of].latest() == nil {
		return st, false
	}
	h := rs.fresh(s.ranks[of], now)
	if st.Stale = h == nil; st.Stale {
		h = s.ranks[of].latest()
	}
	st.State = s.ranks[of].state()
	st.Report, st.Age = h.Report, max(0, now.Sub(h.at))
	return st, true
}

// Counts are the numbers of ranks and events of Reports.
type Counts struct {
	Fresh, Stale int               // ranks that have reported
	Excluded     [numStates]int    // ranks that are not alive, by state
	Became       [numStates]uint64 // how often ranks became so
	AllExcluded  uint64            // see NoteAllExcluded
	Unused       uint64            // reports for ranks that were not schedulable
}

// Counts returns the counts.
func (rs *Reports) Counts() (n Counts) {
	now := rs.config.Now()
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, s := range rs.scopes {
		for _, r := range s.ranks {
			switch {
			case rs.fresh(r, now) != nil:
				n.Fresh++
			case r.latest() != nil:
				n.Stale++
			}
			n.Excluded[r.state()]++
		}
	}
	n.Excluded[Alive] = 0
	n.Became, n.AllExcluded, n.Unused = rs.became, rs.allExcluded.Load(), rs.unused
	return n
}

// Run tells the ledger what the reports say until ctx ends. It does nothing until the first report
// comes.
func (rs *Reports) Run(ctx context.Context) error {
	due := time.NewTicker(applyEvery)
	due.Stop()
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-rs.woken:
			due.Reset(applyEvery)
		case <-due.C:
			if !rs.apply() {
				due.Stop()
			}
		}
	}
}
