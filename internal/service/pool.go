package service

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
)

// pool is what a scope has beside its workers: an index and a wait line. It
// lives from the scope's first attached worker to its last.
type pool struct {
	layout hashing.Layout
	space  *indexer.Space
	line   *line
	// gone: the last worker has left. It is set after the ledger has lost the
	// scope's ranks and before a new pool gives it any: whoever finds a rank in
	// the ledger and then no mark has found it in this pool.
	gone atomic.Bool

	workers int  // attached; guarded by Service.mu
	served  bool // one of them in full; guarded by Service.mu
}

// attached is what the service keeps of one attached worker. Reconcile alone
// touches it, under the catalog's lock.
type attached struct {
	pool    *pool
	slots   *slotTable
	streams map[uint32]kvevents.StreamConfig // open, by rank
}

// slotTable finds the slots of a worker's ranks for its event streams, which
// read it while the worker is changed.
type slotTable struct {
	of atomic.Pointer[map[uint32]uint32]
}

func (t *slotTable) set(lists ...[]catalog.AttachedRank) {
	of := make(map[uint32]uint32)
	for _, ranks := range lists {
		for _, r := range ranks {
			of[r.DP] = r.Slot
		}
	}
	t.of.Store(&of)
}

func (t *slotTable) slot(dp uint32) (uint32, bool) {
	slot, ok := (*t.of.Load())[dp]
	return slot, ok
}

// reconciler is the Service as the catalog sees it.
type reconciler Service

// Reconcile carries a change of a worker's attachment out: ranks enter or leave
// index and ledger, streams are opened or closed. What stays the same is not
// touched (decision D7).
func (r *reconciler) Reconcile(before, after *catalog.Attachment) error {
	s := (*Service)(r)
	switch {
	case before == nil:
		return s.attach(after)
	case after == nil:
		s.detach(before)
		return nil
	}
	return s.adjust(before, after)
}

// attach makes a new worker known.
func (s *Service) attach(a *catalog.Attachment) error {
	w := &attached{pool: s.enter(a), slots: new(slotTable)}
	w.slots.set(a.Ranks)
	s.workers[a.Worker] = w
	s.addRanks(a)
	if err := s.switchStreams(w, a); err != nil {
		s.detach(a)
		return err
	}
	s.serve(a.Scope)
	return nil
}

// detach forgets a worker: its blocks and bookings go.
func (s *Service) detach(a *catalog.Attachment) {
	_ = s.switchStreams(s.workers[a.Worker], nil) // taking away cannot fail
	for _, rank := range a.Ranks {
		s.dropRank(a, rank)
	}
	delete(s.workers, a.Worker)
	s.leave(a.Scope)
}

// adjust changes what differs between two attachments in the same world.
func (s *Service) adjust(before, after *catalog.Attachment) error {
	w := s.workers[after.Worker]
	s.addRanks(after)
	w.slots.set(before.Ranks, after.Ranks)
	if err := s.switchStreams(w, after); err != nil {
		s.shrink(w, after, before)
		return err
	}
	s.shrink(w, before, after)
	return nil
}

// shrink takes away what a worker has in one attachment and not in the other.
func (s *Service) shrink(w *attached, from, to *catalog.Attachment) {
	w.slots.set(to.Ranks)
	quiet := false
	for _, rank := range from.Ranks {
		kept, ok := attachedRank(to.Ranks, rank.DP)
		switch {
		case !ok:
			if !quiet {
				s.renewAppliers(w) // no batch under way knows the slot any more
				quiet = true
			}
			s.dropRank(from, rank)
		case rank.Candidate && !kept.Candidate:
			s.ledger.RemoveRank(from.Scope, rank.Slot)
		}
	}
}

// attachedRank finds a rank; ranks are in order.
func attachedRank(ranks []catalog.AttachedRank, dp uint32) (catalog.AttachedRank, bool) {
	i, ok := slices.BinarySearchFunc(ranks, dp, func(r catalog.AttachedRank, dp uint32) int { return cmp.Compare(r.DP, dp) })
	if !ok {
		return catalog.AttachedRank{}, false
	}
	return ranks[i], true
}

// addRanks makes the ledger know the ranks that carry load.
func (s *Service) addRanks(a *catalog.Attachment) {
	for _, rank := range a.Ranks {
		if rank.Candidate {
			s.ledger.PutRank(a.Scope, rank.Slot, catalog.Rank{Worker: a.Worker, DP: rank.DP})
		}
	}
}

func (s *Service) dropRank(a *catalog.Attachment, rank catalog.AttachedRank) {
	s.ledger.RemoveRank(a.Scope, rank.Slot)
	s.workers[a.Worker].pool.space.Forget(rank.Slot)
}

// enter counts a worker into its pool, which it makes if it is the first.
func (s *Service) enter(a *catalog.Attachment) *pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := (*s.pools.Load())[a.Scope]
	if p == nil {
		p = &pool{
			layout: hashing.Layout{BlockSize: int(a.BlockSize), Eagle: a.Eagle},
			space:  indexer.New(),
			line:   newLine(s, s.config.Admission.ForModel(a.Scope.Model)),
		}
		pools := maps.Clone(*s.pools.Load())
		pools[a.Scope] = p
		s.pools.Store(&pools)
	}
	p.workers++
	return p
}

// serve marks the scope's pool as one that had a complete worker.
func (s *Service) serve(sc catalog.Scope) {
	s.mu.Lock()
	defer s.mu.Unlock()
	(*s.pools.Load())[sc].served = true
	s.past.remove(sc)
}

// leave counts a worker out of its pool, which goes with its last one.
func (s *Service) leave(sc catalog.Scope) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := (*s.pools.Load())[sc]
	if p.workers--; p.workers > 0 {
		return
	}
	p.gone.Store(true)
	pools := maps.Clone(*s.pools.Load())
	delete(pools, sc)
	s.pools.Store(&pools)
	s.left = append(s.left, p)
	if p.served {
		s.past.add(sc)
	}
}
