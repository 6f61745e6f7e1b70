package slotset_test

import (
	"math/rand/v2"
	"testing"

	"github.com/select-service/select-service/internal/container/slotset"
)

// TestDepths: whatever is put, each slot has what a plain list has, and those that are
// not among the others have the common number.
func TestDepths(t *testing.T) {
	var d slotset.Depths
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		slots := r.IntN(200)
		want := make([]uint32, slots)
		d.Reset(slots)
		words := slotset.Words(slots)
		taken := make(slotset.Set, words)
		few := r.Uint32N(4)
		for slot := range uint32(slots) {
			if r.Uint32N(4) >= few {
				taken.Add(slot)
			}
		}
		d.Take(0, taken)
		for depth := uint32(1); taken.Len() > 0; depth++ {
			lo := r.IntN(words)
			part := make(slotset.Set, words-lo)
			for i := range part {
				part[i] = taken[lo+i] & (r.Uint64() | r.Uint64() | -(r.Uint64() & 1))
				taken[lo+i] &^= part[i]
				for slot := uint32((lo + i) * 64); int(slot) < slots; slot++ {
					if part.Has(slot-uint32(lo*64)) && int(slot/64) == lo+i {
						want[slot] = depth
					}
				}
			}
			d.Put(lo, part, depth)
		}
		for range r.IntN(5) {
			slot, depth := r.Uint32N(250), r.Uint32N(9)
			for int(slot) >= len(want) {
				want = append(want, 0)
			}
			want[slot] = depth
			d.Set(slot, depth)
		}
		if d.Slots() != len(want) || d.At(uint32(len(want))) != 0 {
			t.Fatalf("seed %d: %d slots, want %d", seed, d.Slots(), len(want))
		}
		for slot := range uint32(300) {
			depth := uint32(0)
			if int(slot) < len(want) {
				depth = want[slot]
			}
			if d.At(slot) != depth {
				t.Fatalf("seed %d: slot %d has %d, want %d", seed, slot, d.At(slot), depth)
			}
			w, in := int(slot/64), 0
			for c := range d.Classes() {
				if d.Class(c, w)>>(slot%64)&1 == 1 {
					in++
					if d.Depth(c) != depth {
						t.Fatalf("seed %d: slot %d has %d and is in the class of %d", seed, slot, depth, d.Depth(c))
					}
				}
			}
			if other := int(d.Others(w) >> (slot % 64) & 1); in+other != 1 {
				t.Fatalf("seed %d: slot %d is in %d classes and %d others", seed, slot, in, other)
			}
		}
	}
}

// TestDepthsClasses: many slots with the same number are a class.
func TestDepthsClasses(t *testing.T) {
	var d slotset.Depths
	d.Reset(100)
	few, most := slotset.Set{1<<11 - 1}, slotset.Set{^uint64(1<<11 - 1)}
	d.Take(0, slotset.Set{^uint64(0)})
	d.Put(0, few, 7)
	d.Put(0, most, 9)
	if d.Classes() != 2 || d.Depth(1) != 9 || d.Class(1, 0) != most[0] || d.Others(0) != few[0] {
		t.Errorf("%d classes, others %x", d.Classes(), d.Others(0))
	}
}
