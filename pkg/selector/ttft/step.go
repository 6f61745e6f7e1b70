package ttft

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
