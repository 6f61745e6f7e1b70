package selector

// Policy gives each candidate of a decision a cost; the lowest cost wins (see
// [Pick]). A policy is a pure function of the decision's facts: it keeps nothing, so
// that it can be asked again for an explanation, or beside the policy that decides.
// What policies remember of earlier decisions is a fact, see [History].
//
// A policy is safe for concurrent use.
type Policy interface {
	// Costs returns the cost of every candidate, in their order, in dst's memory where
	// that suffices. Costs are finite, not negative and in the policy's own unit; the
	// candidates' taint factors are in them.
	Costs(d *Decision, dst []float64) []float64
	// Reasons returns what the cost of candidate i consists of. It is for explanations:
	// Costs does the work of a decision alone.
	Reasons(d *Decision, i int) Reasons
	// Temperature is that of [Pick].
	Temperature(d *Decision) float64
	// Needs says what the policy needs of its host.
	Needs() Needs
}

// greedy is embedded in policies whose cheapest candidate always wins.
type greedy struct{}

// Temperature implements Policy: there is none.
func (greedy) Temperature(*Decision) float64 { return 0 }

// Needs says which facts of a [Decision] a policy reads beyond the prompt, the
// candidates and the weights, and how its host is to treat it.
type Needs uint8

// What a policy can need.
const (
	NeedQueues Needs = 1 << iota // Decision.Queues and Decision.Model
	NeedTurn                     // Decision.Turn
	NeedClass                    // Decision.Class
	// IgnoresTarget: the affinity target of a request leaves all candidates in place.
	IgnoresTarget
)

// Has reports whether n has all of what.
func (n Needs) Has(what Needs) bool { return n&what == what }

// Decision has the facts that a policy decides by.
type Decision struct {
	Prompt     Prompt
	Candidates []Candidate // all eligible ranks, in an order that stays the same
	// Weights are the service's, with what the request changes about them.
	Weights Weights
	// Rand is the source of a policy that draws candidates; nil is [Global].
	Rand Source

	// Of the rest, each only where the policy needs it.

	Queues []Queue // parallel to Candidates
	Model  Model
	Turn   uint64 // decisions before this one
	Class  Class
}

// Reasons is what the cost of one candidate consists of. The terms are in the unit of
// the policy; those that it does not have are 0. With Taint as factor they add up to
// the cost, unless the policy compares otherwise than by a sum.
type Reasons struct {
	Unit               string // blocks, seconds, requests, tokens or turns
	Device, Host, Disk uint64 // tokens cached by tier, each beyond the ones before it
	Uncached           uint64 // tokens to compute
	Wait               float64
	Prefill            float64     // the request's own
	Delay              float64     // that others have of it
	Decode             float64     // for requests that decode on the rank
	Speed              float64     // the rank's time relative to its fleet's
	Taint              float64     // 1: none
	Source             ModelSource // of the times
}

// ModelSource says where the coefficients of a cost come from.
type ModelSource string

// The sources.
const (
	Learned  ModelSource = "learned"  // from completed prefills
	Default  ModelSource = "default"  // configured, or nothing is learned yet
	Fallback ModelSource = "fallback" // a guard rail has replaced the policy
)

// ReasonsOf returns the reasons that are the same under every policy.
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
