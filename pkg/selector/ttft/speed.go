package ttft

// ratio is the average of observed to predicted times of one rank.
type ratio struct {
	Observed, Predicted float64 // seconds; each sample counts 1−speedWeight times what the next one does
}

const (
	speedWeight = 0.05
	// priorTime, in seconds, is what a rank's first observations have to outweigh.
	priorTime = 1.0
	// leastPrediction, in seconds, bounds what a sample of next to nothing can say.
	leastPrediction = 1e-3

	// Within [1/deadBand, deadBand] a ratio is taken for chance.
	deadBand = 1.4
	minSpeed = 0.5
	maxSpeed = 4.0
)

func newRatio() ratio { return ratio{priorTime, priorTime} }

func (r *ratio) add(observed, predicted float64) {
	r.Observed = r.Observed*(1-speedWeight) + observed
	r.Predicted = r.Predicted*(1-speedWeight) + max(predicted, leastPrediction)
}

// speed returns m, by which the predicted times of the rank are multiplied.
func (r *ratio) speed() float64 {
	m := r.Observed / r.Predicted
	if m >= 1/deadBand && m <= deadBand {
		return 1
	}
	return min(max(m, minSpeed), maxSpeed)
}
