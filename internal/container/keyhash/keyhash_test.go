package keyhash

import (
	"math/bits"
	"math/rand/v2"
	"testing"
)

// fullest returns the most of the n hashes that share their top bits, and their low
// bits, where there are n places.
func fullest(n int, hash func(i uint64) uint64) (top, low int) {
	places := uint64(1) << bits.Len(uint(n-1))
	high, bottom := make([]int, places), make([]int, places)
	for i := range uint64(n) {
		h := hash(i)
		high[h>>(64-bits.Len64(places-1))]++
		bottom[h&(places-1)]++
	}
	for p := range places {
		top, low = max(top, high[p]), max(low, bottom[p])
	}
	return top, low
}

// TestStructured: numbers that differ in a few bits only, wherever these are, or that
// another hash would send to one place, do not crowd in one place.
func TestStructured(t *testing.T) {
	const golden = 0x9e3779b97f4a7c15 // of multiplicative hashes
	const n, most = 1 << 16, 32
	random := rand.Uint64()
	keys := map[string]func(k Key, i uint64) uint64{
		"low bits":        func(k Key, i uint64) uint64 { return k.Sum(i) },
		"middle bits":     func(k Key, i uint64) uint64 { return k.Sum(i << 20) },
		"high bits":       func(k Key, i uint64) uint64 { return k.Sum(i << 48) },
		"multiples":       func(k Key, i uint64) uint64 { return k.Sum(i * golden) },
		"complements":     func(k Key, i uint64) uint64 { return k.Sum(^i) },
		"one local":       func(k Key, i uint64) uint64 { return k.Pair(random, i) },
		"one parent":      func(k Key, i uint64) uint64 { return k.Pair(i, 7) },
		"equal sums":      func(k Key, i uint64) uint64 { return k.Pair(random-i, i) },
		"equal xors":      func(k Key, i uint64) uint64 { return k.Pair(random^i, i) },
		"equal multiples": func(k Key, i uint64) uint64 { return k.Pair(random^i*golden, i) },
	}
	for name, hash := range keys {
		k := New()
		if top, low := fullest(n, func(i uint64) uint64 { return hash(k, i) }); top > most || low > most {
			t.Errorf("%s: %d of %d hashes share a place by their top bits, %d by their low bits (key %v)", name, top, n, low, k)
		}
	}
}

// TestSecret: numbers that meet under a key which is known are spread by another one:
// who does not know the key cannot choose them.
func TestSecret(t *testing.T) {
	const n = 1 << 12
	known, secret := New(), New()
	var chosen []uint64
	for x := rand.Uint64(); len(chosen) < n; x++ {
		if known.Sum(x)>>56 == 7 {
			chosen = append(chosen, x)
		}
	}
	if top, _ := fullest(n, func(i uint64) uint64 { return known.Sum(chosen[i]) }); top < n/256 {
		t.Fatalf("only %d numbers meet under the known key", top)
	}
	if top, low := fullest(n, func(i uint64) uint64 { return secret.Sum(chosen[i]) }); top > 32 || low > 32 {
		t.Errorf("%d and %d of %d numbers meet under a key that is not known", top, low, n)
	}
}

func BenchmarkSum(b *testing.B) {
	k, x := New(), uint64(0)
	for b.Loop() {
		x += k.Sum(x)
	}
}
