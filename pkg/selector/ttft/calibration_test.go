package ttft

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// TestQuantileHolds: of any stream, after the first samples, the share at or below the followed quantile is p, and where
// the stream stays the same the quantile is that of its distribution. The streams are narrow and wide, skewed, and such that
// change; the bound of the share is that of the comment of quantile.
func TestQuantileHolds(t *testing.T) {
	for name, draw := range map[string]func(r *rand.Rand, i int) float64{
		"exact":    func(*rand.Rand, int) float64 { return 0 },
		"narrow":   func(r *rand.Rand, _ int) float64 { return 0.02 * r.NormFloat64() },
		"wide":     func(r *rand.Rand, _ int) float64 { return 0.7 * r.NormFloat64() },
		"skewed":   func(r *rand.Rand, _ int) float64 { return 0.3 * r.ExpFloat64() },
		"two":      func(r *rand.Rand, _ int) float64 { return float64(r.IntN(2)) },
		"slower":   func(r *rand.Rand, i int) float64 { return 0.1*r.NormFloat64() + 0.7*float64(i/2000) },
		"faster":   func(r *rand.Rand, i int) float64 { return 0.1*r.NormFloat64() - 0.7*float64(i/2000) },
		"by turns": func(r *rand.Rand, i int) float64 { return 0.1*r.NormFloat64() + 0.5*float64(i/500%2) },
	} {
		for _, p := range []float64{0.5, 0.9} {
			r := rand.New(rand.NewPCG(1, 2))
			var q quantile
			const first, n = 200, 4000
			held, low, high := 0, math.Inf(1), math.Inf(-1)
			for i := range n {
				x := draw(r, i)
				if low, high = min(low, x), max(high, x); i >= first && x <= q.At {
					held++
				}
				q.add(x, p)
			}
			bound := (high - low + leastStep) / (leastStep * (n - first))
			if name == "exact" {
				bound = 1 - p // every sample is the quantile
			}
			if share := float64(held) / (n - first); math.Abs(share-p) > bound+1e-9 {
				t.Errorf("%s: %.3f of the samples are not above the quantile %g, which differs by more than %.3f", name, share, p, bound)
			}
			if q.N != n {
				t.Errorf("%s: %d samples", name, q.N)
			}
		}
	}
}

// TestErrorsAreBounded: an error is at most 20 and at least a twentieth, whatever is predicted and observed, and what cannot be
// compared is left out.
func TestErrorsAreBounded(t *testing.T) {
	l := NewLearner()
	s := l.state(0, rankOf(0))
	for _, x := range [][2]float64{{0, 1}, {1, 0}, {-1, 1}, {math.NaN(), 1}, {1, math.NaN()}} {
		l.calibrate(s, x[0], x[1])
	}
	if c := l.errors.calibration(); c != (Calibration{0, 1, 1}) {
		t.Errorf("learned %+v from nothing", c)
	}
	for _, x := range [][2]float64{{1e-300, 1e300}, {math.Inf(1), 1e-300}, {1, math.Inf(1)}} {
		for range 100 {
			l.calibrate(s, x[0], x[1])
		}
		if c := l.errors.calibration(); !(c.Q50 >= 1/(2*maxError) && c.Q90 <= 2*maxError && c.Q50 <= c.Q90) {
			t.Errorf("of %v: %+v", x, c)
		}
	}
	if n := len(l.recently.ring); n != recentPredictions {
		t.Errorf("%d predictions are kept", n)
	}
}

// TestRankHasItsOwnMargin once it has samples enough; until then it has that of its scope. A rank that is reported late loses it.
func TestRankHasItsOwnMargin(t *testing.T) {
	l := NewLearner()
	e := newEngines(3, fleets["medium"], 0.01, 1, 1, 1)
	e.run(l, 300)
	booked := e.at
	for range 200 { // the times of rank 1 scatter, those of the others do not
		e.at += time.Second
		tokens, prompt := e.prompt()
		for slot, f := range []float64{1, 1 + 0.4*float64(e.rnd.IntN(2)), 1} {
			e.complete(l, slot, tokens, prompt, f*e.theta.Prefill(float64(tokens), float64(prompt)))
		}
	}
	own, other := l.Margin(1, rankOf(1)), l.Margin(0, rankOf(0))
	if !(own > 1.15) || !(other < own-0.05) {
		t.Errorf("the margins are %g and %g", own, other)
	}
	scope := l.Model().Calibration.Q90
	if got := l.Margin(7, rankOf(7)); got != scope {
		t.Errorf("a rank of which nothing is known has the margin %g, its scope %g", got, scope)
	}
	for range 100 {
		l.Unreported(booked, 1, rankOf(1))
	}
	if got := l.Margin(1, rankOf(1)); got != scope {
		t.Errorf("a late rank has the margin %g, its scope %g", got, scope)
	}
}

// TestDeciles: the latest predictions, by the predicted time, with what was observed.
func TestDeciles(t *testing.T) {
	var p predictions
	if c := p.compare(); c.Predictions != 0 || c.Deciles != nil {
		t.Errorf("of nothing: %+v", c)
	}
	for i := range 300 {
		n := (i*7 + 3) % 300
		p.add(prediction{float32(n), float32(2 * n), i%4 != 0})
	}
	c := p.compare()
	if c.Predictions != 256 || math.Abs(c.Held-0.75) > 1e-9 || len(c.Deciles) != 10 {
		t.Fatalf("compared %+v", c)
	}
	for i, d := range c.Deciles {
		if math.Abs(d.Observed-2*d.Predicted) > 1e-6 || i > 0 && d.Predicted <= c.Deciles[i-1].Predicted {
			t.Errorf("decile %d: %+v", i+1, d)
		}
	}
}

// TestInStep: half of the prefills follow another one and take half of Base less, so that the learned Base is between both. InStep is what
// they take less than that. It is 0 where none follows another one, and where they take longer.
func TestInStep(t *testing.T) {
	for name, tt := range map[string]struct {
		follow       bool
		less, inStep float64
	}{
		"sooner":        {true, 0.01, 0.005},
		"none follow":   {false, 0.01, 0},
		"not so soon":   {true, -0.01, 0},
		"like all":      {true, 0, 0},
		"ranks alike":   {true, 0.002, 0.001},
		"in no time":    {true, 0.019, 0.0095},
		"much too late": {true, -10, 0},
	} {
		l, e := NewLearner(), newEngines(3, fleets["medium"], 0, 1, 1)
		for i := range 1000 {
			tokens, prompt := e.prompt()
			took := e.theta.Prefill(float64(tokens), float64(prompt))
			if i%2 == 0 {
				e.complete(l, 0, tokens, prompt, took)
			} else if tt.follow {
				e.follow(l, 1, tokens, prompt, 0.5, took-tt.less)
			}
		}
		m := l.Model()
		t.Logf("%s: %.4f s of %.4f", name, m.InStep, m.Base)
		if math.Abs(m.InStep-tt.inStep) > 0.05*m.Base+0.0005 {
			t.Errorf("%s: %g s sooner, not %g", name, m.InStep, tt.inStep)
		}
	}
}

// TestStepError: the median counts, and prefills that end together with the one before them count as without a fixed part. A few say too
// little, and so do any before a fixed part is learned.
func TestStepError(t *testing.T) {
	of := func(rounds int, base float64, longer ...float64) float64 {
		var e stepError
		for range rounds {
			for _, x := range longer {
				e.add(x, base)
			}
		}
		return e.sooner(0.1)
	}
	for name, tt := range map[string]struct{ got, want float64 }{
		"all alike":     {of(20, 0.1, -0.04), 0.04},
		"too few":       {of(19, 0.1, -0.04), 0},
		"some are late": {of(500, 0.1, 5, -0.04, -0.09), 0.04},
		"some together": {of(500, 0.1, -0.04, -0.1, -0.2, -0.04, 0), 0.04},
		"all together":  {of(20, 0.1, -0.1, -0.2, -3), 0.1},
		"longer":        {of(20, 0.1, 0.03), 0},
		"no fixed part": {of(20, 0, -0.04, 0), 0},
	} {
		if math.Abs(tt.got-tt.want) > 0.05*0.1 {
			t.Errorf("%s: %g s sooner, not %g", name, tt.got, tt.want)
		}
	}
}
