package ttft

// answerTimes fits the time of an output token to b + k·x, where x is how many tokens the rank's answers attend to, and follows the mean
// length of answers. The time of the prefills that ended on the rank meanwhile is taken from the time of an answer first: where more
// answers run, more prompts are computed as well, and k would have a part of their time. All sums forget as fit does. The zero value has
// seen no answer.
type answerTimes struct {
	N       uint64  `json:"answers"` // with a time
	Weight  float64 `json:"weight"`  // sum of the weights of the samples, likewise below
	X       float64 `json:"x"`       // of x
	Y       float64 `json:"y"`       // of the times per token, in seconds
	XX      float64 `json:"xx"`
	XY      float64 `json:"xy"`
	Lengths float64 `json:"lengths"` // of all answers whose length is known, in tokens
	Counted float64 `json:"counted"` // of the weights of these
}

const (
	// pricedAnswers is the number of answers from which on k counts.
	pricedAnswers = 20
	// leastSpread is the standard deviation of x, relative to its mean, at which k is taken to be half of what the samples say.
	// Where x hardly varies, they say little of k.
	leastSpread = 0.1
	// A time counts as at most slowAnswer times the median time per token: callers stop reading, and prompts of other callers are computed.
	// At least ownShare of it is left when the time of prefills is taken from it.
	slowAnswer = 4
	ownShare   = 0.1
	// A length counts as at most longAnswer times the mean, which is taken to be leastMean tokens at least: it may be what an
	// engine claims.
	longAnswer = 16
	leastMean  = 256
	// maxPerAttended bounds k, in seconds. It is 44 ns for a model of 8B parameters on one accelerator of 80 GB.
	maxPerAttended = 1e-5
)

// addTime takes the time of an answer on a rank of a speed, where usual is the median time per token.
func (t *answerTimes) addTime(a Answer, speed, usual float64) {
	took := a.Took / speed
	y := min(max(took-a.Computed, ownShare*took)/a.Timed, slowAnswer*usual)
	x := min(max(a.Attended, 0), maxTokens)
	for _, sum := range [...]*float64{&t.Weight, &t.X, &t.Y, &t.XX, &t.XY} {
		*sum *= forgetting
	}
	t.N, t.Weight, t.X, t.Y, t.XX, t.XY = t.N+1, t.Weight+1, t.X+x, t.Y+y, t.XX+x*x, t.XY+x*y
}

func (t *answerTimes) addLength(tokens float64) {
	tokens = min(tokens, longAnswer*max(t.output(), leastMean), maxTokens)
	t.Lengths, t.Counted = t.Lengths*forgetting+tokens, t.Counted*forgetting+1
}

// perAttended returns k, 0 while there are too few answers. b is not below 0.
func (t *answerTimes) perAttended() float64 {
	x, y := t.X/t.Weight, t.Y/t.Weight
	if t.N < pricedAnswers || !(x > 0) {
		return 0
	}
	k := (t.XY/t.Weight - x*y) / (max(0, t.XX/t.Weight-x*x) + leastSpread*leastSpread*x*x)
	if !(k > 0) { // NaN, of sums from a file
		return 0
	}
	return min(k, y/x, maxPerAttended)
}

// output returns the mean length of an answer.
func (t *answerTimes) output() float64 {
	if t.Counted == 0 {
		return 0
	}
	return min(t.Lengths/t.Counted, maxTokens)
}

// state returns what is kept of it, nil without answers.
func (t *answerTimes) state() *answerTimes {
	if t.Counted == 0 {
		return nil
	}
	kept := *t
	return &kept
}

// times returns the same sums; of nil those without answers.
func (t *answerTimes) times() answerTimes {
	if t == nil {
		return answerTimes{}
	}
	return *t
}

// plausible reports whether all sums are such as answers make.
func (t *answerTimes) plausible() bool {
	if t == nil {
		return true
	}
	for _, sum := range [...]float64{t.Weight, t.X, t.Y, t.XX, t.XY, t.Lengths, t.Counted} {
		if !(sum >= 0 && sum <= maxSum) { // NaN, too
			return false
		}
	}
	return true
}
