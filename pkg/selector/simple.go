package selector

import "math"

// RoundRobin takes the candidates in turn.
type RoundRobin struct{ greedy }

// Costs implements Policy. The unit is turns.
func (RoundRobin) Costs(d *Decision, dst []float64) []float64 {
	dst = dst[:0]
	n := uint64(len(d.Candidates))
	for i := range d.Candidates {
		turns := (uint64(i) + n - d.Turn%n) % n
		dst = append(dst, float64(turns+1)*d.Candidates[i].taint())
	}
	return dst
}

// Reasons implements Policy.
func (RoundRobin) Reasons(d *Decision, i int) Reasons { return d.ReasonsOf(i, "turns") }

// Needs implements Policy.
func (RoundRobin) Needs() Needs { return NeedTurn }

// Random gives the same chance to every candidate with the lowest taint factor: to all, if
// no preferred taint matches.
type Random struct{ greedy }

// Costs implements Policy: all are equal.
func (Random) Costs(d *Decision, dst []float64) []float64 {
	dst = dst[:0]
	for i := range d.Candidates {
		dst = append(dst, d.Candidates[i].taint())
	}
	return dst
}

// Reasons implements Policy.
func (Random) Reasons(d *Decision, i int) Reasons { return d.ReasonsOf(i, "turns") }

// Needs implements Policy.
func (Random) Needs() Needs { return 0 }

// LeastLoaded takes the candidate with the fewest active requests.
type LeastLoaded struct{ greedy }

// Costs implements Policy. The unit is requests, the new one included.
func (LeastLoaded) Costs(d *Decision, dst []float64) []float64 { return leastLoaded(d, dst) }

// Reasons implements Policy.
func (LeastLoaded) Reasons(d *Decision, i int) Reasons { return leastLoadedReasons(d, i) }

// Needs implements Policy.
func (LeastLoaded) Needs() Needs { return 0 }

func leastLoaded(d *Decision, dst []float64) []float64 {
	dst = dst[:0]
	for i := range d.Candidates {
		c := &d.Candidates[i]
		dst = append(dst, (float64(c.Requests)+1)*c.taint())
	}
	return dst
}

func leastLoadedReasons(d *Decision, i int) Reasons {
	r := d.ReasonsOf(i, "requests")
	r.Prefill, r.Decode = 1, float64(d.Candidates[i].Requests)
	return r
}

// PowerOfTwoChoices draws two candidates and takes the one with fewer active requests.
type PowerOfTwoChoices struct{ greedy }

// Costs implements Policy. The unit is requests, the new one included; the two drawn
// come before all others.
func (PowerOfTwoChoices) Costs(d *Decision, dst []float64) []float64 {
	dst = leastLoaded(d, dst)
	if n := len(dst); n > 2 {
		first, second := d.random().IntN(n), d.random().IntN(n-1)
		if second >= first {
			second++
		}
		putLast(dst, func(i int) bool { return i != first && i != second })
	}
	return dst
}

// Reasons implements Policy.
func (PowerOfTwoChoices) Reasons(d *Decision, i int) Reasons { return leastLoadedReasons(d, i) }

// Needs implements Policy.
func (PowerOfTwoChoices) Needs() Needs { return 0 }

func isFinite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }
