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

// Generated records an answer that a caller of this process has freed: after its first tokens, so many further ones came in the
// given time.
func (l *Learner) Generated(slot uint32, r catalog.Rank, tokens uint64, took time.Duration) {
	perToken := took.Seconds() / float64(tokens)
	if !(perToken >= minPerOutput && perToken <= maxPerOutput) { // NaN, too
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.state(slot, r)
	s.outputs.q50.add(math.Log(perToken), 0.5)
	s.perOutput.Store(math.Float64bits(s.outputs.perToken()))
	l.outputs.q50.add(math.Log(perToken), 0.5)
	m := *l.model.Load()
	m.PerOutput = l.outputs.perToken()
	l.model.Store(&m)
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
