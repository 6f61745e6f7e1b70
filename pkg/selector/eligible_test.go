package selector_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/select-service/select-service/pkg/selector"
)

func taints(names ...string) func(string) bool {
	return func(name string) bool { return slices.Contains(names, name) }
}

func TestEligible(t *testing.T) {
	tests := map[string]struct {
		allowed  []uint64
		required []string
		worker   uint64
		taints   []string
		want     bool
	}{
		"no constraint":        {nil, nil, 7, nil, true},
		"empty list is none":   {[]uint64{}, nil, 7, nil, false},
		"listed":               {[]uint64{9, 7, 7, 1}, nil, 7, nil, true},
		"not listed":           {[]uint64{9, 1}, nil, 7, nil, false},
		"taint missing":        {nil, []string{"a"}, 7, []string{"b"}, false},
		"taint present":        {nil, []string{"a"}, 7, []string{"b", "a"}, true},
		"all taints needed":    {nil, []string{"b", "a"}, 7, []string{"a"}, false},
		"listed, no taint":     {[]uint64{7}, []string{"a"}, 7, nil, false},
		"listed, with taint":   {[]uint64{7}, []string{"a", "a"}, 7, []string{"a"}, true},
		"taint but not listed": {[]uint64{8}, []string{"a"}, 7, []string{"a"}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := selector.NewFilter(tc.allowed, tc.required)
			if got := f.Eligible(tc.worker, taints(tc.taints...)); got != tc.want {
				t.Errorf("Eligible = %v, want %v", got, tc.want)
			}
		})
	}
	var zero selector.Filter
	if !zero.Eligible(7, taints()) {
		t.Error("the zero filter rejects a worker")
	}
}

func TestCheckPinned(t *testing.T) {
	f := selector.NewFilter([]uint64{1}, nil)
	if err := f.CheckPinned(1); err != nil {
		t.Errorf("allowed pin: %v", err)
	}
	err := f.CheckPinned(12)
	var pinned *selector.PinnedError
	if !errors.As(err, &pinned) || err.Error() != "pinned worker 12 is not in allowed worker set" {
		t.Errorf("CheckPinned = %v", err)
	}
}

// TestFilterKey: the key tells filters apart by what they admit, not by how
// they were written down.
func TestFilterKey(t *testing.T) {
	long := make([]uint64, 3000)
	for i := range long {
		long[i] = uint64(i)
	}
	other := slices.Clone(long)
	other[2999] = math.MaxUint64
	filters := []selector.Filter{
		selector.NewFilter(nil, nil),
		selector.NewFilter([]uint64{}, nil),
		selector.NewFilter([]uint64{1}, nil),
		selector.NewFilter([]uint64{1, 2}, nil),
		selector.NewFilter(nil, []string{"a"}),
		selector.NewFilter(nil, []string{"a", "b"}),
		selector.NewFilter(nil, []string{"ab"}),
		selector.NewFilter([]uint64{1}, []string{"a"}),
		selector.NewFilter(long, nil),
		selector.NewFilter(other, nil),
	}
	seen := map[string]int{}
	for i := range filters {
		key := filters[i].Key()
		if before, found := seen[key]; found {
			t.Errorf("filters %d and %d have the same key", before, i)
		}
		seen[key] = i
	}
	if filters[0].Key() != "" {
		t.Error("the filter without constraints has a key")
	}
	a := selector.NewFilter([]uint64{2, 1, 1}, []string{"y", "x"})
	b := selector.NewFilter([]uint64{1, 2}, []string{"x", "y", "y"})
	if a.Key() != b.Key() {
		t.Error("equal filters have different keys")
	}
}

// TestTaintFactor has the contract's numbers: cost 6 against 4.
func TestTaintFactor(t *testing.T) {
	tests := map[string]struct {
		preferred map[string]float32
		want      float64
	}{
		"none":          {nil, 1},
		"no match":      {map[string]float32{"y": 3}, 1},
		"0.4":           {map[string]float32{"x": 0.4}, 4.10 / 6},
		"0.5":           {map[string]float32{"x": 0.5, "y": 9}, 3.78 / 6},
		"sum":           {map[string]float32{"x": 0.25, "z": 0.25}, 3.78 / 6},
		"repels":        {map[string]float32{"x": -1}, math.Exp(math.Tanh(1))},
		"upper bound":   {map[string]float32{"x": 1e30}, 0.367879},
		"lower bound":   {map[string]float32{"x": -1e30}, 2.718282},
		"infinite":      {map[string]float32{"x": float32(math.Inf(1)), "z": 1}, 0.367879},
		"not a number":  {map[string]float32{"x": float32(math.NaN())}, 1},
		"opposites":     {map[string]float32{"x": 1, "z": -1}, 1},
		"inf minus inf": {map[string]float32{"x": float32(math.Inf(1)), "z": float32(math.Inf(-1))}, 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := selector.TaintFactor(tc.preferred, taints("x", "z")); math.Abs(got-tc.want) > 1e-3 {
				t.Errorf("TaintFactor = %v, want %v", got, tc.want)
			}
		})
	}
}

// TestTaintFactorIsRepeatable: the map's random order has no part in the
// result, or equal workers would not tie.
func TestTaintFactorIsRepeatable(t *testing.T) {
	preferred := map[string]float32{}
	for i := range 12 {
		preferred[fmt.Sprint(i)] = float32(math.Pow(10, float64(i-9)))
	}
	all := func(string) bool { return true }
	want := selector.TaintFactor(preferred, all)
	for range 200 {
		if got := selector.TaintFactor(preferred, all); got != want {
			t.Fatalf("TaintFactor = %v, before %v", got, want)
		}
	}
}

func TestSummary(t *testing.T) {
	p := selector.Prompt{Tokens: 64, Blocks: 16, BlockSize: 4}
	var s selector.Summary
	ranks := []selector.Candidate{{Device: 1, Host: 1, Disk: 2}, {Device: 3}, {Host: 1}}
	for i := range ranks {
		s.Add(p, &ranks[i])
	}
	if want := (selector.Summary{Longest: 16, GPU: 12, CPU: 12, Disk: 16}); s != want {
		t.Errorf("Summary = %+v, want %+v", s, want)
	}
	huge := selector.Candidate{Device: math.MaxUint32, Host: math.MaxUint32, Disk: math.MaxUint32}
	s.Add(selector.Prompt{BlockSize: math.MaxUint32}, &huge)
	if s.GPU != math.MaxUint32 || s.Longest != math.MaxUint32 {
		t.Errorf("Summary does not saturate: %+v", s)
	}
	if got := selector.DeviceTokens(p, &ranks[1]); got != 12 {
		t.Errorf("DeviceTokens = %d, want 12", got)
	}
}

// BenchmarkFilter is a request with 10,000 allowed ids in random order against
// 64 workers.
func BenchmarkFilter(b *testing.B) {
	ids := make([]uint64, 10000)
	rnd := rand.New(rand.NewPCG(15, 16))
	for i := range ids {
		ids[i] = rnd.Uint64()
	}
	scratch := make([]uint64, len(ids))
	b.ReportAllocs()
	for b.Loop() {
		copy(scratch, ids)
		f := selector.NewFilter(scratch, nil)
		for w := range uint64(64) {
			f.Eligible(w, nil)
		}
	}
}
