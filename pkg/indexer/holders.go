package indexer

import (
	"math/bits"

	"github.com/select-service/select-service/internal/container/offheap"
)

// holderSet is the set of slots that hold a run in one tier: none, one slot
// (most runs have a single holder), or the number of a set in the Space's slab.
type holderSet uint32

const (
	noHolder holderSet = 0
	// single marks a handle that is the slot itself.
	single holderSet = 1 << 31
)

func onlyHolder(slot uint32) holderSet { return single | holderSet(slot) }

// holderSets is a slab of bit sets, each words wide, over slots.
type holderSets struct {
	mem   *offheap.Memory
	words uint32   // 64 slots each
	bits  []uint64 // set h occupies bits[h*words : (h+1)*words]; set 0 is not used
	next  uint32   // first set never used
	free  []uint32
}

func (s *holderSets) set(h holderSet) []uint64 {
	o := uint32(h) * s.words
	return s.bits[o : o+s.words : o+s.words]
}

// widen makes room for slots below n.
func (s *holderSets) widen(n uint32) {
	words := (n + 63) / 64
	if words <= s.words {
		return
	}
	words = max(words, min(2*s.words, words+8))
	old, oldWords := s.bits, s.words
	s.words = words
	if len(old) == 0 {
		return
	}
	s.bits = offheap.Make[uint64](s.mem, len(old)/int(oldWords)*int(words))
	for h := uint32(1); h < s.next; h++ {
		copy(s.bits[h*words:], old[h*oldWords:(h+1)*oldWords])
	}
	offheap.Free(s.mem, old)
}

// alloc returns an empty set.
func (s *holderSets) alloc() holderSet {
	if l := len(s.free); l > 0 {
		h := s.free[l-1]
		s.free = s.free[:l-1]
		clear(s.set(holderSet(h)))
		return holderSet(h)
	}
	if s.next == 0 {
		s.next = 1
	}
	if need := (s.next + 1) * s.words; uint32(len(s.bits)) < need {
		grown := offheap.Make[uint64](s.mem, max(2*len(s.bits), int(64*s.words)))
		copy(grown, s.bits)
		offheap.Free(s.mem, s.bits)
		s.bits = grown
	}
	s.next++
	return holderSet(s.next - 1)
}

func (s *holderSets) release(h holderSet) {
	if h == noHolder || h&single != 0 {
		return
	}
	s.free = append(s.free, uint32(h))
	if len(s.free) == int(s.next-1) { // no set is in use
		offheap.Free(s.mem, s.bits)
		s.bits, s.free, s.next = nil, nil, 0
	}
}

func (s *holderSets) has(h holderSet, slot uint32) bool {
	switch {
	case h == noHolder:
		return false
	case h&single != 0:
		return h == onlyHolder(slot)
	}
	return s.bits[uint32(h)*s.words+slot/64]>>(slot%64)&1 == 1
}

// add returns the handle of h and slot together.
func (s *holderSets) add(h holderSet, slot uint32) holderSet {
	switch {
	case h == noHolder:
		return onlyHolder(slot)
	case h == onlyHolder(slot):
		return h
	case h&single != 0:
		first := uint32(h &^ single)
		h = s.alloc()
		s.put(h, first)
	}
	s.put(h, slot)
	return h
}

func (s *holderSets) put(h holderSet, slot uint32) {
	s.bits[uint32(h)*s.words+slot/64] |= 1 << (slot % 64)
}

// remove returns the handle of h without slot.
func (s *holderSets) remove(h holderSet, slot uint32) holderSet {
	switch {
	case h == noHolder || h == onlyHolder(slot):
		return noHolder
	case h&single != 0:
		return h
	}
	set := s.set(h)
	set[slot/64] &^= 1 << (slot % 64)
	left, last := 0, uint32(0)
	for i, w := range set {
		if w != 0 {
			left += bits.OnesCount64(w)
			last = uint32(i)*64 + uint32(bits.TrailingZeros64(w))
		}
	}
	if left > 1 {
		return h
	}
	s.release(h)
	if left == 0 {
		return noHolder
	}
	return onlyHolder(last)
}

func (s *holderSets) equal(a, b holderSet) bool {
	if a == b {
		return true
	}
	if a == noHolder || b == noHolder || (a|b)&single != 0 {
		return false // a set in the slab has at least two members
	}
	x, y := s.set(a), s.set(b)
	for i := range x {
		if x[i] != y[i] {
			return false
		}
	}
	return true
}

func (s *holderSets) clone(h holderSet) holderSet {
	if h == noHolder || h&single != 0 {
		return h
	}
	c := s.alloc()
	copy(s.set(c), s.set(h))
	return c
}

// each calls f for every member.
func (s *holderSets) each(h holderSet, f func(slot uint32)) {
	if h == noHolder {
		return
	}
	if h&single != 0 {
		f(uint32(h &^ single))
		return
	}
	for i, w := range s.set(h) {
		for ; w != 0; w &= w - 1 {
			f(uint32(i)*64 + uint32(bits.TrailingZeros64(w)))
		}
	}
}
