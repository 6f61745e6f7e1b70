package selector

// Policy gives each candidate of a decision a cost; the lowest cost wins (see
// [Pick]). A policy is a pure function of the decision's facts: it keeps no state, so
// that it can be asked again for an explanation, or beside the policy that decides.
// Earlier decisions reach it as facts, see [History].
//
// A policy is safe for concurrent use.
type Policy interface {
	// Costs returns the cost of every candidate, in their order, in dst's memory where
	// that suffices. Costs are finite, not negative and in the policy's own unit; the
	// candidates' taint factors are included.
	Costs(d *Decision, dst []float64) []float64
	// Reasons returns the terms of candidate i's cost. It is for explanations only; a
	// decision takes Costs alone.
	Reasons(d *Decision, i int) Reasons
	// Temperature returns the temperature for [Pick].
	Temperature(d *Decision) float64
	// Needs returns what the policy needs from its host.
	Needs() Needs
}

// greedy is embedded in policies whose cheapest candidate always wins.
type greedy struct{}

// Temperature implements Policy: there is none.
func (greedy) Temperature(*Decision) float64 { return 0 }

// Needs is a set of the facts of a [Decision] that a policy reads beyond the prompt, the
// candidates and the weights, and of rules for its host.
type Needs uint8

// What a policy can need.
const (
	NeedQueues Needs = 1 << iota // Decision.Queues and Decision.Model
	NeedTurn                     // Decision.Turn
	NeedClass                    // Decision.Class
	// IgnoresTarget: the host does not restrict the candidates to the affinity target of
	// a request.
	IgnoresTarget
)

// Has reports whether n has all of what.
func (n Needs) Has(what Needs) bool { return n&what == what }

// Decision has the facts by which a policy decides.
type Decision struct {
	Prompt     Prompt
	Candidates []Candidate // all eligible ranks, in an order that stays the same
	// Weights are the service's, changed by the request's Override.
	Weights Weights
	// Rand is the source of a policy that draws candidates; nil is [Global].
	Rand Source

	// Each of the fields below is set only if the policy needs it.

	Queues []Queue // parallel to Candidates
	// Fetches, parallel to Candidates, has what the ranks' engines would fetch from others; nil: nothing. It needs Queues.
	Fetches []Fetch
	Model   Model
	Turn    uint64 // decisions before this one
	Class   Class
}

// Reasons has the terms of one candidate's cost. They are in the policy's unit; terms
// that it does not have are 0. Their sum times Taint is the cost, unless the policy
// compares by something other than a sum.
type Reasons struct {
	Unit               string // blocks, seconds, requests, tokens or turns
	Device, Host, Disk uint64 // tokens cached by tier, each beyond the ones before it
	Uncached           uint64 // tokens to compute
	Wait               float64
	Prefill            float64     // of the request itself
	Delay              float64     // of other requests, because of this one
	Decode             float64     // for requests that decode on the rank
	Answer             float64     // of the answer and of those on the rank, which slow one another
	Speed              float64     // the rank's time relative to its fleet's; above 1 is slower
	Taint              float64     // factor of the preferred taints; 1: none
	Source             ModelSource // of the times
}

// ModelSource tells where the coefficients of a cost come from.
type ModelSource string

// The sources.
const (
	Learned  ModelSource = "learned"  // from completed prefills
	Default  ModelSource = "default"  // configured, or nothing is learned yet
	Fallback ModelSource = "fallback" // a guard rail has replaced the policy
)

// ReasonsOf returns the reasons of candidate i that are the same under every policy.
// unit is the policy's.
func (d *Decision) ReasonsOf(i int, unit string) Reasons {
	c, size := &d.Candidates[i], uint64(max(d.Prompt.BlockSize, 1))
	return Reasons{
		Unit: unit, Speed: 1, Taint: c.taint(), Source: Default,
		Device: uint64(c.Device) * size, Host: uint64(c.Host) * size, Disk: uint64(c.Disk) * size,
		Uncached: d.Weights.EffectivePrefill(d.Prompt, c),
	}
}

func (d *Decision) random() Source {
	if d.Rand == nil {
		return Global()
	}
	return d.Rand
}

func (c *Candidate) taint() float64 {
	if c.Taint == 0 {
		return 1
	}
	return c.Taint
}
