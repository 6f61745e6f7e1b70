package kvevents

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestRepeats compares the reused hash set with a plain map, over events of
// changing sizes and over the end of its round counter.
func TestRepeats(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	var s scratch
	s.begin(300)
	s.round = math.MaxUint32 - 500
	for range 1000 {
		names := make([]uint64, 1+rnd.IntN(300))
		for i := range names {
			names[i] = rnd.Uint64N(20_000) << 40 // few repeats, and all low bits equal
		}
		ev := Event{Names: names, Parent: rnd.Uint64N(20_000) << 40, HasParent: rnd.IntN(2) == 0}
		seen, want := map[uint64]bool{}, false
		if ev.HasParent {
			seen[ev.Parent] = true
		}
		for _, name := range names {
			want = want || seen[name]
			seen[name] = true
		}
		if got := s.repeats(&ev); got != want {
			t.Fatalf("repeats(%v) = %t, want %t", names, got, want)
		}
	}
}
