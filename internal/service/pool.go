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
	"github.com/select-service/select-service/pkg/recovery"
)

// pool is what a scope has beside its workers: an index and a wait line. It
// lives from the scope's first attached worker or held rank to its last.
type pool struct {
	blockSize uint32         // tokens
	space     *indexer.Space // to be written through gate only
	gate      *recovery.Gate
	line      *line
	seeds     seedNames // of the space's blocks
	// predictions, which guards seats, is nil where engines tell.
	predictions *predictions
	seats       map[uint32]*seat // by slot
	// gone: the last worker has left. It is set after the ledger has lost the
	// scope's ranks and before a new pool gives it any: whoever finds a rank in
	// the ledger and then no mark has found it in this pool.
	gone atomic.Bool

	// The reconciler alone touches these, under the catalog's lock.
	workers int                     // attached
	held    map[uint32]catalog.Rank // slots of ranks whose workers are not attached

	served bool // had a worker attached in full; guarded by Service.mu
}

// attached is what the service keeps of one attached worker. Reconcile alone
// touches it, under the catalog's lock.
type attached struct {
	pool    *pool
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
		pool:   s.open(a.Scope, a.BlockSize),
		layout: hashing.Layout{BlockSize: int(a.BlockSize), Eagle: a.Eagle},
		slots:  new(slotTable),
	}
	w.pool.workers++
	w.slots.set(a.Ranks)
	s.workers[keyOf(a)] = w
	s.addRanks(a)
	if err := s.switchStreams(w, a); err != nil {
		s.detach(a)
		return err
	}
	w.takeOver(a)
	s.serve(a.Scope)
	return nil
}

// detach forgets a worker: its blocks and bookings go.
func (s *Service) detach(a *catalog.Attachment) {
	_ = s.switchStreams(s.workers[keyOf(a)], nil) // taking away cannot fail
	for _, rank := range a.Ranks {
		s.dropRank(a, rank)
	}
	delete(s.workers, keyOf(a))
	p := (*s.pools.Load())[a.Scope] // changes under the catalog's lock only
	p.workers--
	s.closeIfEmpty(a.Scope)
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
		delete(w.pool.held, rank.Slot)
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
	p := s.workers[keyOf(a)].pool
	for _, rank := range a.Ranks {
		r := catalog.Rank{Worker: a.Worker, DP: rank.DP}
		p.enter(rank.Slot, r)
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
	p := s.workers[keyOf(a)].pool
	if _, held := p.held[rank.Slot]; !held {
		p.leave(rank.Slot)
	}
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
	s := (*Service)(r)
	p := s.open(sc, blockSize)
	p.held[slot] = rank
	p.enter(slot, rank)
}

// Unhold forgets the blocks of a rank whose worker did not come.
func (r *reconciler) Unhold(sc catalog.Scope, _ catalog.Rank, slot uint32) {
	s := (*Service)(r)
	p := (*s.pools.Load())[sc]
	p.leave(slot)
	delete(p.held, slot)
	s.closeIfEmpty(sc)
}

// open returns the scope's pool, a new one if there is none.
func (s *Service) open(sc catalog.Scope, blockSize uint32) *pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := (*s.pools.Load())[sc]
	if p == nil {
		p = &pool{
			blockSize:   blockSize,
			space:       indexer.New(),
			line:        newLine(s, s.config.Admission.ForModel(sc.Model)),
			held:        make(map[uint32]catalog.Rank),
			predictions: s.predictions,
		}
		s.furnishLocked(sc, p)
		pools := maps.Clone(*s.pools.Load())
		pools[sc] = p
		s.pools.Store(&pools)
	}
	return p
}

// serve marks the scope's pool as one that had a complete worker.
func (s *Service) serve(sc catalog.Scope) {
	s.mu.Lock()
	defer s.mu.Unlock()
	(*s.pools.Load())[sc].served = true
	s.past.remove(sc)
}

// closeIfEmpty ends the scope's pool when its last worker has left and no rank
// is held.
func (s *Service) closeIfEmpty(sc catalog.Scope) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := (*s.pools.Load())[sc]
	if p.workers > 0 || len(p.held) > 0 {
		return
	}
	p.gone.Store(true)
	s.spareLocked(sc, p)
	pools := maps.Clone(*s.pools.Load())
	delete(pools, sc)
	s.pools.Store(&pools)
	s.left = append(s.left, p)
	if p.served {
		s.past.add(sc)
	}
}
