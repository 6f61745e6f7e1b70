package reports

import (
	"math"
	"slices"
	"time"

	"github.com/select-service/select-service/internal/engines/load"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// apply tells the ledger what the reports say now, where it is not what the ledger knows. It
// returns false if there is no report any more.
func (rs *Reports) apply() (any bool) {
	now := rs.config.Now()
	lowered := false
	rs.mu.Lock()
	for sc, s := range rs.scopes {
		snap := rs.catalog.Snapshot(sc)
		if snap == nil {
			rs.changed = true
			for id := range s.workers {
				rs.dropWorker(s, id)
			}
			delete(rs.scopes, sc) // the ledger has forgotten the ranks
			continue
		}
		rs.clean(s, snap)
		if s.reported {
			lowered = rs.tell(s, snap, now) || lowered
		}
		if now.Sub(s.watched) >= watchEvery(len(s.ranks)) {
			s.watched = now
			rs.watch(s, snap, now)
		}
		if len(s.ranks) == 0 {
			delete(rs.scopes, sc)
		}
	}
	if rs.changed {
		rs.publishExclusions(rs.scopes)
		lowered = true
	}
	any = len(rs.scopes) > 0
	rs.mu.Unlock()
	if lowered && rs.config.Changed != nil {
		rs.config.Changed()
	}
	return any
}

// watchEvery returns how often the signs of life of so many ranks are looked at: those of thousands
// less often, as that takes longer.
func watchEvery(ranks int) time.Duration {
	return min(max(1, time.Duration(ranks/2000)), 5) * applyEvery
}

// tell tells the ledger what has changed in a scope, and reports whether some load went down.
func (rs *Reports) tell(s *scopeReports, snap *catalog.Snapshot, now time.Time) (lowered bool) {
	loads, ok := rs.news(s, snap, now)
	if !ok {
		loads = rs.loads(s, snap, now)
	}
	var changed []reservations.RankEngineLoad
	rs.ledger.Look(snap.Scope, nil, func(v *reservations.View) {
		for i := range loads {
			l := &loads[i]
			known := reservations.EngineLoad{}
			if said := v.Engine(l.Slot); said != nil {
				known = *said
			}
			if differs(&known, &l.EngineLoad, uint64(snap.BlockSize)) && v.Known(l.Slot, l.Rank) {
				changed = append(changed, *l)
				lowered = lowered || lower(&known, &l.EngineLoad)
			}
		}
	})
	rs.ledger.SetEngineLoads(snap.Scope, changed)
	s.reported = false
	for _, r := range s.ranks {
		if s.reported = r.latest() != nil; s.reported {
			break
		}
	}
	return lowered
}

// clean drops the ranks that have left.
func (rs *Reports) clean(s *scopeReports, snap *catalog.Snapshot) {
	if s.snapshot == snap {
		return
	}
	s.snapshot, s.order = snap, nil
	for of := range s.ranks {
		if _, ok := snap.Entry(of); !ok {
			rs.drop(s, of)
		}
	}
}

// news returns what the reports that have come since the last call say of their ranks. ok is false if
// they may mean something for others too: if not all ranks of the scope are heard of the same parts.
// The slice is valid until the next call of news or loads.
func (rs *Reports) news(s *scopeReports, snap *catalog.Snapshot, now time.Time) (all []reservations.RankEngineLoad, ok bool) {
	ok = s.order != nil && now.Before(s.allFresh)
	all = rs.loadsOf[:0]
	for i, r := range s.came {
		s.came[i], r.came = nil, false
		if !ok {
			continue
		}
		h := rs.fresh(r, now)
		if ok = h != nil && h.foreign.known() == s.known; ok {
			all = append(all, h.load(r, &snap.Ranks()[r.index], snap.BlockSize))
			s.allFresh = earlier(s.allFresh, h.at.Add(rs.ttl(&h.Report)))
		}
	}
	s.came, rs.loadsOf = s.came[:0], all
	return all, ok
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// loads returns what the reports say of every rank of a scope. A part of the foreign load counts
// if at least half of the ranks that take prompts have a fresh report that knows it. The other ranks are then taken
// to have the median of these: an engine that is not heard must not make its rank attractive. The slice is
// valid until the next call of news or loads.
func (rs *Reports) loads(s *scopeReports, snap *catalog.Snapshot, now time.Time) []reservations.RankEngineLoad {
	all, fresh := rs.loadsOf[:0], rs.freshOf[:0]
	var known [numParts]int
	same := true // all are heard of the same parts
	s.allFresh = now.Add(time.Hour)
	for i, r := range s.ordered() {
		e := &snap.Ranks()[i]
		of := reservations.RankEngineLoad{Slot: e.Slot, Rank: e.Rank}
		var h *lastReport
		if r != nil {
			of.TotalBlocks = r.blocks
			h = rs.fresh(r, now)
		}
		if h == nil {
			same = false
		} else {
			of = h.load(r, e, snap.BlockSize)
			has := h.foreign.known()
			for p, ok := range has {
				if ok && !e.Worker.OnlyEncodes() {
					known[p]++
				}
			}
			if i == 0 {
				s.known = has
			}
			same = same && has == s.known
			s.allFresh = earlier(s.allFresh, h.at.Add(rs.ttl(&h.Report)))
		}
		all, fresh = append(all, of), append(fresh, h)
	}
	rs.loadsOf, rs.freshOf = all, fresh
	if same {
		return all
	}
	s.allFresh = time.Time{}
	var counts [numParts]bool
	var median parts
	for p, n := range known {
		if counts[p] = n > 0 && 2*n >= snap.NumPrompts; counts[p] && n < snap.NumPrompts {
			median[p] = load.Known(medianOf(snap.Ranks(), fresh, p))
		}
	}
	for i := range all {
		amount := median
		if h := fresh[i]; h != nil {
			for p, of := range h.foreign {
				if _, ok := of.Get(); ok {
					amount[p] = of
				}
			}
		}
		for p := range amount {
			if !counts[p] {
				amount[p] = load.Amount{}
			}
		}
		all[i].Foreign = amount.foreign()
	}
	return all
}

// load returns what a report says of its rank alone.
func (l *lastReport) load(r *rankReport, e *catalog.Entry, blockSize uint32) reservations.RankEngineLoad {
	of := reservations.RankEngineLoad{Slot: e.Slot, Rank: e.Rank}
	of.TotalBlocks, of.MaxRequests = r.blocks, clamp(l.MaxRunning.Or(0))
	of.Reported, of.Foreign = l.reported(blockSize), l.foreign.foreign()
	return of
}

// foreign returns the load, 0 where it is unknown.
func (p *parts) foreign() reservations.Foreign {
	tokens, told := p[prefillTokens].Get()
	f := reservations.Foreign{
		Requests: clamp(p[requests].Or(0)), Waiting: clamp(min(p[waiting].Or(0), p[requests].Or(0))),
		PrefillTokens: tokens, Blocks: p[blocks].Or(0),
	}
	f.Untold = f.Waiting > 0 && !told
	return f
}

// known returns which parts are known.
func (p *parts) known() (known [numParts]bool) {
	for i := range p {
		_, known[i] = p[i].Get()
	}
	return known
}

// medianOf returns the median of a part of the foreign load where it is known, of the ranks that take prompts. fresh has
// the reports of all.
func medianOf(ranks []catalog.Entry, fresh []*lastReport, part int) uint64 {
	values := make([]uint64, 0, len(fresh))
	for i, h := range fresh {
		if h == nil || ranks[i].Worker.OnlyEncodes() {
			continue
		}
		if n, ok := h.foreign[part].Get(); ok {
			values = append(values, n)
		}
	}
	slices.Sort(values)
	return values[(len(values)-1)/2]
}

// reported returns all that the engine has by its report, 0 for what is unknown.
func (l *lastReport) reported(blockSize uint32) reservations.SlotLoad {
	return reservations.SlotLoad{
		PrefillTokens: l.WaitingUncachedTokens.Or(0),
		Blocks:        inBlocks(l.KVTokensUsed.Or(0), blockSize),
		Requests:      clamp(l.Running.Or(0) + l.Waiting.Or(0)),
	}
}

func clamp(n uint64) uint32 { return uint32(min(n, math.MaxUint32)) }

// differs reports whether an engine's load has changed by a request or a block.
func differs(a, b *reservations.EngineLoad, blockSize uint64) bool {
	tokens := func(a, b uint64) bool { return max(a, b)-min(a, b) >= blockSize || (a == 0) != (b == 0) }
	return a.Foreign.Requests != b.Foreign.Requests || a.Foreign.Waiting != b.Foreign.Waiting || a.Foreign.Untold != b.Foreign.Untold ||
		a.Foreign.Blocks != b.Foreign.Blocks || tokens(a.Foreign.PrefillTokens, b.Foreign.PrefillTokens) ||
		a.Reported.Requests != b.Reported.Requests || a.Reported.Blocks != b.Reported.Blocks ||
		tokens(a.Reported.PrefillTokens, b.Reported.PrefillTokens) || a.TotalBlocks != b.TotalBlocks || a.MaxRequests != b.MaxRequests
}

// lower reports whether some part of the load went down.
func lower(from, to *reservations.EngineLoad) bool {
	return to.Foreign.Requests < from.Foreign.Requests || to.Foreign.Blocks < from.Foreign.Blocks ||
		to.Foreign.PrefillTokens < from.Foreign.PrefillTokens || to.Reported.Requests < from.Reported.Requests ||
		to.Reported.Blocks < from.Reported.Blocks || to.Reported.PrefillTokens < from.Reported.PrefillTokens
}

var _ load.Sink = (*Reports)(nil)
