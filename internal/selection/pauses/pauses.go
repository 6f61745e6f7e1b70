package pauses

import (
	"math"
	"time"
)

// Class is a kind of sessions that pause alike.
type Class uint8

// The classes.
const (
	Chat     Class = iota // somebody reads the answer and writes the next turn
	Agent                 // a program runs tools between its turns
	SubAgent              // an agent that another session has started
	classes
)

// String returns the name of the class.
func (c Class) String() string {
	switch c {
	case Agent:
		return "agent"
	case SubAgent:
		return "sub-agent"
	}
	return "chat"
}

// Pauses describes what follows a turn of a session.
type Pauses struct {
	// Share is the chance that the session sends another turn within Horizon, from 0 to 1.
	Share float64
	// Mu and Sigma are the mean and the deviation of the natural logarithm of the pause in seconds.
	Mu, Sigma float64
	// Horizon is the longest pause. A session that has been idle for longer does not come back.
	Horizon time.Duration
}

// Prior returns the pauses of a class of which nothing is known: half of its turns are followed by another one.
func Prior(c Class, horizon time.Duration) Pauses {
	p := Pauses{Share: 0.5, Mu: 4.82, Sigma: 1.25, Horizon: horizon}
	switch c {
	case Agent:
		p.Mu, p.Sigma = 2.28, 1.34
	case SubAgent:
		p.Mu, p.Sigma = 0.69, 1.13
	}
	return p
}

// Chance returns the chance, from 0 to 1, that a session comes back that has been idle since its last turn ended. By Bayes' rule it
// is p·R/(p·R + 1−p), where R is the share of pauses that are longer than idle.
func (p Pauses) Chance(idle time.Duration) float64 {
	longer := p.Share * p.longer(idle)
	if longer <= 0 {
		return 0
	}
	return longer / (longer + 1 - p.Share)
}

// Expected returns the mean of the pauses that are longer than idle and at most Horizon: when a session is expected,
// counted from the end of its last turn, if it comes back at all. ok is false if there are no such pauses.
//
// Between a and b, in deviations from the mean of the logarithm, the mean is exp(Mu + Sigma²/2) times the normal
// distribution's share of [a−Sigma, b−Sigma] over that of [a, b].
func (p Pauses) Expected(idle time.Duration) (pause time.Duration, ok bool) {
	if idle >= p.Horizon {
		return 0, false
	}
	a, b := p.deviations(idle), p.deviations(p.Horizon)
	among := between(a, b)
	if among <= 0 {
		return 0, false
	}
	mean := math.Exp(p.Mu+p.Sigma*p.Sigma/2) * between(a-p.Sigma, b-p.Sigma) / among
	pause = time.Duration(min(mean, p.Horizon.Seconds()) * float64(time.Second))
	return min(max(pause, idle), p.Horizon), true
}

// longer returns the share of pauses that are longer than idle.
func (p Pauses) longer(idle time.Duration) float64 {
	if idle >= p.Horizon {
		return 0
	}
	b := p.deviations(p.Horizon)
	return between(p.deviations(idle), b) / between(math.Inf(-1), b)
}

// deviations returns how far the logarithm of a pause is from its mean, in deviations.
func (p Pauses) deviations(pause time.Duration) float64 {
	if pause <= 0 {
		return math.Inf(-1)
	}
	return (math.Log(pause.Seconds()) - p.Mu) / p.Sigma
}

// between returns the share of the normal distribution between a and b. It takes the tail that is nearer, so that it is
// exact far from the mean.
func between(a, b float64) float64 {
	if a > 0 {
		return (math.Erfc(a/math.Sqrt2) - math.Erfc(b/math.Sqrt2)) / 2
	}
	return (math.Erfc(-b/math.Sqrt2) - math.Erfc(-a/math.Sqrt2)) / 2
}
