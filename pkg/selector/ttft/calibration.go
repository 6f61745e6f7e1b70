package ttft

import (
	"cmp"
	"math"
	"slices"

	"github.com/select-service/select-service/pkg/catalog"
)

// The observed time to first token of a request, from its reservation to its prefill_complete, over the time that was
// predicted for it is the error of the prediction. Its quantiles say how far predictions can be trusted.

const (
	// CalibratedSamples is the number of compared predictions from which on the quantiles of a scope count.
	CalibratedSamples = 100
	// calibratedRank is the same for those of a single rank, before which its scope's are taken.
	calibratedRank = 50
	// An error is cut off at maxError, and at its inverse.
	maxError = 20.0
	// leastStep is the step of a quantile, in the logarithm of the error, once enough samples have come.
	leastStep = 0.05
	// recentPredictions is the number of latest predictions of a scope that Deciles compares.
	recentPredictions = 256
)

// quantile follows a quantile of a stream: with each sample it moves up by p times its step if the sample is above it, and
// down by (1−p) times its step if not. This is the descent along the gradient of the quantile loss (Koenker and Bassett,
// Regression Quantiles, 1978, with the steps of Robbins and Monro, 1951). Whatever samples come, the share of n samples
// that were not above it differs from p by at most (their range + step)/(n·step) (Gibbs and Candès, Adaptive Conformal
// Inference under Distribution Shift, 2021, proposition 4.1).
type quantile struct {
	N  uint64  // samples
	At float64 // where it is
}

func (q *quantile) add(x, p float64) {
	if q.N++; q.N == 1 {
		q.At = x
		return
	}
	step := max(leastStep, 1/float64(q.N))
	if x > q.At {
		q.At += step * p
	} else {
		q.At -= step * (1 - p)
	}
}

// errorQuantiles follows the median and the ninth decile of the logarithms of errors.
type errorQuantiles struct{ q50, q90 quantile }

func (e *errorQuantiles) add(observed, predicted float64) {
	x := math.Log(min(max(observed/predicted, 1/maxError), maxError))
	e.q50.add(x, 0.5)
	e.q90.add(x, 0.9)
}

// stepError follows the median error of the predicted times of prefills that follow another one on their rank, as a part of Base.
// Base is learned from all prefills, also of prompts that first wait for the end of a step in which their engine generates. Those that
// follow another one begin with a step. A report that is late moves the median by one step, and never beyond Base.
type stepError struct{ q50 quantile }

// steppedPrefills is the number of such prefills from which on the median counts.
const steppedPrefills = 20

// add takes by how many seconds such a prefill has taken longer than predicted, on a rank of speed 1. One that was computed in one step with
// the one before it has taken hardly any time: it counts as one without Base.
func (e *stepError) add(longer, base float64) {
	if base > 0 {
		e.q50.add(min(max(longer/base, -1), 1), 0.5)
	}
}

// sooner returns by how many seconds less than predicted half of them take, from 0 to base; 0 while there are too few.
func (e *stepError) sooner(base float64) float64 {
	if e.q50.N < steppedPrefills {
		return 0
	}
	return base * min(max(-e.q50.At, 0), 1)
}

// Calibration says how far predicted times to first token are off: quantiles of observed over predicted ones.
type Calibration struct {
	Samples uint64 // predictions that were compared
	// Q50 and Q90 are the median and the ninth decile, 1 without samples. Q90 is not below Q50.
	Q50, Q90 float64
}

func (e *errorQuantiles) calibration() Calibration {
	return Calibration{e.q90.N, math.Exp(e.q50.At), math.Exp(max(e.q50.At, e.q90.At))}
}

// prediction is a predicted time to first token that could be compared, in seconds.
type prediction struct {
	predicted, observed float32
	held                bool // observed was at most the ninth decile
}

// predictions are the latest ones of a scope. The zero value has none.
type predictions struct {
	ring []prediction
	next int
}

func (p *predictions) add(x prediction) {
	if len(p.ring) < recentPredictions {
		p.ring = append(p.ring, x)
		return
	}
	p.ring[p.next] = x
	p.next = (p.next + 1) % recentPredictions
}

// Decile has the means of a tenth of the latest predictions, by the predicted time.
type Decile struct{ Predicted, Observed float64 } // seconds

// Compared is how the latest predictions of a scope, at most 256, compare with what was observed.
type Compared struct {
	Predictions int
	// Held is the share of the observed times that were at most the predicted ninth decile: 0.9 if that is right.
	Held float64
	// Deciles are the tenths from the shortest predicted times to the longest; nil: there are fewer than ten predictions.
	Deciles []Decile
}

func (p *predictions) compare() Compared {
	n := len(p.ring)
	c := Compared{Predictions: n}
	if n == 0 {
		return c
	}
	sorted := slices.SortedFunc(slices.Values(p.ring), func(a, b prediction) int { return cmp.Compare(a.predicted, b.predicted) })
	for _, x := range sorted {
		if x.held {
			c.Held += 1 / float64(n)
		}
	}
	if n < 10 {
		return c
	}
	for i := range 10 {
		tenth := sorted[i*n/10 : (i+1)*n/10]
		var d Decile
		for _, x := range tenth {
			d.Predicted += float64(x.predicted) / float64(len(tenth))
			d.Observed += float64(x.observed) / float64(len(tenth))
		}
		c.Deciles = append(c.Deciles, d)
	}
	return c
}

// calibrate compares the prediction of a sample with what was observed. It needs l.mu.
func (l *Learner) calibrate(s *rankState, predicted, observed float64) {
	if !(predicted > 0) || !(observed > 0) {
		return
	}
	predicted, observed = min(predicted, maxSeconds), min(observed, maxSeconds)
	l.recently.add(prediction{float32(predicted), float32(observed), observed <= predicted*s.margin(l.errors.calibration().Q90)})
	l.errors.add(observed, predicted)
	s.errors.add(observed, predicted)
}

// margin returns the ninth decile of the rank's errors, or that of its scope while the rank has too few.
func (s *rankState) margin(scope float64) float64 {
	if own := math.Float64frombits(s.q90.Load()); own > 0 {
		return own
	}
	return scope
}

// Margin returns how many times its predicted time to first token nine of ten requests to a rank take at most.
func (l *Learner) Margin(slot uint32, r catalog.Rank) float64 {
	scope := l.Model().Calibration.Q90
	if s := l.look(slot, r); s != nil {
		return s.margin(scope)
	}
	return scope
}

// Railed reports whether a guard rail of the rank is engaged.
func (l *Learner) Railed(slot uint32, r catalog.Rank) bool {
	s := l.look(slot, r)
	if s == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return s.stalled || s.late.Load()
}

// Compare compares the latest predictions with what was observed.
func (l *Learner) Compare() Compared {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.recently.compare()
}
