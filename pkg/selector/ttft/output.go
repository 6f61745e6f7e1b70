package ttft

import (
	"math"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// The time per output token of a rank is the median over its answers. A long pause of a few engines or callers, or a clock
// that jumps, moves it by at most one step.

const (
	// timedAnswers is the number of answers from which on the median of a scope or of a rank counts.
	timedAnswers = 10
	// A time per token beyond these bounds, in seconds, is none of an engine: the caller has reported what came all at once,
	// or a clock has jumped.
	minPerOutput = 50e-6
	maxPerOutput = 10.0
)

// outputTimes follows the median of the logarithms of times per output token, in seconds.
type outputTimes struct{ q50 quantile }

// perToken returns the median, 0 while there are too few answers.
func (o *outputTimes) perToken() float64 {
	if o.q50.N < timedAnswers {
		return 0
	}
	return math.Exp(o.q50.At)
}

// Answer is an answer that a caller of this process has freed.
type Answer struct {
	Tokens float64 // its length; 0: it is not known
	Timed  float64 // tokens after its first block; 0: it has no more
	Took   float64 // seconds that they took; 0: that is not known
	// Attended is how many tokens of prompts the rank's answers attended to meanwhile, in the mean.
	Attended float64
	// Computed is the time of the prefills that ended on the rank meanwhile, in seconds, as Computing returns it.
	Computed float64
}

// Generated learns from an answer.
func (l *Learner) Generated(slot uint32, r catalog.Rank, a Answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, m := l.state(slot, r), *l.model.Load()
	if a.Tokens > 0 {
		l.answers.addLength(a.Tokens)
	}
	if perToken := a.Took / a.Timed; perToken >= minPerOutput && perToken <= maxPerOutput { // not NaN
		s.outputs.q50.add(math.Log(perToken), 0.5)
		s.perOutput.Store(math.Float64bits(s.outputs.perToken()))
		l.outputs.q50.add(math.Log(perToken), 0.5)
		m.PerOutput = l.outputs.perToken()
		if m.Learned && m.PerOutput > 0 && !s.late.Load() {
			l.answers.addTime(a, math.Float64frombits(s.speed.Load()), m.PerOutput)
		}
	}
	m.PerAttended, m.Output = l.answers.perAttended(), l.answers.output()
	l.model.Store(&m)
}

// Computing returns how long a rank of speed 1 computes u tokens of a prompt, without Base; 0 until that is learned. Engines compute
// prompts beside answers, which are delayed by so much: their steps pass anyhow.
func (l *Learner) Computing(u, prompt uint64) time.Duration {
	m := l.Model()
	if !m.Learned {
		return 0
	}
	p := Parameters{PerToken: m.PerToken, PerContext: m.PerContext}
	return time.Duration(min(p.Prefill(float64(u), float64(prompt)), maxSeconds) * float64(time.Second))
}

// PerOutput returns the time that a rank takes for each token of an answer after the first one, in seconds: what was learned of
// it or, until that is enough, of its scope; 0 if that is too little as well. It takes no lock.
func (l *Learner) PerOutput(slot uint32, r catalog.Rank) float64 {
	if s := l.look(slot, r); s != nil {
		if own := math.Float64frombits(s.perOutput.Load()); own > 0 {
			return own
		}
	}
	return l.Model().PerOutput
}
