package indexer

import "math/bits"

// owners is the set of slots that own a run in one tier: none, one slot (most
// runs have a single owner), or a set in the space's slab.
type owners uint32

const (
	nobody owners = 0
	// single marks a handle that is the slot itself.
	single owners = 1 << 31
)

func onlyOwner(slot uint32) owners { return single | owners(slot) }

// ownerSets is a slab of bit sets, each words wide, over slots.
type ownerSets struct {
	mem   *memory
	words uint32   // 64 slots each
	bits  []uint64 // set h occupies bits[h*words : (h+1)*words]; set 0 is not used
	next  uint32   // first set never used
	free  []uint32
}

func (s *ownerSets) set(h owners) []uint64 {
	o := uint32(h) * s.words
	return s.bits[o : o+s.words : o+s.words]
}

// widen makes room for slots below n.
func (s *ownerSets) widen(n uint32) {
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
	s.bits = makeFlat[uint64](s.mem, len(old)/int(oldWords)*int(words))
	for h := uint32(1); h < s.next; h++ {
		copy(s.bits[h*words:], old[h*oldWords:(h+1)*oldWords])
	}
	freeFlat(s.mem, old)
}

// alloc returns an empty set.
func (s *ownerSets) alloc() owners {
	if l := len(s.free); l > 0 {
		h := s.free[l-1]
		s.free = s.free[:l-1]
		clear(s.set(owners(h)))
		return owners(h)
	}
	if s.next == 0 {
		s.next = 1
	}
	if need := (s.next + 1) * s.words; uint32(len(s.bits)) < need {
		grown := makeFlat[uint64](s.mem, max(2*len(s.bits), int(64*s.words)))
		copy(grown, s.bits)
		freeFlat(s.mem, s.bits)
		s.bits = grown
	}
	s.next++
	return owners(s.next - 1)
}

func (s *ownerSets) release(h owners) {
	if h == nobody || h&single != 0 {
		return
	}
	s.free = append(s.free, uint32(h))
	if len(s.free) == int(s.next-1) { // the last one went
		freeFlat(s.mem, s.bits)
		s.bits, s.free, s.next = nil, nil, 0
	}
}

func (s *ownerSets) has(h owners, slot uint32) bool {
	switch {
	case h == nobody:
		return false
	case h&single != 0:
		return h == onlyOwner(slot)
	}
	return s.bits[uint32(h)*s.words+slot/64]>>(slot%64)&1 == 1
}

// add returns the handle of h and slot together.
func (s *ownerSets) add(h owners, slot uint32) owners {
	switch {
	case h == nobody:
		return onlyOwner(slot)
	case h == onlyOwner(slot):
		return h
	case h&single != 0:
		first := uint32(h &^ single)
		h = s.alloc()
		s.put(h, first)
	}
	s.put(h, slot)
	return h
}

func (s *ownerSets) put(h owners, slot uint32) {
	s.bits[uint32(h)*s.words+slot/64] |= 1 << (slot % 64)
}

// remove returns the handle of h without slot.
func (s *ownerSets) remove(h owners, slot uint32) owners {
	switch {
	case h == nobody || h == onlyOwner(slot):
		return nobody
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
		return nobody
	}
	return onlyOwner(last)
}

func (s *ownerSets) equal(a, b owners) bool {
	if a == b {
		return true
	}
	if a == nobody || b == nobody || (a|b)&single != 0 {
		return false // a set has at least two owners
	}
	x, y := s.set(a), s.set(b)
	for i := range x {
		if x[i] != y[i] {
			return false
		}
	}
	return true
}

func (s *ownerSets) clone(h owners) owners {
	if h == nobody || h&single != 0 {
		return h
	}
	c := s.alloc()
	copy(s.set(c), s.set(h))
	return c
}

// each calls f for every owner.
func (s *ownerSets) each(h owners, f func(slot uint32)) {
	if h == nobody {
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

func (s *ownerSets) count(h owners) int {
	if h == nobody {
		return 0
	}
	if h&single != 0 {
		return 1
	}
	n := 0
	for _, w := range s.set(h) {
		n += bits.OnesCount64(w)
	}
	return n
}
