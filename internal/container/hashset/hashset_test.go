package hashset

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// TestChainRepeats compares the reused set with a map, over chains of changing
// lengths and over the end of the round counter.
func TestChainRepeats(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	var s Set
	s.Reset(300)
	s.round = math.MaxUint32 - 500
	for range 1000 {
		hashes := make([]uint64, 1+rnd.IntN(300))
		for i := range hashes {
			hashes[i] = rnd.Uint64N(20_000) << 40 // few repeats, and all low bits equal
		}
		parent, hasParent := rnd.Uint64N(20_000)<<40, rnd.IntN(2) == 0
		seen, want := map[uint64]bool{}, false
		if hasParent {
			seen[parent] = true
		}
		for _, h := range hashes {
			want = want || seen[h]
			seen[h] = true
		}
		if got := s.ChainRepeats(parent, hasParent, hashes); got != want {
			t.Fatalf("ChainRepeats(%d, %t, %v) = %t, want %t", parent, hasParent, hashes, got, want)
		}
	}
}

// TestAdd proves that a set reports each hash as new once, 0 included, and that
// Reset empties it.
func TestAdd(t *testing.T) {
	var s Set
	for _, n := range []int{3, 1, 3, 100} {
		s.Reset(n)
		for i := range uint64(n) {
			if !s.Add(i * 7) {
				t.Errorf("room for %d: %d is not new", n, i*7)
			}
		}
		for i := range uint64(n) {
			if s.Add(i * 7) {
				t.Errorf("room for %d: %d is new again", n, i*7)
			}
		}
	}
}

// TestResetReuses proves that a set which had room for as many hashes before
// does not allocate.
func TestResetReuses(t *testing.T) {
	var s Set
	s.Reset(1000)
	if n := testing.AllocsPerRun(10, func() {
		s.Reset(10)
		s.Reset(1000)
		s.Add(1)
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// TestStructuredHashes proves that hashes which differ only in a few bits,
// wherever these are, do not crowd in one place: chosen hashes must not make
// an event of 65,536 blocks take seconds.
func TestStructuredHashes(t *testing.T) {
	const n = 1 << 16
	rnd := rand.New(rand.NewPCG(7, 8))
	for _, left := range []uint{0, 16, 32, 48} {
		t.Run(fmt.Sprint(left), func(t *testing.T) {
			s := Set{factor: rnd.Uint64() | 1}
			s.Reset(n)
			longest := 0
			for i := range uint64(n) {
				h := i << left
				home := int(h * s.factor >> s.shift)
				s.Add(h)
				probes, mask := 1, len(s.slots)-1
				for j := home; s.slots[j].hash != h; j = (j + 1) & mask {
					probes++
				}
				longest = max(longest, probes)
			}
			if longest > n/8 {
				t.Errorf("a hash is %d slots from its place", longest)
			}
		})
	}
}

func BenchmarkChainRepeats(b *testing.B) {
	for _, n := range []int{16, 512, 16384} {
		b.Run(fmt.Sprintf("hashes=%d", n), func(b *testing.B) {
			hashes := make([]uint64, n)
			for i := range hashes {
				hashes[i] = rand.Uint64()
			}
			var s Set
			b.ReportAllocs()
			for b.Loop() {
				s.ChainRepeats(1, true, hashes)
			}
		})
	}
}
