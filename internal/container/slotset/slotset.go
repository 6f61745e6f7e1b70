package slotset

import (
	"iter"
	"math/bits"
)

// Set is a bit set of slots, 64 to a word. Slots beyond its end are not in it.
type Set []uint64

// Words returns the number of words of a set with that many slots.
func Words(slots int) int { return (slots + 63) / 64 }

// Zeroed returns an empty set of that many words. It reuses s's memory if that is enough.
func (s Set) Zeroed(words int) Set {
	if cap(s) < words {
		return make(Set, words)
	}
	s = s[:words]
	clear(s)
	return s
}

// Has reports whether the slot is in the set.
func (s Set) Has(slot uint32) bool {
	w := int(slot / 64)
	return w < len(s) && s[w]>>(slot%64)&1 != 0
}

// Add adds a slot below the set's end.
func (s Set) Add(slot uint32) { s[slot/64] |= 1 << (slot % 64) }

// Len counts the slots.
func (s Set) Len() (n int) {
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// All returns the members, the lowest first.
func (s Set) All() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for w, word := range s {
			for ; word != 0; word &= word - 1 {
				if !yield(uint32(w*64 + bits.TrailingZeros64(word))) {
					return
				}
			}
		}
	}
}
