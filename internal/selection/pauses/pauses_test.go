package pauses_test

import (
	"math"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/selection/pauses"
)

// density is the log-normal density, as textbooks have it.
func density(p pauses.Pauses, seconds float64) float64 {
	d := (math.Log(seconds) - p.Mu) / p.Sigma
	return math.Exp(-d*d/2) / (seconds * p.Sigma * math.Sqrt(2*math.Pi))
}

// integrals returns the integrals of the density, and of the pause times the density, from idle to the horizon, over
// steps of equal length in the logarithm.
func integrals(p pauses.Pauses, idle time.Duration) (share, mean float64) {
	const steps = 200_000
	from, to := math.Log(max(idle.Seconds(), 1e-6)), math.Log(p.Horizon.Seconds())
	width := (to - from) / steps
	for i := range steps {
		x := math.Exp(from + (float64(i)+0.5)*width)
		w := density(p, x) * x * width
		share += w
		mean += w * x
	}
	return share, mean
}

// TestReturn compares the closed forms with integrals of the density.
func TestReturn(t *testing.T) {
	for _, class := range []pauses.Class{pauses.Chat, pauses.Agent, pauses.SubAgent} {
		for _, share := range []float64{0.02, 0.5, 0.97} {
			p := pauses.Prior(class, time.Hour)
			p.Share = share
			all, _ := integrals(p, 0)
			for _, idle := range []time.Duration{0, time.Second, 10 * time.Second, time.Minute, 10 * time.Minute, 59 * time.Minute} {
				longer, mean := integrals(p, idle)
				want := share * longer / all / (share*longer/all + 1 - share)
				if got := p.Chance(idle); math.Abs(got-want) > 1e-6 {
					t.Errorf("%s, share %v, idle for %v: chance %v, want %v", class, share, idle, got, want)
				}
				at, ok := p.Expected(idle)
				if want := mean / longer; !ok || math.Abs(at.Seconds()-want) > 1e-3*want {
					t.Errorf("%s, idle for %v: expected after %v, %t, want %v s", class, idle, at, ok, want)
				}
			}
		}
	}
}

// TestReturnOfPriors pins what an operator reads of a fleet that has just started. The values follow from the
// priors by hand: half of the pauses of an agent are shorter than e^2.28 = 9.8 s, so that of the sessions that have been
// idle for so long every third comes back.
func TestReturnOfPriors(t *testing.T) {
	agent := pauses.Prior(pauses.Agent, time.Hour)
	if c := agent.Chance(0); c != 0.5 {
		t.Errorf("chance %v right after the turn", c)
	}
	if c := agent.Chance(9777 * time.Millisecond); math.Abs(c-1.0/3) > 1e-3 {
		t.Errorf("chance %v after the median pause, want a third", c)
	}
}

// TestReturnIsOrdered: the longer a session has been idle, the less probably it comes back, and the later.
func TestReturnIsOrdered(t *testing.T) {
	for _, p := range []pauses.Pauses{
		pauses.Prior(pauses.Chat, time.Hour), pauses.Prior(pauses.SubAgent, time.Second), pauses.Prior(pauses.Chat, time.Millisecond),
		{Share: 0.999, Mu: math.Log(0.1), Sigma: 0.1, Horizon: time.Hour}, // the tail underflows
		{Share: 1, Mu: 8, Sigma: 3, Horizon: time.Minute},
	} {
		chance, at := 1.0, time.Duration(0)
		for idle := time.Duration(0); idle <= p.Horizon+p.Horizon/16; idle += p.Horizon / 64 {
			c := p.Chance(idle)
			if math.IsNaN(c) || c < 0 || c > chance+1e-12 {
				t.Fatalf("%+v: chance %v after %v, %v before", p, c, idle, chance)
			}
			next, ok := p.Expected(idle)
			if ok && (next < idle || next+time.Microsecond < at || next > p.Horizon) {
				t.Fatalf("%+v: idle for %v: expected after %v, %v before", p, idle, next, at)
			}
			if idle >= p.Horizon && (ok || c != 0) {
				t.Fatalf("%+v: comes back after the horizon: %v, %v", p, c, next)
			}
			if chance = c; ok {
				at = next
			}
		}
	}
}
