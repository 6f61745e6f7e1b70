package ttft

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// learned returns a learner that knows the times of prefills: a token in 0.1 ms, and 10 ps for each one that it attends to.
func learned(t *testing.T) *Learner {
	t.Helper()
	l, at := NewLearner(), time.Duration(0)
	rnd := rand.New(rand.NewPCG(1, 9))
	for range 2000 {
		u := 100 + rnd.Uint64N(10000)
		prompt := u + rnd.Uint64N(50000)
		took := 0.01 + 1e-4*float64(u) + 1e-11*float64(u)*(float64(prompt)-float64(u)/2)
		done := at + time.Duration(took*float64(time.Second))
		l.Booked(at, 0, rankOf(0), u, prompt)
		l.Completed(done, 0, rankOf(0), u, prompt, at, at, 0)
		at = done + time.Second
	}
	l.Settle(at + time.Hour)
	return l
}

// engine makes answers of an engine whose steps take 6 ms and k for each token that they attend to, beside prefills.
type engine struct {
	*rand.Rand
	k float64
}

func (e engine) answer(l *Learner, attended, speed float64) Answer {
	tokens := 16 * float64(1+e.IntN(60))
	steps := tokens * (6e-3 + e.k*attended) * math.Exp(0.1*e.NormFloat64())
	// The more answers there are, the more prompts are computed.
	prompts := l.Computing(uint64(attended/300*tokens/400), 20000).Seconds()
	return Answer{Tokens: tokens + 8, Timed: tokens, Took: speed * (steps + prompts), Attended: attended, Computed: prompts}
}

// TestPerAttended: the time for a token that answers attend to is learned from answers beside prefills, whatever the speed of their
// ranks, some of which are held up by their callers. It is 0 before there are 20, and kept over a restart.
func TestPerAttended(t *testing.T) {
	for name, of := range map[string]struct{ k, held float64 }{
		"as of one accelerator": {k: 44e-9}, "slow": {k: 400e-9}, "callers that read slowly": {k: 200e-9, held: 0.1}, "none": {},
	} {
		l, e := learned(t), engine{rand.New(rand.NewPCG(5, 6)), of.k}
		for i := range 3000 {
			a := e.answer(l, 1e6*e.Float64(), 1)
			if e.Float64() < of.held {
				a.Took += 60
			}
			l.Generated(0, rankOf(0), a)
			if p := l.Model(); i < pricedAnswers-1 && p.PerAttended != 0 || p.Output <= 0 {
				t.Fatalf("%s: after %d answers %+v", name, i+1, p.Parameters)
			}
		}
		if got := l.Model().PerAttended; math.Abs(got-of.k) > 0.15*of.k+1e-9 {
			t.Errorf("%s: %.3g ns, not %.3g", name, 1e9*got, 1e9*of.k)
		}
		within(t, name, l.Model().Output, 16*30.5+8, 0.1)
		b, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		again := NewLearner()
		if err := again.UnmarshalJSON(b); err != nil {
			t.Fatal(err)
		}
		if got, want := again.Model().Parameters, l.Model().Parameters; got != want {
			t.Errorf("%s: after a restart %+v, not %+v", name, got, want)
		}
	}
}

// TestHardlyVaried: where what answers attend to hardly varies, no more is learned than that it may be nothing.
func TestHardlyVaried(t *testing.T) {
	for seed := range uint64(20) {
		l, e := learned(t), engine{rand.New(rand.NewPCG(seed, 7)), 0}
		for range 200 {
			l.Generated(0, rankOf(0), e.answer(l, 1e5*(1+0.001*e.NormFloat64()), 1))
		}
		if m := l.Model(); m.PerAttended*1e5 > 0.05*m.PerOutput {
			t.Errorf("seed %d: %.3g of %.3g s for a token", seed, m.PerAttended*1e5, m.PerOutput)
		}
	}
}

// TestClaimedLengths: a length that no engine makes moves the mean little, and the mean follows answers that become longer.
func TestClaimedLengths(t *testing.T) {
	l := NewLearner()
	add := func(n int, tokens float64) float64 {
		for range n {
			l.Generated(0, rankOf(0), Answer{Tokens: tokens})
		}
		return l.Model().Output
	}
	within(t, "short", add(1000, 100), 100, 0.1)
	within(t, "one claims more", add(1, 1e18), 100, 0.1)
	within(t, "long", add(4000, 50_000), 50_000, 0.1)
}

// TestNoTimes: answers without times, of impossible times, or before the times of prefills are known, teach their length alone. What
// no answers make is no state.
func TestNoTimes(t *testing.T) {
	unknown, l := NewLearner(), learned(t)
	e := engine{rand.New(rand.NewPCG(8, 9)), 1e-7}
	for range 100 {
		unknown.Generated(0, rankOf(0), e.answer(l, 1e6*e.Float64(), 1))
		for _, a := range []Answer{
			{Tokens: 100},
			{Tokens: 100, Timed: 16},
			{Tokens: 100, Took: 3},
			{Tokens: 100, Timed: 16, Took: 1e9, Attended: 1e5},
			{Tokens: 100, Timed: 16, Took: 1, Attended: -1, Computed: 1e9},
			{Tokens: 100, Timed: 16, Took: 1, Computed: math.Inf(1)},
		} {
			l.Generated(0, rankOf(0), a)
		}
	}
	if p := unknown.Model(); p.PerAttended != 0 || p.Output == 0 {
		t.Errorf("without times of prefills %+v", p.Parameters)
	}
	if p := l.Model(); p.PerAttended != 0 || math.Abs(p.Output-100) > 1e-9 {
		t.Errorf("learned %+v", p.Parameters)
	}
	for _, bad := range []string{`"xx": -1`, `"weight": 1e31`, `"counted": -1e-9`, `"lengths": 1e300`} {
		if err := NewLearner().UnmarshalJSON([]byte(`{"version": 1, "answers": {"answers": 30, ` + bad + `}}`)); err == nil {
			t.Errorf("a file with %s is read", bad)
		}
	}
	for _, odd := range []string{
		`"weight": 1e-300, "x": 1, "y": 1, "xx": 1, "xy": 1e30`, `"weight": 1e-300, "x": 1e30, "y": 1e30, "xx": 1e30, "xy": 1e30, "lengths": 1e30, "counted": 1e-300`,
	} {
		l := NewLearner()
		if err := l.UnmarshalJSON([]byte(`{"version": 1, "answers": {"answers": 30, ` + odd + `}}`)); err != nil {
			t.Fatal(err)
		}
		if p := l.Model(); !(p.PerAttended >= 0 && p.PerAttended <= maxPerAttended && p.Output >= 0 && p.Output <= maxTokens) {
			t.Errorf("of %s is learned %+v", odd, p.Parameters)
		}
	}
	old := NewLearner()
	if err := old.UnmarshalJSON([]byte(`{"version": 1, "answers": {"answers": 30}}`)); err != nil || old.Model().PerAttended != 0 || old.Model().Output != 0 {
		t.Errorf("no sums are %v, %+v", err, old.Model().Parameters)
	}
}
