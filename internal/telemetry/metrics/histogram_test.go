package metrics

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
)

// TestBounds: the bounds of every family, spelled out at both ends.
func TestBounds(t *testing.T) {
	for _, c := range []struct {
		name                string
		bounds              []float64
		n                   int
		first, second, last float64
	}{
		{"overlap ratio", OverlapRatioBounds, 11, 0, .1, 1},
		{"foregone", ForegoneBounds, 14, 0, 1, 4096},
		{"cost spread", CostSpreadBounds, 18, 0, 1, 65536},
		{"wait", WaitBounds, 18, .001, .002, 131.072},
		{"lag", LagBounds, 18, .0005, .001, 65.536},
		{"requests", RequestBounds, 20, .0001, .0002, 52.4288},
	} {
		b := c.bounds
		if len(b) != c.n || b[0] != c.first || b[1] != c.second || b[len(b)-1] != c.last || !slices.IsSorted(b) {
			t.Errorf("%s: %v", c.name, b)
		}
	}
}

// TestHistogram compares counts with those of a plain loop over the values; a
// bound belongs to the bucket below it.
func TestHistogram(t *testing.T) {
	bounds := []float64{0, 1, 2, 4}
	values := []float64{0, 1, 1.5, 2, 4, 4.5, -1, math.MaxFloat64, math.Inf(1)}
	for range 1000 {
		values = append(values, float64(rand.IntN(12))/2)
	}
	h := NewHistogram(bounds)
	for _, v := range values {
		h.Observe(v)
	}
	count, sum, upTo := h.read()
	if count != uint64(len(values)) || h.Count() != count || !math.IsInf(sum, 1) {
		t.Errorf("count %d, sum %v of %d values", count, sum, len(values))
	}
	for _, b := range bounds {
		want := uint64(0)
		for _, v := range values {
			if v <= b {
				want++
			}
		}
		if upTo[b] != want {
			t.Errorf("up to %v: %d, want %d", b, upTo[b], want)
		}
	}
}

// TestHistogramInParallel: nothing is lost, and what a reader sees adds up.
func TestHistogramInParallel(t *testing.T) {
	const writers, each = 4, 2000
	h, total := NewHistogram([]float64{1, 2}), NewHistogram([]float64{1, 2})
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for range each {
				h.Observe(float64(w))
			}
		})
	}
	for range 100 {
		count, _, upTo := h.read()
		if upTo[1] > upTo[2] || upTo[2] > count {
			t.Fatalf("%d, %v", count, upTo)
		}
	}
	wg.Wait()
	total.Add(h)
	total.Add(h)
	count, sum, upTo := total.read()
	if count != 2*writers*each || sum != 2*each*(0+1+2+3) || upTo[1] != 2*2*each || upTo[2] != 2*3*each {
		t.Errorf("count %d, sum %v, %v", count, sum, upTo)
	}
}
