package ttft

import (
	"math"
	"testing"
)

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
