package service

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/select-service/select-service/internal/scopes"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/kvevents"
)

// attached is what the service keeps of one attached worker. Reconcile alone
// touches it, under the catalog's lock.
type attached struct {
	scope   *scopes.State
	layout  hashing.Layout
	slots   *slotTable
	streams map[uint32]kvevents.StreamConfig // open, by rank
}

// workerKey: ids of the slot tracker are unique in their scope only.
type workerKey struct {
	scope catalog.Scope
	id    uint64
}

func keyOf(a *catalog.Attachment) workerKey { return workerKey{a.Scope, a.Worker} }

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
	w := &attached{
		scope:  s.scopes.AddWorker(a.Scope, a.BlockSize),
		layout: hashing.Layout{BlockSize: int(a.BlockSize), Eagle: a.Eagle},
		slots:  new(slotTable),
	}
	w.slots.set(a.Ranks)
	s.workers[keyOf(a)] = w
	s.addRanks(a)
	if err := s.switchStreams(w, a); err != nil {
		s.detach(a)
		return err
	}
	w.takeOver(a)
	s.scopes.MarkServed(a.Scope)
	return nil
}

// detach forgets a worker: its blocks and bookings go.
func (s *Service) detach(a *catalog.Attachment) {
	_ = s.switchStreams(s.workers[keyOf(a)], nil) // taking away cannot fail
	for _, rank := range a.Ranks {
		s.dropRank(a, rank)
	}
	delete(s.workers, keyOf(a))
	s.scopes.RemoveWorker(a.Scope)
}

// adjust changes what differs between two attachments in the same world.
func (s *Service) adjust(before, after *catalog.Attachment) error {
	w := s.workers[keyOf(after)]
	s.addRanks(after)
	w.slots.set(before.Ranks, after.Ranks)
	if err := s.switchStreams(w, after); err != nil {
		s.shrink(w, after, before)
		return err
	}
	w.takeOver(after)
	s.shrink(w, before, after)
	return nil
}

// takeOver ends the holds of ranks that are attached now.
func (w *attached) takeOver(a *catalog.Attachment) {
	for _, rank := range a.Ranks {
		w.scope.EndHold(rank.Slot)
	}
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
			s.dropLoad(from.Scope, rank.Slot)
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

// addRanks makes the index know the ranks, and the ledger those that carry load.
func (s *Service) addRanks(a *catalog.Attachment) {
	state := s.workers[keyOf(a)].scope
	for _, rank := range a.Ranks {
		r := catalog.Rank{Worker: a.Worker, DP: rank.DP}
		state.AssignSlot(rank.Slot, r)
		if rank.Candidate {
			s.ledger.PutRank(a.Scope, rank.Slot, r)
			s.rankPuts.Add(1)
		}
	}
}

// dropRank takes a rank's load and blocks away. A rank that is still held, for
// its worker could not be attached, keeps its blocks.
func (s *Service) dropRank(a *catalog.Attachment, rank catalog.AttachedRank) {
	s.dropLoad(a.Scope, rank.Slot)
	s.workers[keyOf(a)].scope.ReleaseSlot(rank.Slot)
}

// dropLoad takes a rank's load away. Nobody is told of the bookings one by one:
// the other replicas shall see for themselves which have gone.
func (s *Service) dropLoad(sc catalog.Scope, slot uint32) {
	if dropped := s.ledger.RemoveRank(sc, slot); dropped > 0 && s.replica != nil {
		s.replica.ReservationsDropped(dropped)
	}
}

// Hold makes room for the blocks of a rank whose worker is not attached.
func (r *reconciler) Hold(sc catalog.Scope, blockSize uint32, rank catalog.Rank, slot uint32) {
	r.scopes.HoldRank(sc, blockSize, rank, slot)
}

// Unhold forgets the blocks of a rank whose worker did not come.
func (r *reconciler) Unhold(sc catalog.Scope, _ catalog.Rank, slot uint32) {
	r.scopes.UnholdRank(sc, slot)
}
