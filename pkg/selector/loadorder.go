package selector

import "math"

// LoadOrdered is a policy by whose costs the ranks that have the same of a prompt are in
// the order of their loads: the cost rises with a weighted sum of what a rank carries.
// The best of them can then be found without a look at the others.
type LoadOrdered interface {
	Policy
	// LoadOrder returns the order of the known candidates that differ from like in their
	// loads alone. ok is false if the decision does not have that form.
	LoadOrder(d *Decision, like *Candidate) (o LoadOrder, ok bool)
}

// LoadOrder is a weighted sum of loads. Costs differ as their sums do, multiplied by a
// number that is the same for all ranks, but for rounding and where they are cut off.
type LoadOrder struct {
	Token   float64 // of unfinished prefill
	Block   float64 // active
	Request float64 // active

	// rest is what the cost of every rank consists of beside the sum, each term as an
	// amount. cut is by how much a cost may be raised because it would be negative.
	rest, cut float64
}

// Limit returns a sum: the ranks whose sums are above it cost more than one that has the
// sum least. Those up to it may cost as much, or less by rounding.
func (o *LoadOrder) Limit(least float64) float64 {
	const (
		exact    = 1 << 60        // sums above may saturate
		rounding = 1. / (1 << 47) // more than that of some dozen operations
		smallest = 1e-300         // where products underflow
	)
	all := least + o.rest
	if !(all < exact) {
		return math.Inf(1)
	}
	return least + all*rounding + o.cut + smallest
}

// LoadOrder implements LoadOrdered. With a decay of the overlap credit the cost of a rank
// depends on the loads of others.
func (f CostFunction) LoadOrder(d *Decision, like *Candidate) (o LoadOrder, ok bool) {
	w, p := f.weights(d), d.Prompt
	blocks := uint64(max(p.Blocks, 0))
	o = LoadOrder{Block: 1, Request: w.ActiveRequests, rest: float64(blocks - min(blocks, uint64(like.Shared)))}
	credit := w.credit(like, w.OverlapCredit)
	switch {
	case w.TrackPrefill:
		own := max(float64(p.Tokens), float64(w.Cached(p, like))) / p.blockSize()
		o.Token = w.PrefillScale / p.blockSize()
		o.cut = w.PrefillScale * max(0, credit-own)
		o.rest += w.PrefillScale * (own + credit)
	case w.PrefixOnly && w.OverlapCredit > 0:
		o.cut = max(0, credit-o.rest)
		o.rest += credit
	}
	return o, w.Temperature == 0 && (w.CreditDecay == 0 || !w.TrackPrefill)
}

// LoadOrder implements LoadOrdered.
func (LeastLoaded) LoadOrder(*Decision, *Candidate) (LoadOrder, bool) {
	return LoadOrder{Request: 1, rest: 1}, true
}

// LoadOrder implements LoadOrdered. The guard against hot spots compares all ranks.
func (m LMetric) LoadOrder(*Decision, *Candidate) (LoadOrder, bool) {
	return LoadOrder{Request: 1, rest: 1}, m.WithoutGuard
}

// PickCounted is Pick at temperature 0 where each cost stands for a number of candidates,
// which may be none. It returns the index of the chosen cost, and which of its candidates
// is chosen: each one with the lowest cost has the same chance. i is -1 if there are none.
func PickCounted(costs []float64, counts []int, rnd Source) (i, nth int) {
	lowest, ties, first := math.Inf(1), 0, -1
	for i, cost := range costs {
		switch {
		case counts[i] == 0 || cost > lowest:
		case cost < lowest:
			lowest, ties, first = cost, counts[i], i
		default:
			ties += counts[i]
		}
	}
	if ties <= 1 {
		return first, 0
	}
	n := rnd.IntN(ties)
	for i, cost := range costs {
		if cost == lowest {
			if n < counts[i] {
				return i, n
			}
			n -= counts[i]
		}
	}
	return first, 0
}
