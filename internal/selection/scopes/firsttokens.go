package scopes

import "sync"

// FirstTokens adds up the times to first token of a scope's kept decisions, observed and
// predicted. The zero FirstTokens has none.
type FirstTokens struct {
	mu    sync.Mutex // guards total
	total FirstTokenTimes
}

// FirstTokenTimes are sums over a number of decisions, in seconds.
type FirstTokenTimes struct {
	Decisions           uint64
	Observed, Predicted float64
}

// Note adds one decision.
func (f *FirstTokens) Note(observed, predicted float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.total.Decisions++
	f.total.Observed += observed
	f.total.Predicted += predicted
}

// Total returns the sums so far.
func (f *FirstTokens) Total() FirstTokenTimes {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.total
}
