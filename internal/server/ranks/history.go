package ranks

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
)

const (
	// ScopeEvery is how often the series of scopes get a point.
	ScopeEvery = 5 * time.Second
	// RankEvery is how often the series of ranks get a point.
	RankEvery = time.Minute
	// Kept is how far back series reach.
	Kept = time.Hour
	// MaxSeries bounds the series of an answer.
	MaxSeries = 64
	// MaxHistory bounds the memory of all series in bytes, of which those of ranks may have three
	// quarters.
	MaxHistory = 16 << 20
)

// Column is what a series has of one moment or one interval. Columns of scopes are those below
// NumColumns, columns of ranks those below NumRankColumns.
type Column uint8

// The columns.
const (
	Requests     Column = iota // live reservations
	ActiveBlocks               // of these
	PrefillTokens
	HitRate      // of the prompts chosen for in the interval; unknown without any
	DeviceBlocks // held on the device, each copy counted
	StreamLag    // messages that are not applied yet
	// NumRankColumns counts the columns of ranks.
	NumRankColumns = int(iota)
)

// The further columns of scopes.
const (
	Ranks         Column = Column(NumRankColumns) + iota
	Queued               // requests that wait for a rank
	Selections           // in the interval
	Refused              // in the interval
	TTFT                 // mean of the kept decisions whose first token came in the interval, in seconds
	PredictedTTFT        // of the same decisions
	HostBlocks
	DiskBlocks
	ExternalBlocks
	// NumColumns counts the columns of scopes.
	NumColumns = NumRankColumns + int(iota)
)

// String returns the column as answers name it.
func (c Column) String() string {
	return [NumColumns]string{
		"requests", "active_blocks", "prefill_tokens", "hit_rate", "device_blocks", "lag",
		"ranks", "queued", "selections", "refused", "ttft_seconds", "predicted_ttft_seconds", "host_blocks", "disk_blocks", "external_blocks",
	}[c]
}

// unknown is a value that is not known.
var unknown = float32(math.NaN())

// ring has the last points of a series, one column after the other.
type ring struct {
	length, columns int
	values          []float32 // of column c at the moment i: [c*length + i%length]
	first, next     int       // moments, counted from the start of the History
}

func newRing(columns, length, now int) *ring {
	return &ring{length: length, columns: columns, values: make([]float32, columns*length), first: now, next: now}
}

// ringBytes returns the memory of a ring.
func ringBytes(columns, length int) int64 { return int64(columns)*int64(length)*4 + 128 }

// put sets the point of a moment; skipped moments are unknown.
func (r *ring) put(now int, point []float32) {
	r.next = max(r.next, now-r.length+1)
	for ; r.next < now; r.next++ {
		for c := range r.columns {
			r.values[c*r.length+r.next%r.length] = unknown
		}
	}
	for c, v := range point {
		r.values[c*r.length+now%r.length] = v
	}
	r.next = now + 1
}

// at returns a value, unknown outside the ring.
func (r *ring) at(c Column, moment int) float32 {
	if moment < r.first || moment >= r.next || moment < r.next-r.length {
		return unknown
	}
	return r.values[int(c)*r.length+moment%r.length]
}

// scopeSeries is the history of a scope.
type scopeSeries struct {
	ring
	was struct {
		counted             bool
		selections, refused uint64
		times               scopes.FirstTokenTimes
	}
}

// rankKey names a rank's series.
type rankKey struct {
	scope catalog.Scope
	rank  catalog.Rank
}

// History has the last hour of a View. The View's lock guards it.
type History struct {
	view  *View
	limit int64 // of bytes

	moments   int // of ScopeEvery that have been taken
	minutes   int // of RankEvery
	scopes    map[catalog.Scope]*scopeSeries
	ranks     map[rankKey]*ring
	bytes     int64 // of all series
	rankBytes int64 // of those of ranks
	// scopesLeft and ranksLeft: some scope or rank got no series the last time, for lack of memory.
	scopesLeft, ranksLeft bool
	end, rankEnd          time.Time
}

// NewHistory returns the history of v, which has points once it runs. It takes at most limit bytes,
// and MaxHistory at most.
func NewHistory(v *View, limit int64) *History {
	return &History{view: v, limit: min(limit, MaxHistory), scopes: make(map[catalog.Scope]*scopeSeries), ranks: make(map[rankKey]*ring)}
}

// Run takes points until ctx ends.
func (h *History) Run(ctx context.Context) error {
	tick := time.NewTicker(ScopeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			h.take()
		}
	}
}

// take takes the points of a moment.
func (h *History) take() {
	v := h.view
	v.mu.Lock()
	defer v.mu.Unlock()
	v.renewIfDueLocked()
	ofRanks := h.moments%int(RankEvery/ScopeEvery) == 0
	h.scopesLeft, h.ranksLeft = false, h.ranksLeft && !ofRanks
	for _, s := range v.scopes {
		state := v.parts.Scopes.Of(s.scope)
		h.takeScope(s, state)
		for _, r := range s.rows {
			h.takeRank(s, r, state, ofRanks)
		}
	}
	h.end = v.renewed
	h.moments++
	if ofRanks {
		h.rankEnd = v.renewed
		h.minutes++
	}
	h.forget()
}

// admit reports whether there is memory for a series.
func (h *History) admit(columns, length int, ofRank bool) bool {
	n := ringBytes(columns, length)
	if h.bytes+n > h.limit || ofRank && h.rankBytes+n > h.limit/4*3 {
		h.scopesLeft, h.ranksLeft = h.scopesLeft || !ofRank, h.ranksLeft || ofRank
		return false
	}
	h.bytes += n
	if ofRank {
		h.rankBytes += n
	}
	return true
}

func (h *History) takeScope(s *scopeRows, state *scopes.State) {
	series := h.scopes[s.scope]
	if series == nil {
		if !h.admit(NumColumns, scopePoints, false) {
			return
		}
		series = &scopeSeries{ring: *newRing(NumColumns, scopePoints, h.moments)}
		h.scopes[s.scope] = series
	}
	var p [NumColumns]float32
	sum := &s.summary
	p[Requests], p[ActiveBlocks], p[PrefillTokens] = float32(sum.Requests), float32(sum.ActiveBlocks), float32(sum.PrefillTokens)
	p[HitRate] = known(s.hits.sample(sum.CachedBlocks, sum.PromptBlocks))
	p[Ranks], p[Queued] = float32(sum.Ranks), float32(sum.Queued)
	for _, r := range s.rows {
		p[StreamLag] += float32(r.Stream.Lag)
	}
	p[TTFT], p[PredictedTTFT] = unknown, unknown
	was := &series.was
	if was.counted && sum.Selections >= was.selections && sum.Refused >= was.refused {
		p[Selections], p[Refused] = float32(sum.Selections-was.selections), float32(sum.Refused-was.refused)
	}
	was.counted, was.selections, was.refused = true, sum.Selections, sum.Refused
	if state != nil {
		held := state.Space.Stats().Blocks
		p[DeviceBlocks], p[HostBlocks] = float32(held[indexer.Device]), float32(held[indexer.Host])
		p[DiskBlocks], p[ExternalBlocks] = float32(held[indexer.Disk]), float32(held[indexer.External])
		times := state.FirstTokens.Total()
		if n := float64(times.Decisions - was.times.Decisions); times.Decisions > was.times.Decisions {
			p[TTFT] = float32((times.Observed - was.times.Observed) / n)
			p[PredictedTTFT] = float32((times.Predicted - was.times.Predicted) / n)
		}
		was.times = times
	}
	series.put(h.moments, p[:])
}

// takeRank samples the hit rate of a rank and, each RankEvery, takes a point.
func (h *History) takeRank(s *scopeRows, r *versionedRow, state *scopes.State, point bool) {
	if state != nil && r.attached {
		r.hits.sample(state.Hits.Of(r.slot))
	}
	if !point {
		return
	}
	key := rankKey{s.scope, r.Rank}
	series := h.ranks[key]
	if series == nil {
		if !h.admit(NumRankColumns, rankPoints, true) {
			return
		}
		series = newRing(NumRankColumns, rankPoints, h.minutes)
		h.ranks[key] = series
	}
	series.put(h.minutes, []float32{
		Requests: float32(r.Requests), ActiveBlocks: float32(r.ActiveBlocks), PrefillTokens: float32(r.PrefillTokens),
		HitRate:      known(r.hits.rate), // of the last half a minute
		DeviceBlocks: float32(r.CachedBlocks), StreamLag: float32(r.Stream.Lag),
	})
}

// known returns a rate as a value.
func known(r Rate) float32 {
	if rate, ok := r.Get(); ok {
		return float32(rate)
	}
	return unknown
}

const (
	scopePoints = int(Kept / ScopeEvery)
	rankPoints  = int(Kept / RankEvery)
)

// forget drops the series without a point in the last hour.
func (h *History) forget() {
	for sc, s := range h.scopes {
		if s.next <= h.moments-scopePoints {
			delete(h.scopes, sc)
			h.bytes -= ringBytes(NumColumns, scopePoints)
		}
	}
	for key, r := range h.ranks {
		if r.next <= h.minutes-rankPoints {
			delete(h.ranks, key)
			h.bytes -= ringBytes(NumRankColumns, rankPoints)
			h.rankBytes -= ringBytes(NumRankColumns, rankPoints)
		}
	}
}

// Series is the history of a scope or, with a rank, of that.
type Series struct {
	Scope catalog.Scope
	Rank  *catalog.Rank
	// Columns has, for each column, a value for each moment, the newest last; NaN: not known.
	Columns [][]float32
}

// Past is a part of a History.
type Past struct {
	Interval  time.Duration
	End       time.Time // of the last moment; zero: there is none
	Series    []Series
	Truncated bool // some scopes or ranks are left out
}

// Scopes returns the series of the matching scopes by model and tenant, as far back as given.
func (h *History) Scopes(of catalog.ScopeFilter, back time.Duration) Past {
	h.view.mu.RLock()
	defer h.view.mu.RUnlock()
	p := Past{Interval: ScopeEvery, End: h.end, Truncated: h.scopesLeft}
	n := points(back, ScopeEvery, h.moments)
	var names []catalog.Scope
	for sc := range h.scopes {
		if sc.Matches(of.Model, of.Tenant) {
			names = append(names, sc)
		}
	}
	slices.SortFunc(names, catalog.Scope.Compare)
	for _, sc := range names {
		p.add(sc, nil, &h.scopes[sc].ring, h.moments, n)
	}
	return p
}

// Ranks returns the series of a worker's ranks in the matching scopes, as far back as given.
func (h *History) Ranks(of catalog.ScopeFilter, worker uint64, back time.Duration) Past {
	h.view.mu.RLock()
	defer h.view.mu.RUnlock()
	p := Past{Interval: RankEvery, End: h.rankEnd, Truncated: h.ranksLeft}
	n := points(back, RankEvery, h.minutes)
	var keys []rankKey
	for key := range h.ranks {
		if key.rank.Worker == worker && key.scope.Matches(of.Model, of.Tenant) {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b rankKey) int {
		if c := a.scope.Compare(b.scope); c != 0 {
			return c
		}
		return a.rank.Compare(b.rank)
	})
	for _, key := range keys {
		p.add(key.scope, &key.rank, h.ranks[key], h.minutes, n)
	}
	return p
}

// points returns how many moments a time back are.
func points(back, every time.Duration, taken int) int {
	return min(taken, int(Kept/every), max(1, int((back+every-1)/every)))
}

// add adds the last n moments of a series.
func (p *Past) add(sc catalog.Scope, rank *catalog.Rank, r *ring, taken, n int) {
	if len(p.Series) == MaxSeries {
		p.Truncated = true
		return
	}
	s := Series{Scope: sc, Rank: rank, Columns: make([][]float32, r.columns)}
	values := make([]float32, r.columns*n)
	for c := range s.Columns {
		s.Columns[c], values = values[:n:n], values[n:]
		for i := range n {
			s.Columns[c][i] = r.at(Column(c), taken-n+i)
		}
	}
	p.Series = append(p.Series, s)
}
