package service

import (
	"sync"
	"time"

	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
)

// Where engines publish no KV events, a booking is the only sign of what a rank's
// cache has: the approximate index of dynamo-kv-router 1.6.1. The blocks of a
// booked prompt stand in the scope's index like those of an engine, under their
// rolling hashes, until they were booked too long ago.

// approximate tells whether bookings make the index.
func (s *Service) approximate() bool {
	return s.config.Contract == contract.V16 && !s.config.KVEvents && s.config.ApproximateTTL > 0
}

// newPredictions returns what pools predict with, nil if engines tell.
func (s *Service) newPredictions() *predictions {
	if !s.approximate() {
		return nil
	}
	return newPredictions(s.config.ApproximateTTL, maxPredicted, time.Now)
}

// sweepApproximate takes predicted blocks out of the index that were booked too
// long ago.
func (s *Service) sweepApproximate() {
	if s.predictions != nil {
		s.predictions.sweep()
	}
}

// predict notes that a prompt was sent to a rank, whose cache will have it. It
// does nothing if the rank has left. The local hashes are borrowed.
func (p *pool) predict(e catalog.Entry, local []uint64) {
	if p.predictions == nil || len(local) == 0 {
		return
	}
	names := rollings.Get().(*[]uint64)
	*names = hashing.AppendSequence((*names)[:0], local)
	p.predictions.book(p, e, *names, local)
	if cap(*names) <= maxPooled {
		rollings.Put(names)
	}
}

// rollings has memory for rolling hashes. The caller's own will not do: a name
// that does not follow from the blocks before could stand for two of them.
var rollings = sync.Pool{New: func() any { return new([]uint64) }}

// enter makes slot the place of a rank. It does nothing if it is.
func (p *pool) enter(slot uint32, r catalog.Rank) {
	t := p.predictions
	if t == nil {
		p.gate.AssignSlot(slot, r)
		return
	}
	t.leave(p, slot, &r)
	p.gate.AssignSlot(slot, r)
	t.enter(p, slot, r)
}

// leave empties a slot whose rank has left.
func (p *pool) leave(slot uint32) {
	if p.predictions != nil {
		p.predictions.leave(p, slot, nil)
	}
	p.gate.ReleaseSlot(slot)
}

// book enters the blocks of a prompt that a rank was booked for. A long one goes
// in parts, so that others need not wait for all of it: what a part has entered
// is as good as fresh for the next.
func (t *predictions) book(p *pool, e catalog.Entry, names, local []uint64) {
	for end := 0; end < len(names); {
		end = min(end+maxAtOnce, len(names))
		t.bookPart(p, e, names[:end], local[:end])
	}
}

func (t *predictions) bookPart(p *pool, e catalog.Entry, names, local []uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	st := p.seats[e.Slot]
	if st == nil || st.rank != e.Rank {
		return // it left between choice and booking
	}
	first, end := t.touchLocked(st, names)
	if first == end {
		return
	}
	ev := indexer.Store{Slot: e.Slot, Tier: indexer.Device, EngineHashes: names[first:end], Local: local[first:end]}
	if first > 0 {
		ev.Parent, ev.HasParent = names[first-1], true
	}
	p.gate.Store(&ev)
}

// enter gives a rank its seat, unless it has it.
func (t *predictions) enter(p *pool, slot uint32, r catalog.Rank) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.seats[slot] != nil {
		return
	}
	if p.seats == nil {
		p.seats = make(map[uint32]*seat)
	}
	p.seats[slot] = t.seatLocked(p.gate, slot, r)
}

// leave takes the seat from whichever rank has it, but for the one to stay.
// Behind it nothing is entered for the rank, and the index can be emptied.
func (t *predictions) leave(p *pool, slot uint32, stay *catalog.Rank) {
	t.mu.Lock()
	defer t.mu.Unlock()
	st := p.seats[slot]
	if st == nil || stay != nil && st.rank == *stay {
		return
	}
	delete(p.seats, slot)
	t.vacateLocked(st)
}
