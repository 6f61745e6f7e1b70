package selector_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/select-service/select-service/pkg/selector"
	"github.com/select-service/select-service/pkg/selector/ttft"
)

// policies are all those of the package, each with its name.
func policies() map[string]selector.Policy {
	own := selector.DefaultWeights()
	own.OverlapCredit, own.Host, own.CreditDecay, own.ActiveRequests = 2, 1, 0.5, 3
	return map[string]selector.Policy{
		"built-in":             selector.CostFunction{},
		"own weights":          selector.CostFunction{Own: &own},
		"two-tier":             selector.DefaultTwoTier(),
		"two-tier tuned":       selector.TwoTier{CacheThreshold: 0.1, BalanceAbs: 2, BalanceRel: 1.5},
		"lmetric":              selector.LMetric{},
		"lmetric, no guard":    selector.LMetric{WithoutGuard: true},
		"round-robin":          selector.RoundRobin{},
		"random":               selector.Random{},
		"least-loaded":         selector.LeastLoaded{},
		"power-of-two-choices": selector.PowerOfTwoChoices{},
		"predicted-ttft":       &selector.PredictedTTFT{Own: own},
	}
}

// randomDecision draws facts of any size, the largest included.
func randomDecision(rnd *rand.Rand) *selector.Decision {
	size := func(most uint64) uint64 { return rnd.Uint64N(most) >> rnd.UintN(40) }
	p := selector.Prompt{BlockSize: uint32(rnd.IntN(3) * 16), Tokens: size(1 << 40)}
	p.Blocks = int(p.Tokens / uint64(max(p.BlockSize, 1)))
	w := selector.DefaultWeights()
	w.TrackPrefill, w.PrefixOnly, w.Temperature = rnd.IntN(4) > 0, rnd.IntN(2) > 0, rnd.Float64()
	d := &selector.Decision{Prompt: p, Weights: w, Turn: rnd.Uint64(), Rand: rnd}
	d.Class = selector.Class{Known: rnd.IntN(2) > 0, Share: rnd.Float64(), Streak: rnd.IntN(9)}
	for range 1 + rnd.IntN(9) {
		c := selector.Candidate{
			Device: uint32(size(1 << 32)), Host: uint32(size(1 << 32)), Disk: uint32(size(1 << 32)),
			Prefill: size(math.MaxUint64), Active: size(math.MaxUint64), Shared: uint32(size(1 << 32)),
			Known: rnd.IntN(9) > 0, Requests: uint32(size(1 << 32)),
		}
		if rnd.IntN(3) == 0 {
			c.Taint = math.Exp(2*rnd.Float64() - 1)
		}
		d.Candidates = append(d.Candidates, c)
		q := selector.Queue{
			Prefills: uint32(size(1 << 32)), Tokens: float64(size(1 << 50)), Context: float64(size(1 << 60)),
			HeadTokens: size(1 << 40), HeadPrompt: size(1 << 40), Elapsed: float64(size(1 << 30)),
			Decoding: uint32(size(1 << 32)), Prompts: float64(size(1 << 50)), Speed: 4 * rnd.Float64(), Late: rnd.IntN(4) == 0,
		}
		d.Queues = append(d.Queues, q)
	}
	d.Model = selector.Model{Parameters: ttft.Default(), Crowding: ttft.Crowding{Rate: 10 * rnd.Float64(), Long: rnd.Float64(), Ranks: 8}, Fallback: rnd.IntN(8) == 0}
	d.Model.Mature = rnd.IntN(2) == 0
	if rnd.IntN(2) == 0 {
		d.Model.PerAttended, d.Model.Output = rnd.Float64()/1e7, 1000*rnd.Float64()
	}
	return d
}

// Whatever the facts are, every policy gives every candidate a cost that is finite and
// not negative, and the terms of its reasons are, too.
func TestCostsAreFinite(t *testing.T) {
	for name, policy := range policies() {
		t.Run(name, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(1, 1))
			for range 2000 {
				d := randomDecision(rnd)
				costs := policy.Costs(d, nil)
				if len(costs) != len(d.Candidates) {
					t.Fatalf("%d costs of %d candidates", len(costs), len(d.Candidates))
				}
				for i, cost := range costs {
					r := policy.Reasons(d, i)
					for _, v := range []float64{cost, r.Wait, r.Prefill, r.Delay, r.Decode, r.Answer, r.Speed, r.Taint} {
						if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
							t.Fatalf("cost %v, reasons %+v of %+v", cost, r, d.Candidates[i])
						}
					}
				}
			}
		})
	}
}

// favoured reports whether candidate i has the lowest cost. The draws are always the same.
func favoured(policy selector.Policy, d *selector.Decision, i int) bool {
	d.Rand = rand.New(rand.NewPCG(7, 7))
	costs := policy.Costs(d, nil)
	for _, cost := range costs {
		if cost < costs[i] {
			return false
		}
	}
	return true
}

// A candidate that has more of the prompt cached stays favoured, and one that has more
// work to do does not become it. The guard of lmetric means to break the first rule.
func TestPoliciesAreMonotone(t *testing.T) {
	for name, policy := range policies() {
		t.Run(name, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(2, 2))
			for range 4000 {
				d := randomDecision(rnd)
				d.Class.Known = false
				i := rnd.IntN(len(d.Candidates))
				c := &d.Candidates[i]
				c.Host, c.Disk = 0, 0
				c.Device = uint32(min(uint64(c.Device), uint64(d.Prompt.Blocks)))
				before, was := *c, favoured(policy, d, i)
				c.Device += uint32(rnd.Uint64N(min(math.MaxUint32, uint64(d.Prompt.Blocks)) - uint64(c.Device) + 1))
				if is := favoured(policy, d, i); was && !is {
					t.Fatalf("no longer favoured with more blocks:\n%+v\n%+v", before, *c)
				}
				*c = before
				c.Prefill += rnd.Uint64N(math.MaxUint64 - c.Prefill)
				c.Active += rnd.Uint64N(math.MaxUint64 - c.Active)
				c.Requests += rnd.Uint32N(math.MaxUint32 - c.Requests)
				d.Queues[i].Prefills += 1 + rnd.Uint32N(1000)
				d.Queues[i].Tokens += 1e6 * rnd.Float64()
				d.Queues[i].Decoding += rnd.Uint32N(1000)
				d.Queues[i].Prompts += 1e6 * rnd.Float64()
				if is := favoured(policy, d, i); is && !was && d.Weights.CreditDecay == 0 && before.Known {
					t.Fatalf("favoured only with more work:\n%+v\n%+v", before, *c)
				}
			}
		})
	}
}

// The reasons of policies whose cost is a sum add up to it.
func TestReasonsAddUp(t *testing.T) {
	sums := []string{"built-in", "own weights", "two-tier", "least-loaded", "predicted-ttft"}
	rnd := rand.New(rand.NewPCG(3, 3))
	for range 2000 {
		d := randomDecision(rnd)
		d.Prompt.Tokens %= 1 << 20
		d.Prompt.Blocks = 0
		for i := range d.Candidates { // within what a sum of floats keeps, and no long prefix
			c := &d.Candidates[i]
			c.Prefill, c.Active, c.Device = c.Prefill%(1<<20), c.Active%(1<<20), 0
		}
		for _, name := range sums {
			policy := policies()[name]
			costs := policy.Costs(d, nil)
			for i, cost := range costs {
				r := policy.Reasons(d, i)
				if sum := (r.Wait + r.Prefill + r.Delay + r.Decode + r.Answer) * r.Taint; math.Abs(sum-cost) > 1e-9*max(1, cost) {
					t.Fatalf("%s: %+v add up to %v, not %v", name, r, sum, cost)
				}
			}
		}
	}
}

// The rule of two-tier, at and beside its thresholds.
func TestTwoTier(t *testing.T) {
	type rank struct{ device, requests uint32 }
	for _, test := range []struct {
		name  string
		tuned selector.TwoTier
		ranks []rank
		want  []int
	}{
		{"a long prefix goes before few requests", selector.DefaultTwoTier(), []rank{{0, 0}, {6, 4}}, []int{1}},
		{"half of the blocks is not long", selector.DefaultTwoTier(), []rank{{0, 0}, {5, 4}}, []int{0}},
		{"the fewest requests among equal prefixes", selector.DefaultTwoTier(), []rank{{8, 9}, {8, 3}, {7, 0}, {8, 3}}, []int{1, 3}},
		{"a longer one with more requests", selector.DefaultTwoTier(), []rank{{8, 1}, {9, 3}}, []int{1}},
		{"out of balance", selector.DefaultTwoTier(), []rank{{0, 0}, {10, 33}}, []int{0}},
		{"not by more than 32", selector.DefaultTwoTier(), []rank{{0, 0}, {10, 32}}, []int{1}},
		{"not by more than the ratio", selector.DefaultTwoTier(), []rank{{0, 640}, {10, 704}}, []int{1}},
		{"by more than both", selector.DefaultTwoTier(), []rank{{0, 640}, {10, 705}}, []int{0}},
		{"a lower threshold", selector.TwoTier{CacheThreshold: 0.2, BalanceAbs: 32, BalanceRel: 1.1}, []rank{{0, 0}, {3, 4}}, []int{1}},
		{"a whole prompt above threshold 1", selector.TwoTier{CacheThreshold: 1, BalanceAbs: 32, BalanceRel: 1.1}, []rank{{0, 0}, {10, 4}}, []int{0}},
		{"equal ranks", selector.DefaultTwoTier(), []rank{{0, 2}, {0, 2}, {0, 2}}, []int{0, 1, 2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := &selector.Decision{Prompt: selector.Prompt{Tokens: 157, Blocks: 9, BlockSize: 16}, Weights: selector.DefaultWeights()}
			for _, r := range test.ranks {
				d.Candidates = append(d.Candidates, selector.Candidate{Known: true, Device: r.device, Requests: r.requests})
			}
			var got []int
			for i := range d.Candidates {
				if favoured(test.tuned, d, i) {
					got = append(got, i)
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func TestTwoTierCheck(t *testing.T) {
	for _, bad := range []selector.TwoTier{
		{CacheThreshold: -0.1, BalanceRel: 1},
		{CacheThreshold: 1.1, BalanceRel: 1},
		{CacheThreshold: math.NaN(), BalanceRel: 1},
		{BalanceRel: 0.9},
		{BalanceRel: math.NaN()},
		{BalanceRel: math.Inf(1)},
	} {
		if bad.Check() == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
	if err := selector.DefaultTwoTier().Check(); err != nil {
		t.Error(err)
	}
}

// Round robin takes each of the same candidates once in a round, wherever it begins;
// least loaded and power of two compare requests; random favours none.
func TestSimplePolicies(t *testing.T) {
	d := &selector.Decision{Prompt: selector.Prompt{Tokens: 16, Blocks: 1, BlockSize: 16}, Weights: selector.DefaultWeights()}
	for _, requests := range []uint32{3, 1, 2, 0, 5} {
		d.Candidates = append(d.Candidates, selector.Candidate{Known: true, Requests: requests})
	}
	var history selector.History
	for range 3 {
		taken := map[int]bool{}
		for range d.Candidates {
			history.Fill(d, selector.NeedTurn, 0, false)
			taken[selector.Pick(selector.RoundRobin{}.Costs(d, nil), 0, selector.Global())] = true
			history.Decided(d, selector.RoundRobin{})
		}
		if len(taken) != len(d.Candidates) {
			t.Errorf("a round takes %v", taken)
		}
	}
	if i := selector.Pick(selector.LeastLoaded{}.Costs(d, nil), 0, selector.Global()); i != 3 {
		t.Errorf("least loaded takes %d", i)
	}
	// Of two drawn among five the one with the n-th fewest requests wins as often as it is
	// drawn with one of more: 4, 3, 2, 1 and 0 of 10 pairs.
	const draws = 20_000
	var two, random [5]int
	for range draws {
		two[selector.Pick(selector.PowerOfTwoChoices{}.Costs(d, nil), 0, selector.Global())]++
		random[selector.Pick(selector.Random{}.Costs(d, nil), 0, selector.Global())]++
	}
	for i, pairs := range []float64{1, 3, 2, 4, 0} {
		within(t, fmt.Sprintf("power of two, candidate %d", i), two[i], draws, pairs/10)
		within(t, fmt.Sprintf("random, candidate %d", i), random[i], draws, 0.2)
	}
}

// within fails unless n of draws is within six standard deviations of its chance.
func within(t *testing.T, what string, n, draws int, chance float64) {
	t.Helper()
	mean := chance * float64(draws)
	if math.Abs(float64(n)-mean) > 6*math.Sqrt(mean*(1-chance)) {
		t.Errorf("%s: %d times, expected about %v", what, n, mean)
	}
}

// lmetric: the product decides, until a prefix that all ask for has favoured its only
// holder twice; then another rank is taken, as long as that goes on.
func TestLMetric(t *testing.T) {
	prompt := selector.Prompt{Tokens: 160, Blocks: 10, BlockSize: 16}
	pick := func(d *selector.Decision, m selector.LMetric) int {
		return selector.Pick(m.Costs(d, nil), 0, selector.Global())
	}
	known := func(device, requests uint32) selector.Candidate {
		return selector.Candidate{Known: true, Device: device, Requests: requests}
	}
	d := &selector.Decision{Prompt: prompt, Weights: selector.DefaultWeights()}
	d.Candidates = []selector.Candidate{known(0, 0), known(8, 3)}
	if i := pick(d, selector.LMetric{}); i != 1 { // 32 tokens for 4 are less than 160 for 1
		t.Errorf("takes %d", i)
	}
	d.Candidates = []selector.Candidate{known(0, 0), known(8, 5)}
	if i := pick(d, selector.LMetric{}); i != 0 {
		t.Errorf("takes %d", i)
	}
	d.Candidates = []selector.Candidate{known(10, 3), known(10, 1)} // at least one token
	if i := pick(d, selector.LMetric{}); i != 1 {
		t.Errorf("takes %d", i)
	}

	d.Candidates = []selector.Candidate{known(10, 2), known(0, 1), known(0, 1), known(0, 1)}
	var history selector.History
	decide := func(class uint64) int {
		history.Fill(d, selector.LMetric{}.Needs(), class, true)
		i := pick(d, selector.LMetric{})
		history.Decided(d, selector.LMetric{})
		return i
	}
	if i := decide(7); i != 0 {
		t.Errorf("the first takes %d", i)
	}
	for range 3 {
		if i := decide(7); i == 0 {
			t.Error("a hot spot is not avoided")
		}
	}
	// Among many other classes it is no hot spot any more, and not one of many before.
	for class := range uint64(20) {
		if i := decide(100 + class); i != 0 {
			t.Errorf("class %d takes %d", class, i)
		}
	}
	if i := decide(7); i != 0 {
		t.Errorf("the hot spot that has cooled down takes %d", i)
	}
}

// The history of classes forgets: it is bounded, and the shares are of the last 1000
// decisions.
func TestHistoryForgets(t *testing.T) {
	var history selector.History
	d := &selector.Decision{Prompt: selector.Prompt{Tokens: 160, Blocks: 10, BlockSize: 16}, Weights: selector.DefaultWeights()}
	d.Candidates = []selector.Candidate{{Known: true, Device: 10}, {Known: true}}
	decide := func(class uint64) float64 {
		history.Fill(d, selector.LMetric{}.Needs(), class, true)
		history.Decided(d, selector.LMetric{})
		return d.Class.Share
	}
	for range 1000 {
		decide(1)
	}
	if share := decide(1); share != 1 {
		t.Errorf("share %v of a class that is the only one", share)
	}
	for class := range uint64(500) {
		decide(1000 + class)
	}
	if share := decide(1); share != 0.5 {
		t.Errorf("share %v of a class that had half of the last 1000", share)
	}
	for class := range uint64(1000) {
		decide(5000 + class)
	}
	if share := decide(1); share != 0.001 {
		t.Errorf("share %v of a class that is forgotten", share)
	}
}

// An instance's weights of host and disk act on the credit alone: the prompt is not longer
// for them, even where they count more tokens as cached than it has. Measured on
// dynamo-kv-router 1.6.1.
func TestOwnWeightsKeepTheLength(t *testing.T) {
	own := selector.DefaultWeights()
	own.OverlapCredit, own.PrefillScale, own.Host, own.ActiveRequests = 1.5, 2, 1.4, 0.7
	d := &selector.Decision{
		Prompt:  selector.Prompt{Tokens: 16, Blocks: 4, BlockSize: 4},
		Weights: selector.DefaultWeights(),
		Candidates: []selector.Candidate{
			{Known: true, Host: 4, Prefill: 8, Active: 1, Requests: 2},
			{Known: true, Device: 4, Prefill: 1, Active: 3, Requests: 2},
		},
	}
	got := selector.CostFunction{Own: &own}.Costs(d, nil)
	// 2 * ((8+16)/4 - 1.4*4) + 5 + 2*0.7, and no prefill + 7 + 2*0.7
	for i, want := range []float64{7.2, 8.4} {
		if math.Abs(got[i]-want) > 1e-9 {
			t.Errorf("candidate %d costs %v, want %v", i, got[i], want)
		}
	}
}
