package selector_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/select-service/select-service/pkg/selector"
)

// sixteen is the prompt of most worked numbers of the contract: 4 blocks of 4.
var sixteen = selector.Prompt{Tokens: 16, Blocks: 4, BlockSize: 4}

func weights(change func(*selector.Weights)) selector.Weights {
	w := selector.DefaultWeights()
	if change != nil {
		change(&w)
	}
	return w
}

func known(c selector.Candidate) selector.Candidate {
	c.Known = true
	return c
}

func near(a, b float64) bool {
	return a == b || math.Abs(a-b) <= 1e-9*math.Max(math.Abs(a), math.Abs(b))
}

// TestCosts holds the cost function against the contract's worked numbers and
// those of the recorded cases, named in each entry.
func TestCosts(t *testing.T) {
	eight := selector.Prompt{Tokens: 8, Blocks: 2, BlockSize: 4}
	tests := map[string]struct {
		weights selector.Weights
		prompt  selector.Prompt
		cands   []selector.Candidate
		want    []float64
	}{
		"overlap against load: idle": {
			weights(nil), sixteen,
			[]selector.Candidate{{Device: 3}, {}},
			[]float64{5, 8},
		},
		"overlap against load: 2 active": {
			weights(nil), sixteen,
			[]selector.Candidate{{Device: 3, Active: 2}, {}},
			[]float64{7, 8},
		},
		"overlap against load: 4 active": {
			weights(nil), sixteen,
			[]selector.Candidate{{Device: 3, Active: 4}, {}},
			[]float64{9, 8},
		},
		"overlap against load: scale 2": {
			weights(func(w *selector.Weights) { w.PrefillScale = 2 }), sixteen,
			[]selector.Candidate{{Device: 3, Active: 4}, {}},
			[]float64{10, 12},
		},
		"overlap against load: credit 0": {
			weights(func(w *selector.Weights) { w.OverlapCredit = 0 }), sixteen,
			[]selector.Candidate{{Device: 3, Active: 4}, {}},
			[]float64{12, 8},
		},
		"credit half": {
			weights(func(w *selector.Weights) { w.OverlapCredit = 0.5 }), sixteen,
			[]selector.Candidate{{Device: 3, Active: 1}, {Device: 3, Active: 2}, {}},
			[]float64{7.5, 8.5, 8},
		},
		"credit decay: excess 2": {
			weights(func(w *selector.Weights) { w.CreditDecay = 1 }), sixteen,
			[]selector.Candidate{{Device: 4, Prefill: 8}, {}},
			[]float64{6 - 4/1.5 + 4, 8},
		},
		"credit decay: excess 3": {
			weights(func(w *selector.Weights) { w.CreditDecay = 1 }), sixteen,
			[]selector.Candidate{{Device: 4, Prefill: 12}, {}},
			[]float64{7 - 4/1.75 + 4, 8},
		},
		"credit decay: excess over the least loaded": {
			weights(func(w *selector.Weights) { w.CreditDecay = 1 }), sixteen,
			[]selector.Candidate{{Device: 4, Prefill: 12}, {Prefill: 8}},
			[]float64{7 - 4/1.25 + 4, 10},
		},
		"credit decay: only the device's": {
			weights(func(w *selector.Weights) { w.CreditDecay = 1 }), sixteen,
			[]selector.Candidate{{Host: 4, Prefill: 8}, {}},
			[]float64{6 - 3 + 4, 8},
		},
		"tier weights": {
			weights(nil), sixteen,
			[]selector.Candidate{{Device: 1}, {Host: 2}, {Disk: 3}},
			[]float64{7, 6.5, 7.25},
		},
		"least decode load": {
			weights(nil), eight,
			[]selector.Candidate{{}, {Active: 1}, {Active: 2}},
			[]float64{4, 5, 6},
		},
		"prefill scale 2": {
			weights(func(w *selector.Weights) { w.PrefillScale = 2 }), eight,
			[]selector.Candidate{{Prefill: 8}, {Active: 3}},
			[]float64{10, 9},
		},
		"prefill scale 1": {
			weights(nil), eight,
			[]selector.Candidate{{Prefill: 8}, {Active: 3}},
			[]float64{6, 7},
		},
		"tracking off takes the whole prefill part, credits included": {
			weights(func(w *selector.Weights) { w.TrackPrefill = false; w.CreditDecay = 1 }), eight,
			[]selector.Candidate{{Prefill: 8, Device: 2}, {Active: 1}},
			[]float64{2, 3},
		},
		"active prefix is not counted twice": {
			weights(nil),
			selector.Prompt{Tokens: 12, Blocks: 3, BlockSize: 4},
			[]selector.Candidate{{Active: 3, Shared: 3}, {Active: 2}},
			[]float64{6, 8},
		},
		"empty prompt: load alone": {
			weights(func(w *selector.Weights) { w.CreditDecay = 1 }),
			selector.Prompt{BlockSize: 4},
			[]selector.Candidate{{Prefill: 4, Active: 1}, {}},
			[]float64{2, 0},
		},
		"cache longer than the prompt": {
			weights(nil),
			selector.Prompt{Tokens: 3, Blocks: 1, BlockSize: 2},
			[]selector.Candidate{{Device: 4, Prefill: 2}},
			[]float64{5 - 4 + 1},
		},
		"partial last block is prefill, not decode": {
			weights(nil),
			selector.Prompt{Tokens: 6, Blocks: 1, BlockSize: 4},
			[]selector.Candidate{{}},
			[]float64{1.5 + 1},
		},
		"preferred taint": {
			weights(nil), eight,
			[]selector.Candidate{
				{Active: 2, Taint: math.Exp(-math.Tanh(0.4))},
				{Active: 2, Taint: math.Exp(-math.Tanh(0.5))},
				{Taint: 1},
			},
			[]float64{6 * math.Exp(-math.Tanh(0.4)), 6 * math.Exp(-math.Tanh(0.5)), 4},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for i := range tc.cands {
				tc.cands[i].Known = true
			}
			got := tc.weights.Costs(tc.prompt, tc.cands, nil)
			if len(got) != len(tc.want) {
				t.Fatalf("%d costs, want %d", len(got), len(tc.want))
			}
			for i := range got {
				if !near(got[i], tc.want[i]) {
					t.Errorf("cost %d = %v, want %v", i, got[i], tc.want[i])
				}
			}
		})
	}
}

// TestCostsUnknownRank: a rank that the ledger does not know yet is charged the
// prompt's prefill and no decode, and counts as idle for the decay.
func TestCostsUnknownRank(t *testing.T) {
	w := weights(func(w *selector.Weights) { w.CreditDecay = 1 })
	got := w.Costs(sixteen, []selector.Candidate{
		{Prefill: 99, Active: 99},
		known(selector.Candidate{Device: 4, Prefill: 8}),
	}, nil)
	if want := 6 - 4/1.5 + 4; got[0] != 4 || !near(got[1], want) {
		t.Errorf("costs = %v, want [4 %v]", got, want)
	}
	w.TrackPrefill = false
	if got := w.Costs(sixteen, []selector.Candidate{{}}, got); len(got) != 1 || got[0] != 0 {
		t.Errorf("costs without tracking = %v, want [0]", got)
	}
}

// TestEffectivePrefill covers the contract's rounding numbers; the overlap
// credit has no part in them.
func TestEffectivePrefill(t *testing.T) {
	tests := map[string]struct {
		prompt selector.Prompt
		cand   selector.Candidate
		want   uint64
	}{
		"three tiers":              {sixteen, selector.Candidate{Device: 1, Host: 1, Disk: 2}, 7},
		"1.5 rounds away from 0":   {selector.Prompt{Tokens: 9, Blocks: 3, BlockSize: 3}, selector.Candidate{Disk: 2}, 7},
		"0.75 rounds up":           {selector.Prompt{Tokens: 3, Blocks: 1, BlockSize: 3}, selector.Candidate{Disk: 1}, 2},
		"cache beyond the prompt":  {selector.Prompt{Tokens: 3, Blocks: 1, BlockSize: 2}, selector.Candidate{Device: 9}, 0},
		"device and host":          {sixteen, selector.Candidate{Device: 1, Host: 1}, 9},
		"host alone":               {sixteen, selector.Candidate{Host: 2}, 10},
		"disk alone":               {sixteen, selector.Candidate{Disk: 3}, 13},
		"nothing cached":           {sixteen, selector.Candidate{}, 16},
		"empty prompt":             {selector.Prompt{BlockSize: 4}, selector.Candidate{Device: 2}, 0},
		"largest numbers saturate": {selector.Prompt{Tokens: math.MaxUint64, BlockSize: math.MaxUint32}, selector.Candidate{Device: math.MaxUint32, Host: math.MaxUint32, Disk: math.MaxUint32}, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for _, credit := range []float64{1, 0.5, 0} {
				w := weights(func(w *selector.Weights) { w.OverlapCredit = credit })
				if got := w.EffectivePrefill(tc.prompt, &tc.cand); got != tc.want {
					t.Errorf("credit %v: EffectivePrefill = %d, want %d", credit, got, tc.want)
				}
			}
		})
	}
}

func TestCreditBlocks(t *testing.T) {
	w := weights(nil)
	c := selector.Candidate{Device: 3, Host: 2, Disk: 4}
	if got := w.CreditBlocks(&c); got != 5.5 {
		t.Errorf("CreditBlocks = %v, want 5.5", got)
	}
	w.OverlapCredit = 0.5
	if got := w.CreditBlocks(&c); got != 4 {
		t.Errorf("CreditBlocks at credit 0.5 = %v, want 4", got)
	}
}

// TestPotentialLoads has the numbers of the potential-loads cases.
func TestPotentialLoads(t *testing.T) {
	w := weights(nil)
	c := selector.Candidate{Device: 1, Host: 1, Prefill: 3, Active: 1}
	if p, d := w.PotentialPrefill(sixteen, &c), selector.PotentialDecode(sixteen, &c); p != 12 || d != 5 {
		t.Errorf("potential loads = %d, %d, want 12, 5", p, d)
	}
	w.TrackPrefill = false
	if p := w.PotentialPrefill(sixteen, &c); p != 3 {
		t.Errorf("potential prefill without tracking = %d, want 3", p)
	}
	full := selector.Candidate{Prefill: math.MaxUint64, Active: math.MaxUint64}
	w.TrackPrefill = true
	if p, d := w.PotentialPrefill(sixteen, &full), selector.PotentialDecode(sixteen, &full); p != math.MaxUint64 || d != math.MaxUint64 {
		t.Errorf("potential loads do not saturate: %d, %d", p, d)
	}
	shared := selector.Candidate{Active: 7, Shared: 9}
	if d := selector.PotentialDecode(sixteen, &shared); d != 7 {
		t.Errorf("shared beyond the prompt: %d, want 7", d)
	}
}

// naiveCost is the contract's formula, letter by letter.
func naiveCost(w selector.Weights, p selector.Prompt, all []selector.Candidate, c selector.Candidate) float64 {
	B, L, P, A := float64(p.BlockSize), float64(p.Tokens), float64(c.Prefill), float64(c.Active)
	G, H, D, N, S := float64(c.Device), float64(c.Host), float64(c.Disk), float64(p.Blocks), float64(c.Shared)
	R := math.Max(1, math.Ceil(L/B))
	cached := math.Round(B * (G + w.Host*H + w.Disk*D))
	raw := (P + L) / B
	if cached > L {
		raw = (P + cached) / B
	}
	pmin := math.Inf(1)
	for _, other := range all {
		pmin = math.Min(pmin, float64(other.Prefill))
	}
	decayed := 1 / (1 + w.CreditDecay*((P-pmin)/B)/R)
	if !w.TrackPrefill {
		raw, decayed = 0, 1
	}
	credit := w.OverlapCredit*decayed*G + w.Host*H + w.Disk*D
	prefill := w.PrefillScale * math.Max(0, raw-credit)
	base := prefill + A + (N - S)
	if w.PrefixOnly && !w.TrackPrefill && w.OverlapCredit > 0 {
		base = math.Max(0, A+(N-S)-credit)
	}
	return (base + w.ActiveRequests*float64(c.Requests)) * c.Taint
}

func randomCase(rnd *rand.Rand) (selector.Weights, selector.Prompt, []selector.Candidate) {
	w := selector.Weights{
		OverlapCredit: rnd.Float64(), CreditDecay: float64(rnd.IntN(3)), Host: rnd.Float64(), Disk: rnd.Float64(),
		PrefillScale: rnd.Float64() * 4, TrackPrefill: rnd.IntN(4) != 0,
		ActiveRequests: float64(rnd.IntN(3)), PrefixOnly: rnd.IntN(2) == 0,
	}
	switch rnd.IntN(4) {
	case 0:
		w.OverlapCredit = 0
	case 1:
		w.OverlapCredit *= 3 // the contract of 1.6.1 has no upper limit
	}
	p := selector.Prompt{Tokens: uint64(rnd.IntN(5000)), BlockSize: uint32(1 + rnd.IntN(64))}
	p.Blocks = int(p.Tokens / uint64(p.BlockSize))
	cands := make([]selector.Candidate, 1+rnd.IntN(20))
	for i := range cands {
		device := rnd.IntN(p.Blocks + 3)
		cands[i] = selector.Candidate{
			Device: uint32(device), Host: uint32(rnd.IntN(10)), Disk: uint32(rnd.IntN(10)),
			Prefill: uint64(rnd.IntN(20000)), Active: uint64(rnd.IntN(500)), Shared: uint32(rnd.IntN(p.Blocks + 1)),
			Known: true, Taint: 0.4 + rnd.Float64()*2, Requests: rnd.Uint32N(30),
		}
	}
	return w, p, cands
}

// TestCostsAgainstFormula compares with the literal formula on random inputs.
func TestCostsAgainstFormula(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var got []float64
	for range 20000 {
		w, p, cands := randomCase(rnd)
		got = w.Costs(p, cands, got)
		for i, c := range cands {
			if want := naiveCost(w, p, cands, c); !near(got[i], want) && math.Abs(got[i]-want) > 1e-9 {
				t.Fatalf("cost = %v, the formula says %v\n%+v\n%+v\n%+v", got[i], want, w, p, c)
			}
		}
	}
}

// TestCostsProperties: equal candidates cost exactly the same wherever they
// stand, and more load never makes a rank cheaper.
func TestCostsProperties(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 5000 {
		w, p, cands := randomCase(rnd)
		// One idle rank holds the least prefill load fixed, and so the decay.
		cands = append(cands, known(selector.Candidate{Taint: 1}))
		c := cands[0]
		same, active, prefill := c, c, c
		active.Active += 1 + uint64(rnd.IntN(10))
		prefill.Prefill += 1 + uint64(rnd.IntN(1000))
		got := w.Costs(p, append(cands, same, active, prefill), nil)
		base, got := got[0], got[len(cands):]
		if got[0] != base {
			t.Fatalf("equal candidates cost %v and %v", base, got[0])
		}
		if got[1] < base || got[2] < base {
			t.Fatalf("costs %v with load added, %v without\n%+v\n%+v\n%+v", got[1:], base, w, p, c)
		}
	}
}

func TestCostsDoesNotAllocate(t *testing.T) {
	w, p, cands := randomCase(rand.New(rand.NewPCG(5, 6)))
	dst := make([]float64, 0, len(cands))
	rnd := rand.New(rand.NewPCG(7, 8))
	allocs := testing.AllocsPerRun(100, func() {
		dst = w.Costs(p, cands, dst)
		selector.Pick(dst, 0, rnd)
		selector.Pick(dst, 1, rnd)
	})
	if allocs != 0 {
		t.Errorf("%v allocations per call, want 0", allocs)
	}
}

// FuzzCosts: whatever the loads, costs are finite and not negative and the
// choice is one of the candidates.
func FuzzCosts(f *testing.F) {
	f.Add(1.0, 0.0, 1.0, 0.0, true, uint64(16), 4, uint32(4), uint32(3), uint32(0), uint32(0), uint64(0), uint64(0), uint32(0), uint64(1))
	f.Add(1.0, 1e308, 1e308, 1e-320, true, uint64(math.MaxUint64), math.MaxInt64, uint32(0), uint32(math.MaxUint32), uint32(math.MaxUint32), uint32(math.MaxUint32), uint64(math.MaxUint64), uint64(math.MaxUint64), uint32(0), uint64(2))
	f.Fuzz(func(t *testing.T, credit, decay, scale, temperature float64, track bool, tokens uint64, blocks int, block, device, host, disk uint32, prefill, active uint64, shared uint32, seed uint64) {
		w, err := selector.DefaultWeights().With(selector.Override{
			OverlapCredit: &credit, PrefillScale: &scale, Temperature: &temperature, TrackPrefill: &track,
		})
		if err != nil || !(decay >= 0) || math.IsInf(decay, 1) {
			t.Skip()
		}
		w.CreditDecay = decay
		p := selector.Prompt{Tokens: tokens, Blocks: blocks, BlockSize: block}
		c := selector.Candidate{Device: device, Host: host, Disk: disk, Prefill: prefill, Active: active, Shared: shared, Known: true}
		low := c
		low.Prefill, low.Taint = prefill/2, math.Exp(1)
		costs := w.Costs(p, []selector.Candidate{c, low, {}, {Known: true}}, nil)
		for _, cost := range costs {
			if math.IsNaN(cost) || math.IsInf(cost, 0) || cost < 0 {
				t.Fatalf("cost %v", cost)
			}
		}
		if i := selector.Pick(costs, w.Temperature, rand.New(rand.NewPCG(seed, 0))); i < 0 || i >= len(costs) {
			t.Fatalf("picked %d of %d", i, len(costs))
		}
		if got := w.EffectivePrefill(p, &c); got > tokens {
			t.Fatalf("effective prefill %d of %d tokens", got, tokens)
		}
	})
}

func BenchmarkCosts(b *testing.B) {
	for _, ranks := range []int{8, 64, 256, 1024} {
		for _, decay := range []float64{0, 1} {
			b.Run(fmt.Sprintf("ranks=%d/decay=%v", ranks, decay), func(b *testing.B) {
				rnd := rand.New(rand.NewPCG(9, 10))
				cands := make([]selector.Candidate, ranks)
				for i := range cands {
					cands[i] = known(selector.Candidate{Device: rnd.Uint32N(64), Prefill: rnd.Uint64N(9999), Active: rnd.Uint64N(999)})
				}
				w := weights(func(w *selector.Weights) { w.CreditDecay = decay })
				p := selector.Prompt{Tokens: 8192, Blocks: 512, BlockSize: 16}
				var costs []float64
				b.ReportAllocs()
				for b.Loop() {
					costs = w.Costs(p, cands, costs)
				}
			})
		}
	}
}
