package slotset_test

import (
	"math/rand/v2"
	"testing"

	"github.com/select-service/select-service/internal/slotset"
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
		others := 0
		for slot := range uint32(300) {
			depth := uint32(0)
			if int(slot) < len(want) {
				depth = want[slot]
			}
			if d.At(slot) != depth {
				t.Fatalf("seed %d: slot %d has %d, want %d", seed, slot, d.At(slot), depth)
			}
			if d.Others(int(slot/64))>>(slot%64)&1 == 1 {
				others++
			} else if d.Common() != depth {
				t.Fatalf("seed %d: slot %d has %d and counts as common", seed, slot, depth)
			}
		}
	}
}

// TestDepthsCommon: the number of most slots is the common one.
func TestDepthsCommon(t *testing.T) {
	var d slotset.Depths
	d.Reset(100)
	all, most := slotset.Set{}.Zeroed(2), slotset.Set{}.Zeroed(2)
	for slot := range uint32(100) {
		all.Add(slot)
		if slot > 10 {
			most.Add(slot)
		}
	}
	d.Take(0, all)
	d.Put(0, slotset.Set{1<<11 - 1}, 7)
	d.Put(0, most, 9)
	if d.Common() != 9 || d.Others(0) != 1<<11-1 {
		t.Errorf("common %d, others %x", d.Common(), d.Others(0))
	}
}
