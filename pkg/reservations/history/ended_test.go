package history

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestBitmap proves that a bitmap is the set of what was put in, and its ranges
// the shortest list of them.
func TestBitmap(t *testing.T) {
	for seed := range uint64(30) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		b, want := make(bitmap), make(map[uint64]bool)
		base := rnd.Uint64N(1 << 40)
		for range 200 {
			from := base + rnd.Uint64N(40_000)
			to := from + rnd.Uint64N(3)*rnd.Uint64N(150)
			if from == to {
				b.set(from)
			} else {
				b.setRange(from, to)
			}
			for n := from; n <= to; n++ {
				want[n] = true
			}
		}
		floor := base + rnd.Uint64N(30_000)
		b.prune(floor)
		var ranges []Range
		for n := floor + 1; n < base+42_000; n++ {
			if want[n] != b.has(n) {
				t.Fatalf("seed %d: %d is in: %v, want %v", seed, n, b.has(n), want[n])
			}
			switch last := len(ranges) - 1; {
			case !want[n]:
			case last >= 0 && ranges[last].To == n-1:
				ranges[last].To = n
			default:
				ranges = append(ranges, Range{n, n})
			}
		}
		if d := cmp.Diff(ranges, b.clone().appendRanges(nil, floor, maxEndedRanges)); d != "" {
			t.Fatalf("seed %d: -want +got\n%s", seed, d)
		}
	}
}

// TestAscending proves that ranges in any order are brought into one that has
// the same numbers.
func TestAscending(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		in := make([]Range, rnd.IntN(8))
		want := make(map[uint64]bool)
		for i := range in {
			in[i] = Range{rnd.Uint64N(40), rnd.Uint64N(40)}
			for n := in[i].From; n <= in[i].To; n++ {
				want[n] = true
			}
		}
		before := slices.Clone(in)
		out := ascending(in)
		for n := range uint64(41) {
			if contains(out, n) != want[n] {
				t.Fatalf("%v: %d is in %v: %v", in, n, out, !want[n])
			}
		}
		if !slices.Equal(before, in) {
			t.Fatal("the argument has changed")
		}
	}
}
