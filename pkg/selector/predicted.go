package selector

import (
	"math"

	"github.com/select-service/select-service/pkg/selector/ttft"
)

// PredictedTTFT is the policy that takes the rank where a request costs the least time:
// its own time to first token plus the delay that it causes to other requests. See
// [ttft.Parameters.Cost].
type PredictedTTFT struct {
	// Own has the weights of host and disk, and the temperature. Without tracked prefill,
	// or where callers report it too late (Model.Fallback), the cost is Dynamo's, by
	// these weights.
	Own Weights
	// A request is sent at once to a rank with at most Hold seconds of work left; otherwise
	// it is held, for at most Longest seconds. With Hold 0 no request is held.
	Hold, Longest float64
}

// Model is what is known of a scope's engines and of the traffic to them.
type Model struct {
	ttft.Parameters
	Crowding ttft.Crowding
	// Fallback: because of a guard rail Dynamo's cost is used.
	Fallback bool
}

// Queue is the unfinished work of one rank.
type Queue = ttft.Queue

// ToCompute returns the tokens of p that the rank has to compute, as far as is known: those
// that are not cached there (each tier counts by its weight) and not shared with a prompt
// that is active there. It is at least 1.
func (w Weights) ToCompute(p Prompt, c *Candidate) uint64 {
	blocks := max(float64(c.Device)+w.Host*float64(c.Host)+w.Disk*float64(c.Disk), float64(c.Shared))
	cached := saturate(math.Round(p.blockSize() * blocks))
	return max(1, p.Tokens-min(p.Tokens, cached))
}

// fallback reports whether Dynamo's cost is used.
func (p *PredictedTTFT) fallback(d *Decision) bool {
	return d.Model.Fallback || !d.Weights.TrackPrefill
}

// dynamoCost returns Dynamo's cost function with the policy's own weights.
func (p *PredictedTTFT) dynamoCost() CostFunction { return CostFunction{Own: &p.Own} }

// cost returns the cost of candidate i, without its taint factor.
func (p *PredictedTTFT) cost(d *Decision, i int) ttft.Cost {
	return d.Predict(p.Own, i, p.queue(d, i))
}

// queue returns the unfinished work of candidate i; without queues there is none.
func (p *PredictedTTFT) queue(d *Decision, i int) *Queue {
	if i < len(d.Queues) {
		return &d.Queues[i]
	}
	return &Queue{}
}

// Costs implements Policy. The unit is seconds, or blocks where Dynamo's cost is used.
func (p *PredictedTTFT) Costs(d *Decision, dst []float64) []float64 {
	if p.fallback(d) {
		return p.dynamoCost().Costs(d, dst)
	}
	dst = dst[:0]
	for i := range d.Candidates {
		c := p.cost(d, i)
		dst = append(dst, min(c.Total()*d.Candidates[i].taint(), math.MaxFloat64))
	}
	return dst
}

// Temperature implements Policy.
func (p *PredictedTTFT) Temperature(*Decision) float64 { return p.Own.Temperature }

// Needs implements Policy.
func (p *PredictedTTFT) Needs() Needs { return NeedQueues }

// Reasons implements Policy.
func (p *PredictedTTFT) Reasons(d *Decision, i int) Reasons {
	if p.fallback(d) {
		r := p.dynamoCost().Reasons(d, i)
		r.Source = Fallback
		return r
	}
	r := d.ReasonsOf(i, "seconds")
	c := p.cost(d, i)
	r.Uncached = d.ToCompute(p.Own, i)
	r.Wait, r.Prefill, r.Delay, r.Decode, r.Answer, r.Speed = c.Wait, c.Prefill, c.Delay, c.Decode, c.Answer, c.Speed
	if d.Model.Learned {
		r.Source = Learned
	}
	return r
}
