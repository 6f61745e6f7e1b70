package selector

import "github.com/select-service/select-service/pkg/selector/ttft"

// FetchMode says when engines are told to fetch KV caches from one another.
type FetchMode uint8

// The modes. The zero value is what workers ask for by their records, as in dynamo-kv-router 1.6.1.
const (
	FetchContract FetchMode = iota // from the rank that has the most of the prompt, if that is more than the chosen one has
	FetchOff                       // never
	FetchPriced                    // where that is predicted to be sooner than computing, which the choice then knows
)

// String gives the mode's name.
func (m FetchMode) String() string { return [...]string{"contract", "off", "priced"}[m] }

// Fetch is what a rank's engine is to fetch from another one, in place of computing it. The zero value is nothing.
type Fetch struct {
	Tokens uint64  // of those that the rank would have to compute
	Time   float64 // seconds until they are there. The engine computes for others meanwhile.
	// Unshared: what the rank shares with active prompts is not there before the request begins, since its engine fetches it too.
	Unshared bool
}

// ToCompute returns how many tokens of the prompt candidate i has to compute by the weights, without those that it
// fetches. It is at least 1.
func (d *Decision) ToCompute(w Weights, i int) uint64 {
	c, f := d.Candidates[i], d.fetch(i)
	if f.Unshared {
		c.Shared = 0
	}
	u := w.ToCompute(d.Prompt, &c)
	return max(1, u-min(u, f.Tokens))
}

// fetch returns what candidate i fetches.
func (d *Decision) fetch(i int) Fetch {
	if i < len(d.Fetches) {
		return d.Fetches[i]
	}
	return Fetch{}
}

// Predict returns the predicted times of candidate i on a rank with the work of q, for the tokens to compute by the
// weights. The time to fetch is part of Prefill, but delays nobody.
func (d *Decision) Predict(w Weights, i int, q *Queue) (c ttft.Cost) {
	c = d.Model.Cost(float64(d.ToCompute(w, i)), float64(d.Prompt.Tokens), q, d.Model.Crowding)
	c.Prefill += d.fetch(i).Time
	return c
}
