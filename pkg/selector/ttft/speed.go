package ttft

// ratio is the average of observed to predicted times of one rank.
type ratio struct {
	Observed, Predicted float64 // sums of seconds; each sample weighs 1−speedWeight times as much as the next one
}

const (
	speedWeight = 0.05
	// priorTime, in seconds, is the initial value of both sums: the first samples have to
	// outweigh it.
	priorTime = 1.0
	// leastPrediction, in seconds, is the smallest prediction that counts, so that a tiny
	// one does not make a huge ratio.
	leastPrediction = 1e-3

	// A ratio within [1/deadBand, deadBand] counts as 1: the difference may be chance.
	deadBand = 1.4
	minSpeed = 0.5
	maxSpeed = 4.0
)

func newRatio() ratio { return ratio{priorTime, priorTime} }

func (r *ratio) add(observed, predicted float64) {
	r.Observed = r.Observed*(1-speedWeight) + observed
	r.Predicted = r.Predicted*(1-speedWeight) + max(predicted, leastPrediction)
}

// speed returns m, the factor of the rank's predicted times.
func (r *ratio) speed() float64 {
	m := r.Observed / r.Predicted
	if m >= 1/deadBand && m <= deadBand {
		return 1
	}
	return min(max(m, minSpeed), maxSpeed)
}
