package selection

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/select-service/select-service/internal/selection/rankstate"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// New and emptied ranks have nothing cached, so that a cost that counts cached blocks rarely
// chooses them. With Config.WarmupShare they get a part of the requests for which the caches matter
// little.

// warmup knows which ranks are new or emptied.
type warmup struct {
	share   float64
	newFor  time.Duration
	ranks   atomic.Pointer[map[catalog.Scope][]catalog.Rank] // sorted; without scopes all of whose ranks are; nil: none
	mu      sync.Mutex                                       // guards the field below
	started map[catalog.Scope]map[uint64]time.Time           // when a registration of a rank was first seen
}

// look finds the new and emptied ranks. It is to be called about every second.
func (w *warmup) look(c *catalog.Catalog, r *scopes.Registry, l *reservations.Ledger, now time.Time) {
	if w.share <= 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	all, started := make(map[catalog.Scope][]catalog.Rank), make(map[catalog.Scope]map[uint64]time.Time)
	for _, snap := range c.Snapshots() {
		state := r.Of(snap.Scope)
		if state == nil {
			continue
		}
		seen := make(map[uint64]time.Time, snap.NumRanks)
		started[snap.Scope] = seen
		device := state.Space.DeviceBlocks(nil)
		var warm []catalog.Rank
		var full []float64                       // how full the caches are, of the ranks whose capacity is known
		filled := make([]float64, snap.NumRanks) // full of each rank that is not new; -1: not known
		l.Look(snap.Scope, nil, func(v *reservations.View) {
			for i, e := range snap.Ranks() {
				filled[i] = -1
				if e.Worker.OnlyEncodes() {
					continue
				}
				id := v.Registration(e.Slot)
				at, ok := w.started[snap.Scope][id]
				if !ok {
					at = now
				}
				seen[id] = at
				isNew := now.Sub(at) < w.newFor
				if isNew {
					warm = append(warm, e.Rank)
				}
				total := rankstate.CapacityOf(e.Worker).KVBlocks
				if total == 0 {
					total = rankstate.EngineBlocks(v, e.Slot)
				}
				if !e.Worker.Publishes() {
					total = 0 // nobody knows what it has cached
				}
				if total > 0 {
					part := 0.0
					if int(e.Slot) < len(device) { // else it has never had a block
						part = float64(device[e.Slot]) / float64(total)
					}
					full = append(full, part)
					if !isNew {
						filled[i] = part
					}
				}
			}
		})
		if len(full) > 0 {
			slices.Sort(full)
			half := medianOf(full) / 2
			for i, e := range snap.Ranks() {
				if filled[i] >= 0 && filled[i] < half {
					warm = append(warm, e.Rank)
				}
			}
		}
		if n := len(warm); n > 0 && n < snap.NumPrompts {
			slices.SortFunc(warm, catalog.Rank.Compare)
			all[snap.Scope] = warm
		}
	}
	w.started = started
	if len(all) == 0 {
		w.ranks.Store(nil)
		return
	}
	w.ranks.Store(&all)
}

// of returns the new and emptied ranks of a scope.
func (w *warmup) of(sc catalog.Scope) []catalog.Rank {
	all := w.ranks.Load()
	if all == nil {
		return nil
	}
	return (*all)[sc]
}

// pickToWarm chooses for a share of the requests of which no rank has more than a quarter cached.
// It takes the least loaded of the ranks that are new or were emptied and have fewer requests than
// the scope's median. ok is false if the policy is to choose; else the costs of all ranks have been
// computed.
func (c *choice) pickToWarm(ranks []catalog.Entry, v *reservations.View) (i int, ok bool) {
	c.warmed = false
	warm := c.api.warmup.of(c.Scope)
	if warm == nil || c.session.kept.canStay() || c.Pinned != nil || c.Target != nil || c.Advisory || c.ExplainOnly ||
		len(ranks) < 2 || c.api.random.Float64() >= c.api.warmup.share || 4*c.mostCached() > uint64(c.prompt.size.Blocks) {
		return 0, false
	}
	median := medianRequests(c.scope.snapshot.Ranks(), v)
	var few []catalog.Entry
	for _, e := range ranks {
		if _, is := slices.BinarySearchFunc(warm, e.Rank, catalog.Rank.Compare); is && v.Known(e.Slot, e.Rank) && float64(v.Total(e.Slot).Requests) < median {
			few = append(few, e)
		}
	}
	if len(few) == 0 {
		return 0, false
	}
	c.score(ranks, v)
	c.warmed = true
	return indexRank(ranks, few[c.api.leastLoaded(few, c.scope.snapshot.BlockSize, v, nil)].Rank), true
}

// medianRequests returns the median of the active requests of the ranks that take prompts, at least one.
func medianRequests(ranks []catalog.Entry, v *reservations.View) float64 {
	all := make([]uint32, 0, len(ranks))
	for _, e := range ranks {
		if !e.Worker.OnlyEncodes() {
			all = append(all, v.Total(e.Slot).Requests)
		}
	}
	slices.Sort(all)
	return medianOf(all)
}

// medianOf returns the median of sorted numbers, at least one: of two in the middle their mean, so
// that of two ranks the lower one is below it.
func medianOf[T uint32 | float64](sorted []T) float64 {
	n := len(sorted)
	return (float64(sorted[(n-1)/2]) + float64(sorted[n/2])) / 2
}
