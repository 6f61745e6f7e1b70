package service

import (
	"maps"
	"slices"
	"sync/atomic"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
)

// pool is what a scope has beside its workers: an index and a wait line. It
// lives from the scope's first attached worker to its last.
type pool struct {
	layout  hashing.Layout
	space   *indexer.Space
	line    *line
	workers int // attached; guarded by Service.mu
}

// attached is what the service keeps of one attached worker. Reconcile alone
// touches it, under the catalog's lock.
type attached struct {
	pool  *pool
	slots *slotTable
}

// slotTable finds the slots of a worker's ranks for its event streams, which
// read it while the worker is changed.
type slotTable struct {
	of atomic.Pointer[map[uint32]uint32]
}

func newSlotTable(ranks []catalog.AttachedRank) *slotTable {
	t := &slotTable{}
	t.set(ranks)
	return t
}

func (t *slotTable) set(ranks []catalog.AttachedRank) {
	of := make(map[uint32]uint32, len(ranks))
	for _, r := range ranks {
		of[r.DP] = r.Slot
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
	p := s.enter(a)
	w := &attached{pool: p, slots: newSlotTable(a.Ranks)}
	s.workers[a.Worker] = w
	for _, rank := range a.Ranks {
		s.addRank(a, rank)
	}
	if err := s.switchStreams(w, nil, a); err != nil {
		s.detachRanks(a)
		s.leave(a)
		return err
	}
	return nil
}

// detach forgets a worker: its blocks and bookings go.
func (s *Service) detach(a *catalog.Attachment) {
	_ = s.switchStreams(s.workers[a.Worker], a, nil) // taking away cannot fail
	s.detachRanks(a)
	s.leave(a)
}

func (s *Service) detachRanks(a *catalog.Attachment) {
	for _, rank := range a.Ranks {
		s.dropRank(a, rank)
	}
	delete(s.workers, a.Worker)
}

// adjust changes what differs between two attachments in the same world.
func (s *Service) adjust(before, after *catalog.Attachment) error {
	w := s.workers[after.Worker]
	for _, rank := range after.Ranks {
		if !slices.Contains(before.Ranks, rank) {
			s.addRank(after, rank)
		}
	}
	w.slots.set(union(before.Ranks, after.Ranks))
	if err := s.switchStreams(w, before, after); err != nil {
		for _, rank := range after.Ranks {
			if attachedRank(before.Ranks, rank) < 0 {
				s.dropRank(after, rank)
			}
		}
		w.slots.set(before.Ranks)
		return err
	}
	w.slots.set(after.Ranks)
	for _, rank := range before.Ranks {
		switch i := attachedRank(after.Ranks, rank); {
		case i < 0:
			s.dropRank(before, rank)
		case rank.Candidate && !after.Ranks[i].Candidate:
			s.ledger.RemoveRank(before.Scope, rank.Slot)
		}
	}
	return nil
}

func union(a, b []catalog.AttachedRank) []catalog.AttachedRank {
	return append(slices.Clone(a), b...)
}

func (s *Service) addRank(a *catalog.Attachment, rank catalog.AttachedRank) {
	if rank.Candidate {
		s.ledger.PutRank(a.Scope, rank.Slot, catalog.Rank{Worker: a.Worker, DP: rank.DP})
	}
}

func (s *Service) dropRank(a *catalog.Attachment, rank catalog.AttachedRank) {
	s.ledger.RemoveRank(a.Scope, rank.Slot)
	(*s.pools.Load())[a.Scope].space.Forget(rank.Slot)
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
		s.past.remove(a.Scope)
	}
	p.workers++
	return p
}

// leave counts a worker out of its pool, which goes with its last one.
func (s *Service) leave(a *catalog.Attachment) {
	s.mu.Lock()
	p := (*s.pools.Load())[a.Scope]
	p.workers--
	last := p.workers == 0
	if last {
		pools := maps.Clone(*s.pools.Load())
		delete(pools, a.Scope)
		s.pools.Store(&pools)
		s.past.add(a.Scope)
	}
	s.mu.Unlock()
	if last {
		p.line.close(errorf(Unavailable, "no schedulable workers for model=%s tenant=%s", a.Scope.Model, a.Scope.Tenant))
	}
}
