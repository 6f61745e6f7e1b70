package selector

import (
	"math"
	"math/rand/v2"
)

// Source is the randomness of a choice; *rand.Rand of math/rand/v2 is one. Unless
// it is safe for concurrent use, the caller must not share it between goroutines.
type Source interface {
	IntN(n int) int   // uniform in [0, n)
	Float64() float64 // uniform in [0, 1)
}

// Global returns the generator of the process: seeded at random, safe for
// concurrent use.
func Global() Source { return global{} }

type global struct{}

func (global) IntN(n int) int   { return rand.IntN(n) }
func (global) Float64() float64 { return rand.Float64() }

// Pick returns the index of the chosen cost, or -1 if there are none. Costs
// are finite.
//
// At temperature 0 it is the lowest one; costs that are exactly equal have
// equal chances. At temperature T > 0 the chance of a cost is proportional to
// exp(-(cost-min)/((max-min)*T)): because of the division by the spread, the
// odds depend on where the costs lie between the extremes, not on their unit.
func Pick(costs []float64, temperature float64, rnd Source) int {
	if len(costs) == 0 {
		return -1
	}
	lowest, highest := costs[0], costs[0]
	ties, first := 0, 0
	for i, cost := range costs {
		switch {
		case cost < lowest:
			lowest, ties, first = cost, 1, i
		case cost == lowest:
			ties++
		}
		highest = max(highest, cost)
	}
	switch {
	case lowest == highest:
		return rnd.IntN(len(costs))
	case temperature > 0:
		return softmax(costs, lowest, highest, temperature, rnd)
	case ties > 1:
		return tie(costs, lowest, rnd.IntN(ties))
	}
	return first
}

// tie returns the index of the n-th cost that equals value.
func tie(costs []float64, value float64, n int) int {
	for i, cost := range costs {
		if cost == value {
			if n == 0 {
				return i
			}
			n--
		}
	}
	return 0
}

// softmax computes every weight twice instead of keeping them, so that it needs
// no memory. The weight of the lowest cost is 1, so the sum is never 0.
func softmax(costs []float64, lowest, highest, temperature float64, rnd Source) int {
	unit := 1.0
	if math.IsInf(highest-lowest, 1) {
		unit = 0.5 // halves keep the spread finite
	}
	spread := unit*highest - unit*lowest
	weight := func(cost float64) float64 {
		return math.Exp(-((unit*cost - unit*lowest) / spread) / temperature)
	}
	var sum float64
	for _, cost := range costs {
		sum += weight(cost)
	}
	left := rnd.Float64() * sum
	last := 0
	for i, cost := range costs {
		chance := weight(cost)
		if chance == 0 {
			continue
		}
		if left < chance {
			return i
		}
		left -= chance
		last = i
	}
	return last // the sum's rounding left a remainder
}
