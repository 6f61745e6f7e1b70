package reservations

import (
	"container/heap"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/select-service/select-service/internal/container/offheap"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations/history"
)

// scope is the part of the ledger that belongs to one catalog.Scope.
type scope struct {
	ledger *Ledger
	name   catalog.Scope
	number uint64 // order of creation, from 1

	// mu guards everything below and the variable part of the scope's
	// reservations. Readers share it. Held for memory work only.
	mu      sync.RWMutex
	dropped bool              // no longer in Ledger.scopes
	ranks   catalog.SlotTable // the known ranks
	// prefills observes the scope's prefills; nil: no queues are kept.
	prefills        PrefillObserver
	blocks          prefixes
	settled         int64 // bytes of blocks on the account
	pins            int   // not unpinned yet; until then a dropped scope keeps blocks
	deadlines       deadlines
	pendingRenewals pendingRenewals
	entries         entryLog
	trimmed         time.Duration // when memory was last given back
	hashBuf         []uint64      // scratch

	// slots is above every slot that has had a rank. loads and shown are indexed by
	// slot. Both end at the highest slot that has had a reservation, so that a rank
	// takes no memory here before its first one. shown has the values of loads in the
	// form in which a View shows them.
	slots int
	loads []*load // nil: nothing was ever booked
	shown []SlotLoad
	// engines is what the engines say, by slot; shorter than slots where none has spoken.
	engines []EngineLoad
	order   *loadSums // of shown and engines; nil: no view has wanted one

	// registrations has the number of each slot's registration, see View.Registration.
	registrations []uint64

	missed atomic.Uint32 // number of views in a row that wanted another order
}

func newScope(l *Ledger, name catalog.Scope, number uint64) *scope {
	s := &scope{
		ledger: l,
		name:   name,
		number: number,
		blocks: newPrefixes(l.room.keepLocal),
	}
	if l.observePrefills != nil {
		s.prefills = l.observePrefills(name)
	}
	// All use of the memory is under s.mu, so that s is reachable until it ends.
	runtime.AddCleanup(s, (*offheap.Memory).Close, s.blocks.chunks.mem)
	return s
}

// putRank is Ledger.PutRank within the scope. ok is false if the scope has been dropped.
func (s *scope) putRank(slot uint32, r catalog.Rank) (freed int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dropped {
		return 0, false
	}
	if s.holds(slot, r) {
		return 0, true
	}
	freed = s.clearSlot(slot)
	if former, ok := s.ranks.Slot(r); ok {
		freed += s.clearSlot(former)
	}
	s.ranks.Assign(slot, r)
	if n := int(slot) + 1; n > s.slots {
		s.registrations = append(s.registrations, make([]uint64, n-s.slots)...)
		s.slots = n
		s.blocks.widen(n)
	}
	s.registrations[slot] = s.ledger.registrations.Add(1)
	if s.order != nil {
		s.reorder(slot)
	}
	return freed, true
}

// removeRank is Ledger.RemoveRank within the scope. empty reports whether the scope has
// no rank left.
func (s *scope) removeRank(slot uint32) (freed int, empty bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	freed = s.clearSlot(slot)
	return freed, s.ranks.Len() == 0
}

// clearSlot ends all reservations of a slot and makes it unknown.
func (s *scope) clearSlot(slot uint32) (freed int) {
	s.ranks.Release(slot)
	s.clearEngineLoad(slot)
	if s.order != nil {
		s.reorder(slot)
	}
	if int(slot) >= len(s.loads) || s.loads[slot] == nil {
		return 0
	}
	l := s.loads[slot]
	freed = len(l.held)
	for len(l.held) > 0 {
		r := l.held[len(l.held)-1]
		s.end(r, r.lostWithRank())
	}
	s.loads[slot] = nil
	return freed
}

// lostWithRank returns the reason for which r ends when its rank is removed. Of a lease that
// another process grants, only that process knows whether it goes on: it may have kept the rank.
func (e *entry) lostWithRank() history.EndReason {
	if e.lease != nil && e.origin.Process != e.scope.ledger.process {
		return history.LeaseExpired
	}
	return history.RankRemoved
}

// load returns the load of a slot, and creates it if there is none, for a reservation to
// be added.
func (s *scope) load(slot uint32) *load {
	if grow := int(slot) + 1 - len(s.loads); grow > 0 {
		s.loads = append(s.loads, make([]*load, grow)...)
		s.shown = append(s.shown, make([]SlotLoad, grow)...)
	}
	l := s.loads[slot]
	if l == nil {
		l = &load{queue: s.newQueue()}
		s.loads[slot] = l
	}
	return l
}

// holds reports whether the slot belongs to that rank.
func (s *scope) holds(slot uint32, r catalog.Rank) bool { return s.ranks.Has(slot, r) }

// book is Ledger.Book within the scope. holder, with an *ExistsError, is the
// reservation that has the id.
func (s *scope) book(req Request, choose func(*View) (Placement, error)) (p Placement, holder *entry, err error) {
	l := s.ledger
	s.mu.Lock()
	defer s.mu.Unlock()
	at := l.at()
	s.sweep(at)

	v := s.view(req.Hashes)
	p, err = choose(v)
	if v.wants {
		s.keepWanted(v.wanted)
	}
	m := v.match
	v.recycle()
	if err != nil {
		return Placement{}, nil, err
	}
	if !s.holds(p.Slot, p.Rank) {
		return Placement{}, nil, ErrUnknownRank
	}
	r := s.newEntry(&req, p, at)
	if holder = l.ids.claim(r); holder != nil {
		return Placement{}, holder, &ExistsError{ID: req.ID, Rank: holder.rank}
	}
	prompt := s.blocks.prepare(m, req.Hashes[m.n:])
	r.fresh = prompt.fresh
	if err := l.room.take(r); err != nil {
		s.blocks.drop(prompt)
		r.ended = true // for calls that have already found it by its id
		l.ids.release(r)
		return Placement{}, nil, err
	}
	s.enterOwn(r, &req, p, m, prompt)
	if p.Booked != nil {
		p.Booked()
	}
	return p, nil, nil
}

// newEntry returns the entry of a reservation that a caller of this process books.
func (s *scope) newEntry(req *Request, p Placement, at time.Duration) *entry {
	r := &entry{
		id:       req.ID,
		scope:    s,
		slot:     p.Slot,
		rank:     p.Rank,
		origin:   Origin{Process: s.ledger.process},
		perScope: req.PerScope,
		pair:     req.Pair,
		track:    req.TrackPrefill,
		tokens:   p.PrefillTokens,
		output:   req.ExpectedOutput,
		deadline: at + s.ledger.lifetime,

		callerState: req.CallerState,
	}
	if req.Lease > 0 {
		r.lease = newLease(req.Lease, at)
		r.deadline = at + req.Lease
	}
	return r
}

// enterOwn enters a reservation that a caller of this process books, and tells the observer. Its id
// must have been claimed and room taken; m is the walk of its prompt.
func (s *scope) enterOwn(r *entry, req *Request, p Placement, m match, prompt preparedPrompt) {
	l := s.ledger
	var prefix Prefix
	if l.observed {
		prefix = s.prefix(m, r.slot)
	}
	s.add(r, prompt, p.Uncached, req.Prompt)
	s.observeBooked(r, p.Predicted, p.Unobserved)
	l.counts.booked.Add(1)
	e := r.event()
	e.Prefix = prefix
	e.Hashes, e.PrefillTokens, e.TrackPrefill, e.ExpectedOutput = req.Hashes, p.PrefillTokens, req.TrackPrefill, req.ExpectedOutput
	e.Lease = max(req.Lease, 0)
	r.origin.Sequence = l.assignSequence(l.obs.Booked(e))
}

// add puts the load of a new reservation on its rank. Room must have been taken for r.fresh, the
// prompt's new blocks. uncached and tokens are for the rank's queue, 0 if they are not known.
func (s *scope) add(r *entry, prompt preparedPrompt, uncached, tokens uint64) {
	l := s.load(r.slot)
	tail, fresh := s.blocks.hold(prompt, r.slot)
	r.tail, r.blocks = tail, uint32(prompt.blocks())
	s.settle(s.ledger.room.chargedBlocks(r))
	l.blocks += fresh
	l.prefill.add(r.countedTokens())
	r.inRank = int32(len(l.held))
	l.held = append(l.held, r)
	if l.queue != nil {
		l.queue.add(r, uncached, tokens)
	}
	s.deadlines.push(r)
	s.ledger.soonest.lower(r.deadline)
	s.entries.add(r)
	s.publish(r.slot)
}

// release takes the prompt blocks of a reservation off its rank.
func (s *scope) release(r *entry) {
	l := s.loads[r.slot]
	s.blocks.release(r.tail, r.slot, func(n uint64, deficit uint32) {
		l.blocks -= n
		if deficit != 0 {
			l.reweigh(n, deficit, 0)
		}
	})
	s.settle(0)
}

// hashes returns the distinct prompt blocks of a live reservation. It needs s.mu, at least for
// reading.
func (s *scope) hashes(r *entry) []uint64 { return s.blocks.list(s.match(r)) }

// match returns where the prompt of a live reservation ends. It needs s.mu, at least for reading.
func (s *scope) match(r *entry) match { return s.blocks.end(r.tail, int(r.blocks)) }

// end takes the whole load of a reservation off its rank, frees its id, and records
// the end in the history. It needs s.mu.
func (s *scope) end(r *entry, why history.EndReason) {
	l := s.loads[r.slot]
	s.ledger.room.giveBack(r) // before the blocks are: see room
	s.release(r)
	l.blocks -= r.fullOutput + r.decayedOutput
	l.reweigh(r.decayedOutput, r.outputDeficit, 0)
	l.prefill.sub(r.countedTokens())
	if l.queue != nil {
		l.queue.remove(r.inRank, s.ledger.at())
	}
	last := l.held[len(l.held)-1]
	l.held[r.inRank], last.inRank = last, r.inRank
	l.held[len(l.held)-1] = nil
	l.held = l.held[:len(l.held)-1]
	s.deadlines.remove(r)
	if x := r.lease; x != nil && x.inPending >= 0 {
		heap.Remove(&s.pendingRenewals, int(x.inPending))
	}
	s.entries.remove(r)
	s.ledger.ids.release(r)
	s.ledger.remember(r, why)
	r.ended = true
	s.publish(r.slot)
	if r.callerState != nil {
		r.callerState.ReservationEnded()
	}
}

func (s *scope) endPrefill(r *entry) {
	l := s.loads[r.slot]
	l.prefill.sub(r.countedTokens())
	if l.queue != nil {
		l.queue.complete(r, s.ledger.at())
	}
	r.prefillDone = true
	s.publish(r.slot)
}

// addOutput adds one generated block and, with a fraction, sets the weight of all
// blocks that r alone holds.
func (s *scope) addOutput(r *entry, fraction *float64) {
	l := s.loads[r.slot]
	l.signs++
	l.blocks++
	r.fullOutput++
	if fraction != nil {
		deficit := deficitOf(*fraction)
		s.blocks.decay(r.tail, r.slot, deficit, func(n uint64, former uint32) { l.reweigh(n, former, deficit) })
		l.reweigh(r.decayedOutput, r.outputDeficit, deficit)
		l.reweigh(r.fullOutput, 0, deficit)
		r.decayedOutput, r.fullOutput, r.outputDeficit = r.decayedOutput+r.fullOutput, 0, deficit
	}
	s.publish(r.slot)
}

// publish copies the load of a slot to where views show it.
func (s *scope) publish(slot uint32) {
	l := s.loads[slot]
	s.shown[slot] = SlotLoad{PrefillTokens: l.prefill.value(), Blocks: l.active(), Requests: uint32(len(l.held))}
	if s.order != nil {
		s.reorder(slot)
	}
}

// loadOf returns the load of a slot.
func (s *scope) loadOf(slot uint32) (l SlotLoad) {
	if int(slot) < len(s.shown) {
		l = s.shown[slot]
	}
	return l
}

// rows is Ledger.Loads within the scope.
func (s *scope) rows() []Load {
	s.mu.RLock()
	rows := make([]Load, 0, s.ranks.Len())
	for slot, rank := range s.ranks.All() {
		l := s.loadOf(slot)
		rows = append(rows, Load{rank, l.PrefillTokens, l.Blocks, l.Requests})
	}
	s.mu.RUnlock()
	slices.SortFunc(rows, func(a, b Load) int { return a.Rank.Compare(b.Rank) })
	return rows
}
