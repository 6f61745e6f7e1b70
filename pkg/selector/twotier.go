package selector

import "errors"

// TwoTier is the policy dynamo-two-tier-cost-fn of dynamo-kv-router 1.6.1. It takes the
// rank with the fewest active requests: of all ranks if their requests are out of
// balance; else of those with the longest device prefix, if that is long enough; else of
// all. As in Dynamo preferred taints have no effect. Equal ranks have equal chances; in
// Dynamo the first one wins.
type TwoTier struct {
	greedy
	// CacheThreshold is the share of the prompt's blocks, a partial one included, that
	// the longest device prefix must exceed; 0 to 1.
	CacheThreshold float64
	// The requests are out of balance if the most are more than BalanceAbs above the
	// fewest and more than BalanceRel times as many; BalanceRel is at least 1.
	BalanceAbs uint64
	BalanceRel float64
	// RespectSoftAffinity: the affinity target of a request takes precedence over all this.
	RespectSoftAffinity bool
}

// DefaultTwoTier returns the defaults of dynamo-kv-router 1.6.1.
func DefaultTwoTier() TwoTier {
	return TwoTier{CacheThreshold: 0.5, BalanceAbs: 32, BalanceRel: 1.1}
}

// Check returns what is wrong with the parameters, in the words of
// dynamo-kv-router 1.6.1.
func (t TwoTier) Check() error {
	switch {
	case !(t.CacheThreshold >= 0 && t.CacheThreshold <= 1):
		return errors.New("cache_threshold must be a finite number between 0.0 and 1.0")
	case !isFinite(t.BalanceRel) || t.BalanceRel < 1:
		return errors.New("balance_rel_threshold must be a finite number greater than or equal to 1.0")
	}
	return nil
}

// Costs implements Policy. The unit is requests, the new one included; the ranks that
// do not have the longest prefix come after those that have it.
func (t TwoTier) Costs(d *Decision, dst []float64) []float64 {
	dst = dst[:0]
	if len(d.Candidates) == 0 {
		return dst
	}
	for i := range d.Candidates {
		dst = append(dst, float64(d.Candidates[i].Requests)+1)
	}
	fewest, most, longest := d.Candidates[0].Requests, uint32(0), uint32(0)
	for i := range d.Candidates {
		c := &d.Candidates[i]
		fewest, most, longest = min(fewest, c.Requests), max(most, c.Requests), max(longest, c.Device)
	}
	if uint64(most-fewest) > t.BalanceAbs && float64(most) > t.BalanceRel*float64(fewest) {
		return dst
	}
	blocks := d.Prompt.Partial() + uint64(max(d.Prompt.Blocks, 0))
	if blocks == 0 || float64(longest)/float64(blocks) <= t.CacheThreshold {
		return dst
	}
	putLast(dst, func(i int) bool { return d.Candidates[i].Device < longest })
	return dst
}

// Reasons implements Policy.
func (TwoTier) Reasons(d *Decision, i int) Reasons {
	r := leastLoadedReasons(d, i)
	r.Taint = 1
	return r
}

// Needs implements Policy.
func (t TwoTier) Needs() Needs {
	if t.RespectSoftAffinity {
		return 0
	}
	return IgnoresTarget
}

// putLast raises the costs of some candidates above those of all others. Their order
// among themselves stays.
func putLast(costs []float64, is func(i int) bool) {
	highest := 0.0
	for i, cost := range costs {
		if !is(i) {
			highest = max(highest, cost)
		}
	}
	for i := range costs {
		if is(i) {
			costs[i] += highest + 1
		}
	}
}
