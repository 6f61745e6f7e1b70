package selector_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/select-service/select-service/pkg/selector"
)

// draw counts the choices of n draws.
func draw(costs []float64, temperature float64, n int) []int {
	rnd := rand.New(rand.NewPCG(11, 12))
	count := make([]int, len(costs))
	for range n {
		count[selector.Pick(costs, temperature, rnd)]++
	}
	return count
}

// TestPickDistribution compares many draws with the expected chances by the
// chi-square statistic: below 16.3 with probability 0.999 for up to 3 degrees
// of freedom, and the seed is fixed.
func TestPickDistribution(t *testing.T) {
	const n = 60000
	e := math.Exp
	tests := map[string]struct {
		costs       []float64
		temperature float64
		want        []float64 // proportional
	}{
		"costs 4 5 6 at 1":        {[]float64{4, 5, 6}, 1, []float64{0.506480, 0.307196, 0.186324}},
		"two at 0.05":             {[]float64{7, 3}, 0.05, []float64{e(-20), 1}},
		"two at 5":                {[]float64{1, 1e9}, 5, []float64{1, e(-0.2)}},
		"all equal at 1":          {[]float64{2, 2, 2}, 1, []float64{1, 1, 1}},
		"all equal at 0":          {[]float64{2, 2, 2, 2}, 0, []float64{1, 1, 1, 1}},
		"tie for the lowest":      {[]float64{9, 3, 5, 3}, 0, []float64{0, 1, 0, 1}},
		"late tie":                {[]float64{5, 3, 4, 3}, 0, []float64{0, 1, 0, 1}},
		"one lowest":              {[]float64{9, 3, 5, 4}, 0, []float64{0, 1, 0, 0}},
		"lowest first":            {[]float64{1, 3, 5, 4}, 0, []float64{1, 0, 0, 0}},
		"widest spread":           {[]float64{0, math.MaxFloat64}, 1, []float64{1, e(-1)}},
		"spread beyond the range": {[]float64{-math.MaxFloat64, math.MaxFloat64}, 1, []float64{1, e(-1)}},
		"smallest spread":         {[]float64{0, math.SmallestNonzeroFloat64}, 1, []float64{1, e(-1)}},
		"smallest temperature":    {[]float64{3, 2, 1}, math.SmallestNonzeroFloat64, []float64{0, 0, 1}},
		"largest temperature":     {[]float64{1, 2, 3}, math.MaxFloat64, []float64{1, 1, 1}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var sum, chi float64
			for _, weight := range tc.want {
				sum += weight
			}
			got := draw(tc.costs, tc.temperature, n)
			for i, count := range got {
				expected := n * tc.want[i] / sum
				if expected < 0.01 {
					if count > 0 {
						t.Errorf("cost %d was chosen %d times", i, count)
					}
					continue
				}
				chi += (float64(count) - expected) * (float64(count) - expected) / expected
			}
			if chi > 16.3 {
				t.Errorf("choices %v do not follow %v: chi-square %.1f", got, tc.want, chi)
			}
		})
	}
}

func TestPickFromNothing(t *testing.T) {
	if got := selector.Pick(nil, 0, selector.Global()); got != -1 {
		t.Errorf("Pick of no costs = %d, want -1", got)
	}
	for _, temperature := range []float64{0, 1} {
		if got := selector.Pick([]float64{3}, temperature, selector.Global()); got != 0 {
			t.Errorf("Pick of one cost = %d, want 0", got)
		}
	}
}

// upper is a source whose numbers are as large as they get.
type upper struct{}

func (upper) IntN(n int) int   { return n - 1 }
func (upper) Float64() float64 { return math.Nextafter(1, 0) }

// TestPickUpperEnd: rounding of the sum never leads past the candidates.
func TestPickUpperEnd(t *testing.T) {
	costs := []float64{3, 1, 2, 1, 1e300}
	if got := selector.Pick(costs, 0, upper{}); got != 3 {
		t.Errorf("last of the ties = %d, want 3", got)
	}
	if got := selector.Pick(costs, 1e-9, upper{}); got < 0 || got >= len(costs) {
		t.Errorf("Pick = %d", got)
	}
}

// FuzzPick: for finite costs the choice is a candidate, and at temperature 0 a
// lowest one.
func FuzzPick(f *testing.F) {
	f.Add(0.0, 0.0, 1.0, 0.0, uint64(1))
	f.Add(-math.MaxFloat64, 0.0, math.MaxFloat64, 1e-300, uint64(2))
	f.Fuzz(func(t *testing.T, a, b, c, temperature float64, seed uint64) {
		costs := []float64{a, b, c, a}
		for _, v := range append(costs, temperature) {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				t.Skip()
			}
		}
		i := selector.Pick(costs, temperature, rand.New(rand.NewPCG(seed, 1)))
		if i < 0 || i >= len(costs) {
			t.Fatalf("picked %d", i)
		}
		if temperature == 0 && costs[i] != min(a, b, c) {
			t.Fatalf("picked %v of %v", costs[i], costs)
		}
	})
}

func BenchmarkPick(b *testing.B) {
	for _, ranks := range []int{8, 64, 256, 1024} {
		for _, temperature := range []float64{0, 1} {
			b.Run(fmt.Sprintf("ranks=%d/temperature=%v", ranks, temperature), func(b *testing.B) {
				rnd := rand.New(rand.NewPCG(13, 14))
				costs := make([]float64, ranks)
				for i := range costs {
					costs[i] = rnd.Float64() * 100
				}
				b.ReportAllocs()
				for b.Loop() {
					selector.Pick(costs, temperature, rnd)
				}
			})
		}
	}
}
