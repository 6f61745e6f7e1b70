package selector

import "math"

// LoadOrdered is a policy whose cost, among ranks that hold the same part of a prompt,
// rises with a weighted sum of a rank's loads. The cheapest of these ranks can then be
// found without computing the costs of all.
type LoadOrdered interface {
	Policy
	// LoadOrder returns the order of the candidates with known loads that differ from like
	// only in these. ok is false if the costs of this decision do not have that form.
	LoadOrder(d *Decision, like *Candidate) (o LoadOrder, ok bool)
}

// LoadOrder is a weighted sum of loads. Costs differ as their sums do, multiplied by a
// number that is the same for all ranks, but for rounding and where they are cut off.
type LoadOrder struct {
	Token   float64 // of unfinished prefill
	Block   float64 // active
	Request float64 // active

	// rest is the sum of the absolute values of a cost's other terms, which are the same
	// for all ranks. cut is the most by which a cost is raised so that it is not negative.
	rest, cut float64
}

// Limit returns the sum above which a rank costs more than one with the sum least. A rank
// with a sum up to the limit may cost the same, or less because of rounding.
func (o *LoadOrder) Limit(least float64) float64 {
	const (
		exact    = 1 << 60        // sums above this may saturate
		rounding = 1. / (1 << 47) // relative; more than the error of some dozen operations
		smallest = 1e-300         // products below this may underflow
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
		own := max(float64(p.Tokens), float64(d.Weights.Cached(p, like))) / p.blockSize()
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

// PickCounted is Pick at temperature 0 where costs[i] is the cost of counts[i] candidates
// each; a count may be 0. It returns the index of the chosen cost, and which of its
// candidates is chosen, from 0: all candidates with the lowest cost have equal chances.
// i is -1 if there are no candidates.
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
