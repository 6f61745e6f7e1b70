package reservations

import (
	"math"
	"math/bits"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// EngineLoad is what a rank's engine says of its load, beside what the ledger has booked. The zero
// EngineLoad says nothing.
type EngineLoad struct {
	// Foreign is what the engine has beyond the rank's reservations.
	Foreign Foreign
	// Reported is all that the engine has; a number is 0 if the engine does not say it.
	Reported SlotLoad
	// TotalBlocks is how many blocks the rank has room for; 0 if the engine does not say it.
	TotalBlocks uint64
	// MaxRequests is how many requests the rank runs at a time; 0 if the engine does not say it.
	MaxRequests uint32
}

// Foreign is load of a rank that is not booked.
type Foreign struct {
	Requests      uint32
	Waiting       uint32 // of Requests: those whose prefill has not begun
	PrefillTokens uint64 // tokens that these have to compute
	Blocks        uint64 // active
	// Untold: there are Waiting requests, and the engine does not say how many tokens they have to
	// compute.
	Untold bool
}

// RankEngineLoad is the EngineLoad of the rank in a slot.
type RankEngineLoad struct {
	Slot uint32
	Rank catalog.Rank
	EngineLoad
}

// SetEngineLoads sets what the engines of some ranks say of their load, which stays until it is
// set again or the rank is removed. Reservations do not change it. Ranks that the ledger does not
// know are skipped.
func (l *Ledger) SetEngineLoads(sc catalog.Scope, loads []RankEngineLoad) {
	if s := l.scope(sc); s != nil && len(loads) > 0 {
		s.setEngineLoads(loads)
	}
}

func (s *scope) setEngineLoads(loads []RankEngineLoad) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range loads {
		of := &loads[i]
		if !s.holds(of.Slot, of.Rank) {
			continue
		}
		if grow := s.slots - len(s.engines); grow > 0 {
			s.engines = append(s.engines, make([]EngineLoad, grow)...)
		}
		s.engines[of.Slot] = of.EngineLoad
		if t := s.order; t != nil && int(of.Slot) < len(t.sums) {
			t.sums[of.Slot] = t.order.sum(s.totalOf(of.Slot))
		}
	}
	if s.order == nil {
		return
	}
	for i := range loads { // each word once, if the slots are in order
		word := loads[i].Slot / 64
		if int(word) < len(s.order.words) && (i == 0 || loads[i-1].Slot/64 != word) {
			s.describe(int(word))
		}
	}
}

// clearEngineLoad forgets what the engine of the rank in a slot said.
func (s *scope) clearEngineLoad(slot uint32) {
	if int(slot) < len(s.engines) {
		s.engines[slot] = EngineLoad{}
	}
}

// totalOf returns the load of a slot and the foreign load beside it. It is short, so that it is
// inlined where no engine has said anything.
func (s *scope) totalOf(slot uint32) SlotLoad {
	if s.engines == nil && int(slot) < len(s.shown) {
		return s.shown[slot]
	}
	return s.withForeign(slot)
}

func (s *scope) withForeign(slot uint32) SlotLoad {
	l := s.loadOf(slot)
	if int(slot) < len(s.engines) {
		f := &s.engines[slot].Foreign
		l.PrefillTokens = addSaturating(l.PrefillTokens, f.PrefillTokens)
		l.Blocks = addSaturating(l.Blocks, f.Blocks)
		l.Requests = uint32(min(uint64(l.Requests)+uint64(f.Requests), math.MaxUint32))
	}
	return l
}

func addSaturating(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	if carry != 0 {
		return math.MaxUint64
	}
	return sum
}

// Total returns Load of the rank in a slot and its foreign load together.
func (v *View) Total(slot uint32) SlotLoad {
	if v.scope == nil {
		return SlotLoad{}
	}
	return v.scope.totalOf(slot)
}

// Greater returns, of each number, the greater one of Load and what the rank's engine has reported.
func (v *View) Greater(slot uint32) SlotLoad {
	l := v.Load(slot)
	if of := v.Engine(slot); of != nil {
		l.PrefillTokens = max(l.PrefillTokens, of.Reported.PrefillTokens)
		l.Blocks = max(l.Blocks, of.Reported.Blocks)
		l.Requests = max(l.Requests, of.Reported.Requests)
	}
	return l
}

// Engine returns what the engine of the rank in a slot says; nil if no engine of the scope has
// said anything.
func (v *View) Engine(slot uint32) *EngineLoad {
	if v.scope == nil || int(slot) >= len(v.scope.engines) {
		return nil
	}
	return &v.scope.engines[slot]
}

// Signs returns how many steps of the rank in a slot callers of this process have reported since it
// got its first reservation: completed prefills, not inferred ones, and generated blocks.
func (v *View) Signs(slot uint32) uint64 {
	if v.scope == nil || int(slot) >= len(v.scope.loads) || v.scope.loads[slot] == nil {
		return 0
	}
	return v.scope.loads[slot].signs
}

// Settled is the part of a rank's load that its engine must know of.
type Settled struct {
	Requests      uint32
	Prefills      uint32 // of Requests: those whose prefill is tracked and not complete
	PrefillTokens uint64 // of these
	Blocks        uint64 // of all reservations, also those that are not in Requests
}

// Settled returns the load of a rank that was booked longer ago than age, except that all its
// blocks count. ok is false if the ledger does not know the rank.
func (l *Ledger) Settled(sc catalog.Scope, slot uint32, r catalog.Rank, age time.Duration) (of Settled, ok bool) {
	s := l.scope(sc)
	if s == nil {
		return of, false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.holds(slot, r) {
		return of, false
	}
	of.Blocks = s.loadOf(slot).Blocks
	if int(slot) >= len(s.loads) || s.loads[slot] == nil {
		return of, true
	}
	since := l.at() - age
	for _, held := range s.loads[slot].held {
		if held.accepted() >= since {
			continue
		}
		of.Requests++
		if held.waits() {
			of.Prefills++
			of.PrefillTokens = addSaturating(of.PrefillTokens, held.tokens)
		}
	}
	return of, true
}
