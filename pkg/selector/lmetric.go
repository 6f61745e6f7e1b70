package selector

// LMetric multiplies the tokens to compute by the requests that would be on the rank,
// so that neither needs a weight (arXiv 2603.15202).
type LMetric struct {
	greedy
	// WithoutGuard switches off the guard against hot spots: ranks whose prefix is asked
	// for so often that they fall behind.
	WithoutGuard bool
}

// ClassBlocks is how many leading blocks the requests of one [Class] have in common.
const ClassBlocks = 4

// Class is what is known of the requests that begin with the same ClassBlocks blocks as
// a prompt.
type Class struct {
	Hash  uint64  // sequence hash of the last of these blocks
	Known bool    // false: the prompt has fewer than ClassBlocks blocks
	Share float64 // of the last decisions, this one included; 0 to 1
	// Streak is the number of latest decisions for the class, without a break, that found
	// its prefix to be a hot spot and a rank with the prefix to be the cheapest.
	Streak int
}

// Costs implements Policy. The unit is tokens times requests. Once the prefix of the
// prompt's class has been a hot spot in twice as many decisions in a row as there are
// ranks with the prefix, these ranks come last.
func (m LMetric) Costs(d *Decision, dst []float64) []float64 {
	dst = m.costs(d, dst)
	if holders, hot := m.hot(d, dst); hot && d.Class.Streak+1 >= 2*holders {
		putLast(dst, func(i int) bool { return d.Candidates[i].Device >= ClassBlocks })
	}
	return dst
}

// costs are the costs without the guard.
func (LMetric) costs(d *Decision, dst []float64) []float64 {
	dst = dst[:0]
	for i := range d.Candidates {
		c := &d.Candidates[i]
		tokens := float64(max(1, d.Weights.EffectivePrefill(d.Prompt, c)))
		dst = append(dst, tokens*(float64(c.Requests)+1)*c.taint())
	}
	return dst
}

// hot reports whether this decision would add to a hot spot: a class of prompts with a
// greater share of the decisions than the ranks that hold its prefix have of all ranks,
// with one of these as the cheapest rank. holders is the number of these ranks.
func (m LMetric) hot(d *Decision, costs []float64) (holders int, hot bool) {
	if m.WithoutGuard || !d.Class.Known {
		return 0, false
	}
	best, bestHolder := -1.0, false
	for i, cost := range costs {
		holds := d.Candidates[i].Device >= ClassBlocks
		if holds {
			holders++
		}
		if best < 0 || cost < best || cost == best && !holds {
			best, bestHolder = cost, holds
		}
	}
	share, others := d.Class.Share, len(costs)-holders
	return holders, bestHolder && others > 0 && share*float64(others) > (1-share)*float64(holders)
}

// Reasons implements Policy: the cost is the product of Prefill, in tokens, and Decode,
// in requests.
func (LMetric) Reasons(d *Decision, i int) Reasons {
	r := d.ReasonsOf(i, "tokens")
	r.Prefill, r.Decode = float64(max(1, r.Uncached)), float64(d.Candidates[i].Requests)+1
	return r
}

// Needs implements Policy.
func (m LMetric) Needs() Needs {
	if m.WithoutGuard {
		return 0
	}
	return NeedClass
}
