package selector

import (
	"math"

	"github.com/select-service/select-service/pkg/selector/ttft"
)

// PredictedTTFT is the policy that takes the rank where a request costs least time: until
// its first token, and of those whom it holds up. See [ttft.Parameters.Cost].
type PredictedTTFT struct {
	// Own has the weights of host and disk, and the temperature. Without tracked prefill,
	// or where callers report it too late (Model.Fallback), the cost is Dynamo's, by
	// these weights.
	Own Weights
	// Hold, in seconds, is how much a rank may have left to compute for a request to be
	// sent to it at once; others are held, for Longest seconds at most. 0 holds none.
	Hold, Longest float64
}

// Model is what is known of a scope's engines and of what comes to them.
type Model struct {
	ttft.Parameters
	Crowding float64 // Λ, see [ttft.Flow.Crowding]
	// Fallback: a guard rail has put Dynamo's cost in force.
	Fallback bool
}

// Queue is the work on one rank that is not finished.
type Queue = ttft.Queue

// ToCompute returns the tokens of p that the rank has to compute, as far as is known: those
// that are neither cached there, each tier by its weight, nor of a prompt that is active
// there. It is at least 1.
func (w Weights) ToCompute(p Prompt, c *Candidate) uint64 {
	blocks := max(float64(c.Device)+w.Host*float64(c.Host)+w.Disk*float64(c.Disk), float64(c.Shared))
	cached := saturate(math.Round(p.blockSize() * blocks))
	return max(1, p.Tokens-min(p.Tokens, cached))
}

// fallback reports whether Dynamo's cost is in force.
func (f *PredictedTTFT) fallback(d *Decision) bool {
	return d.Model.Fallback || !d.Weights.TrackPrefill
}

// weights are for Dynamo's cost.
func (f *PredictedTTFT) weights() CostFunction { return CostFunction{Own: &f.Own} }

// cost is that of candidate i.
func (f *PredictedTTFT) cost(d *Decision, i int) ttft.Cost {
	var q *Queue
	if i < len(d.Queues) {
		q = &d.Queues[i]
	} else {
		q = &Queue{}
	}
	u := f.Own.ToCompute(d.Prompt, &d.Candidates[i])
	return d.Model.Cost(float64(u), float64(d.Prompt.Tokens), q, d.Model.Crowding)
}

// Costs implements Policy. The unit is seconds, or blocks where Dynamo's cost is in force.
func (f *PredictedTTFT) Costs(d *Decision, dst []float64) []float64 {
	if f.fallback(d) {
		return f.weights().Costs(d, dst)
	}
	dst = dst[:0]
	for i := range d.Candidates {
		c := f.cost(d, i)
		dst = append(dst, min(c.Total()*d.Candidates[i].taint(), math.MaxFloat64))
	}
	return dst
}

// Temperature implements Policy.
func (f *PredictedTTFT) Temperature(*Decision) float64 { return f.Own.Temperature }

// Needs implements Policy.
func (f *PredictedTTFT) Needs() Needs { return NeedQueues }

// Reasons implements Policy.
func (f *PredictedTTFT) Reasons(d *Decision, i int) Reasons {
	if f.fallback(d) {
		r := f.weights().Reasons(d, i)
		r.Source = Fallback
		return r
	}
	r := d.ReasonsOf(i, "seconds")
	c := f.cost(d, i)
	r.Uncached = f.Own.ToCompute(d.Prompt, &d.Candidates[i])
	r.Wait, r.Prefill, r.Delay, r.Decode, r.Speed = c.Wait, c.Prefill, c.Delay, c.Decode, c.Speed
	if d.Model.Learned {
		r.Source = Learned
	}
	return r
}
