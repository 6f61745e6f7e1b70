package ttft

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/length"
)

// engines completes prefills one after the other on ranks of known coefficients.
type engines struct {
	rnd    *rand.Rand
	theta  Parameters
	speeds []float64
	noise  float64 // of the times, relative
	at     time.Duration
}

func rankOf(slot int) catalog.Rank { return catalog.Rank{Worker: uint64(slot) + 1} }

// prompt draws the size of a prompt and what of it is to be computed.
func (e *engines) prompt() (tokens, prompt uint64) {
	prompt = uint64(math.Exp(5 + 5.5*e.rnd.Float64())) // 150 to 36,000
	return max(1, uint64(float64(prompt)*e.rnd.Float64())), prompt
}

// run completes n prefills on random ranks, and frees each a second later.
func (e *engines) run(l *Learner, n int) {
	for range n {
		slot := e.rnd.IntN(len(e.speeds))
		tokens, prompt := e.prompt()
		took := e.speeds[slot] * e.theta.Prefill(float64(tokens), float64(prompt)) * (1 + e.noise*e.rnd.NormFloat64())
		e.complete(l, slot, tokens, prompt, took)
	}
}

func (e *engines) complete(l *Learner, slot int, tokens, prompt uint64, took float64) {
	e.follow(l, slot, tokens, prompt, 0, took)
}

// follow completes a prefill that has waited for another one for so many seconds.
func (e *engines) follow(l *Learner, slot int, tokens, prompt uint64, waited, took float64) {
	booked := e.at
	e.at += time.Duration(waited * float64(time.Second))
	started := e.at
	l.Booked(booked, uint32(slot), rankOf(slot), tokens, prompt)
	speed, _ := l.Rank(uint32(slot), rankOf(slot))
	predicted := waited + speed*l.Model().Prefill(float64(tokens), float64(prompt))
	e.at += time.Duration(took * float64(time.Second))
	completed := e.at
	l.Completed(completed, uint32(slot), rankOf(slot), tokens, prompt, booked, started, predicted)
	e.at += time.Second
	l.Freed(e.at, uint32(slot), rankOf(slot), booked, completed, 0, false)
}

func newEngines(seed uint64, theta Parameters, noise float64, speeds ...float64) *engines {
	return &engines{rnd: rand.New(rand.NewPCG(seed, 1)), theta: theta, speeds: speeds, noise: noise}
}

func within(t *testing.T, what string, got, want, share float64) {
	t.Helper()
	if math.Abs(got-want) > share*want {
		t.Errorf("%s = %g, not within %g %% of %g", what, got, 100*share, want)
	}
}

// fleets are engines of which the coefficients are to be recovered.
var fleets = map[string]Parameters{
	"medium":      {Base: 0.02, PerToken: 1.0 / 9000, PerContext: 3e-9},
	"fast":        {Base: 0.005, PerToken: 1.0 / 60000, PerContext: 2e-10},
	"slow":        {Base: 0.2, PerToken: 1.0 / 1500, PerContext: 2e-8},
	"like chunks": {Base: 0.006, PerToken: 32e-6, PerContext: 1.3e-9},
}

func TestCoefficientsAreRecovered(t *testing.T) {
	for name, theta := range fleets {
		for seed := range uint64(5) {
			t.Run(fmt.Sprint(name, seed), func(t *testing.T) {
				l := NewLearner()
				newEngines(seed, theta, 0.01, 1, 1, 1, 1).run(l, 500)
				got := l.Model().Parameters
				if !got.Learned || !got.Mature {
					t.Fatalf("after 500 samples %+v", got)
				}
				within(t, "Base", got.Base, theta.Base, 0.05)
				within(t, "PerToken", got.PerToken, theta.PerToken, 0.05)
				within(t, "PerContext", got.PerContext, theta.PerContext, 0.05)
			})
		}
	}
}

// TestNoiseHidesNoCost: with noisy times the prediction is right all the same.
func TestNoiseHidesNoCost(t *testing.T) {
	for name, theta := range fleets {
		l := NewLearner()
		e := newEngines(7, theta, 0.2, 1, 1, 1, 1)
		e.run(l, 1000)
		got := l.Model().Parameters
		var predicted, real float64
		for range 1000 {
			u, prompt := e.prompt()
			predicted += got.Prefill(float64(u), float64(prompt))
			real += theta.Prefill(float64(u), float64(prompt))
		}
		within(t, name, predicted, real, 0.05)
	}
}

func TestSpeeds(t *testing.T) {
	cases := []struct {
		name   string
		speeds []float64
		want   []float64
	}{
		{"equal", []float64{1, 1, 1, 1}, []float64{1, 1, 1, 1}},
		{"one slow", []float64{1, 1, 1, 1, 1, 1, 1, 2}, []float64{1, 1, 1, 1, 1, 1, 1, 2}},
		{"one fast", []float64{1, 1, 1, 1, 1, 1, 1, 0.6}, []float64{1, 1, 1, 1, 1, 1, 1, 0.6}},
		{"one slow and one fast", []float64{1, 1, 1, 1, 1, 1, 3, 0.6}, []float64{1, 1, 1, 1, 1, 1, 3, 0.6}},
		{"in the band", []float64{1, 1, 1, 1, 1.25, 0.85}, []float64{1, 1, 1, 1, 1, 1}},
		{"beyond the clamps", []float64{1, 1, 1, 1, 1, 1, 9, 0.2}, []float64{1, 1, 1, 1, 1, 1, 4, 0.5}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			l := NewLearner()
			newEngines(3, fleets["medium"], 0.02, c.speeds...).run(l, 3000)
			for slot, want := range c.want {
				got, _ := l.Rank(uint32(slot), rankOf(slot))
				if want == 1 && got != 1 {
					t.Errorf("speed of %d = %g, not exactly 1", slot, got)
				}
				within(t, fmt.Sprint("speed of ", slot), got, want, 0.05)
			}
		})
	}
}

// TestHalfSlow: which half counts as usual is open, but all predictions are right.
func TestHalfSlow(t *testing.T) {
	l := NewLearner()
	e := newEngines(5, fleets["medium"], 0.02, 1, 1, 2, 2)
	e.run(l, 3000)
	p := l.Model().Parameters
	for slot, speed := range e.speeds {
		m, _ := l.Rank(uint32(slot), rankOf(slot))
		within(t, fmt.Sprint("prediction of ", slot), m*p.Prefill(4000, 8000), speed*e.theta.Prefill(4000, 8000), 0.06)
	}
}

func TestForgetting(t *testing.T) {
	l := NewLearner()
	e := newEngines(11, fleets["medium"], 0.01, 1, 1)
	e.run(l, 500)
	e.theta = fleets["like chunks"]
	e.run(l, 3000)
	got := l.Model().Parameters
	within(t, "PerToken", got.PerToken, e.theta.PerToken, 0.05)
	within(t, "prediction", got.Prefill(5000, 9000), e.theta.Prefill(5000, 9000), 0.05)

	e.speeds[1] = 3
	e.run(l, 400)
	slow, _ := l.Rank(1, rankOf(1))
	e.speeds[1] = 1
	e.run(l, 1500)
	again, _ := l.Rank(1, rankOf(1))
	fast, _ := l.Rank(0, rankOf(0))
	if slow < 1.4 && fast > 1/1.4 {
		t.Errorf("a rank that became three times slower has speed %g, the other %g", slow, fast)
	}
	if again != fast {
		t.Errorf("a rank that has recovered has speed %g, the other %g", again, fast)
	}
}

// TestNothingLearned is the formula of the first requests.
func TestNothingLearned(t *testing.T) {
	l := NewLearner()
	m := l.Model()
	if m.Learned || m.Mature || m.Fallback {
		t.Errorf("a new learner: %+v", m)
	}
	if got := m.Prefill(1200, 99999); math.Abs(got-0.1) > 1e-15 {
		t.Errorf("1,200 tokens take %g s, not 0.1", got)
	}
	if speed, late := l.Rank(7, rankOf(7)); speed != 1 || late {
		t.Errorf("an unknown rank: speed %g, late %v", speed, late)
	}
}

// adversary draws times and sizes that no engine makes.
func adversary(rnd *rand.Rand) (tokens, prompt uint64, took time.Duration) {
	sizes := []uint64{0, 1, 100, 5000, 1 << 20, 1 << 40, math.MaxUint64}
	times := []time.Duration{-time.Hour, 0, 1, time.Microsecond, time.Second, 10 * time.Hour, math.MaxInt64 / 4}
	return sizes[rnd.IntN(len(sizes))], sizes[rnd.IntN(len(sizes))], times[rnd.IntN(len(times))]
}

func TestAdversarialSamplesDoNotExplode(t *testing.T) {
	length.Sequential(t)
	for seed := range uint64(50) {
		l := NewLearner()
		rnd := rand.New(rand.NewPCG(seed, 2))
		e := newEngines(seed, fleets["medium"], 0.01, 1, 1, 1)
		for i := range 600 {
			tokens, prompt, took := adversary(rnd)
			slot := rnd.IntN(3)
			at := time.Duration(rnd.Int64N(int64(100 * time.Hour)))
			l.Booked(at, uint32(slot), rankOf(slot), tokens, prompt)
			l.Completed(at+took, uint32(slot), rankOf(slot), tokens, prompt, at, at, 0)
			l.Freed(at+took+time.Duration(rnd.Int64N(int64(time.Minute))), uint32(slot), rankOf(slot), at, at+took, 0, false)
			m := l.Model()
			for _, v := range []float64{m.Base, m.PerToken, m.PerContext, m.traffic.sums.Arrivals, m.traffic.sums.Work} {
				if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
					t.Fatalf("seed %d, sample %d: %+v", seed, i, m)
				}
			}
			if m.Base > maxBase || m.PerToken > maxPerToken || m.PerToken < MinPerToken || m.PerContext > maxPerContext {
				t.Fatalf("seed %d, sample %d: %+v", seed, i, m)
			}
			if speed, _ := l.Rank(uint32(slot), rankOf(slot)); !(speed >= minSpeed && speed <= maxSpeed) {
				t.Fatalf("seed %d, sample %d: speed %g", seed, i, speed)
			}
		}
		e.at = 200 * time.Hour
		e.run(l, 8000)
		p := l.Model().Parameters
		m, _ := l.Rank(0, rankOf(0))
		within(t, "after 8,000 good samples", m*p.Prefill(3000, 6000), e.theta.Prefill(3000, 6000), 0.05)
	}
}

// TestSamplesOfHours: a few clocks gone wrong hardly change a mature model.
func TestSamplesOfHours(t *testing.T) {
	l := NewLearner()
	e := newEngines(4, fleets["medium"], 0.01, 1, 1, 1, 1)
	e.run(l, 1000)
	for range 5 {
		tokens, prompt := e.prompt()
		e.complete(l, e.rnd.IntN(4), tokens, prompt, 7200)
	}
	p := l.Model().Parameters
	if got, want := p.Prefill(4000, 8000), e.theta.Prefill(4000, 8000); got > 1.3*want {
		t.Errorf("after five samples of two hours %g s, before %g s", got, want)
	}
}

func TestFlow(t *testing.T) {
	l := NewLearner()
	at := time.Duration(0)
	for range 3000 { // 10 per second for 300 s, of 0.1 s each
		at += 100 * time.Millisecond
		l.Booked(at, 0, rankOf(0), 1200, 1200)
	}
	m := l.Model()
	flow := m.Flow(at)
	early := NewLearner()
	for i := range 50 {
		early.Booked(time.Hour+time.Duration(i)*100*time.Millisecond, 0, rankOf(0), 1200, 1200)
	}
	within(t, "arrivals after 5 s", early.Model().Flow(time.Hour+5*time.Second).Arrivals, 10, 0.01)
	within(t, "arrivals", flow.Arrivals, 10, 0.01)
	within(t, "work", flow.Work, 1, 0.01)
	within(t, "the same", l.Flows(at).Scope.Work, flow.Work, 1e-12)
	later := m.Flow(at + 30*time.Second)
	within(t, "arrivals after 30 s without", later.Arrivals, 10/math.E, 0.01)
	for i := range 3000 { // the same to three ranks, of which one gets half
		at += 100 * time.Millisecond
		slot := uint32(max(1, i%4))
		l.Booked(at, slot, rankOf(int(slot)), 1200, 1200)
	}
	sum, flows := Flow{}, l.Flows(at)
	for slot := range uint32(4) {
		f := flows.Rank(slot, rankOf(int(slot)))
		sum.Arrivals, sum.Work = sum.Arrivals+f.Arrivals, sum.Work+f.Work
		within(t, "arrivals at a rank", f.Arrivals, []float64{10 * math.Exp(-10), 5, 2.5, 2.5}[slot], 0.1)
	}
	within(t, "arrivals at all ranks", sum.Arrivals, flows.Scope.Arrivals, 1e-9)
	within(t, "work of all ranks", sum.Work, flows.Scope.Work, 1e-9)
	if f := flows.Rank(1, rankOf(7)); f != (Flow{}) {
		t.Errorf("traffic to a rank that is not known: %+v", f)
	}
	l.Booked(at, 1, rankOf(7), 1200, 1200) // the slot's rank has left
	flows = l.Flows(at)
	if got := flows.Rank(1, rankOf(7)).Arrivals; got > 0.1 {
		t.Errorf("a new rank has the traffic of the one before it: %g", got)
	}
	if got, want := (Flow{Arrivals: 8, Work: 2}).Crowding(4), (Crowding{Rate: 8.0 / 4 / (1 - 0.5), Long: 8 * 2.0 / 8, Ranks: 4}); got != want {
		t.Errorf("crowding = %+v, not %+v", got, want)
	}
	if got, want := (Flow{Arrivals: 8, Work: 400}).Crowding(4).Rate, 8.0/4/(1-0.8); math.Abs(got-want) > 1e-9 {
		t.Errorf("crowding of an overloaded scope = %g, not %g", got, want)
	}
}

func TestStateSurvives(t *testing.T) {
	l := NewLearner()
	e := newEngines(9, fleets["medium"], 0.01, 1, 1, 1, 1, 2)
	e.run(l, 100)
	for range 30 {
		e.follow(l, 0, 500, 500, 0.5, e.theta.Prefill(500, 500)-0.01)
	}
	e.run(l, 1500)
	if l.Model().InStep == 0 {
		t.Error("nothing is known of prefills that follow another one")
	}
	b, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	again := NewLearner()
	if err := json.Unmarshal(b, again); err != nil {
		t.Fatal(err)
	}
	if got, want := again.Model().Parameters, l.Model().Parameters; got != want {
		t.Errorf("restored %+v, not %+v", got, want)
	}
	if got, want := again.Model().Calibration, l.Model().Calibration; got != want || want.Samples < 1000 || want.Q90 <= 1 {
		t.Errorf("restored the calibration %+v, not %+v", got, want)
	}
	unused, err := json.Marshal(again)
	if err != nil || string(unused) != string(b) {
		t.Errorf("the state of a restored learner that was not used differs: %v\n%s\n%s", err, unused, b)
	}
	at := e.at + time.Second
	again.Booked(at, 3, rankOf(4), 10, 10) // the same rank in another slot
	got, _ := again.Rank(3, rankOf(4))
	if want, _ := l.Rank(4, rankOf(4)); got != want {
		t.Errorf("restored speed %g, not %g", got, want)
	}
	if got, want := again.Margin(3, rankOf(4)), l.Margin(4, rankOf(4)); got != want {
		t.Errorf("restored the margin %g, not %g", got, want)
	}
}

func TestRefusedStates(t *testing.T) {
	whole, err := json.Marshal(NewLearner())
	if err != nil {
		t.Fatal(err)
	}
	for _, edit := range []string{
		`{`, `{"version":2}`, `{"products":[[-1,0,0],[0,1,0],[0,0,1]]}`, `{"products":[[1,2,0],[0,1,0],[0,0,1]]}`,
		`{"times":[1e300,0,0]}`, `{"theta":[-1,0,0]}`, `{"ranks":[{"observed":1,"predicted":0}]}`, `{"ranks":[{"observed":-1,"predicted":1}]}`,
		`{"errors":{"samples":1,"q50":100,"q90":0}}`, `{"ranks":[{"observed":1,"predicted":1,"errors":{"samples":1,"q90":-100}}]}`,
		`{"in_step":{"samples":1,"q50":-3}}`,
	} {
		var s state
		if err := json.Unmarshal(whole, &s); err != nil {
			t.Fatal(err)
		}
		b := []byte(edit)
		if json.Unmarshal(b, &s) == nil {
			b, _ = json.Marshal(s)
		}
		l := NewLearner()
		if err := l.UnmarshalJSON(b); err == nil {
			t.Errorf("accepted %s", edit)
		}
		if l.Model().Parameters != Default() || l.Samples() != 0 {
			t.Errorf("after %s: %+v", edit, l.Model())
		}
	}
}
