package policies

import "time"

// Preble's exploit and explore (Srivatsa et al., ICLR 2025, algorithm 2; AIBrix has it as prefix-cache-preble): if an engine holds
// more of the prompt than it lacks, the request goes to the one that holds most, the least loaded of these. Otherwise to the
// engine with the least cost: the tokens that it was given to compute in the last three minutes, and those that the request adds.
// An engine whose cost is more than twice that of the least loaded one passes its requests on to that one.
func startPreble(w *world) Rule {
	type given struct {
		at     time.Time
		tokens int
	}
	history := make([][]given, len(w.fleet.Speeds))
	return byBoard(func(b *Board, r *Request) int {
		load := func(i int) float64 {
			sum := 0
			for _, g := range history[i] {
				sum += g.tokens
			}
			return float64(sum)
		}
		for i := range history {
			for len(history[i]) > 0 && r.Asked.Sub(history[i][0].at) > 3*time.Minute {
				history[i] = history[i][1:]
			}
		}
		longest := r.Cached[b.least(nil, func(i int) float64 { return -float64(r.Cached[i]) })]
		var holders []int
		for i, tokens := range r.Cached {
			if tokens == longest && 2*tokens > len(r.Prompt) {
				holders = append(holders, i)
			}
		}
		lightest := b.least(nil, load)
		var to int
		if holders != nil {
			to = b.least(holders, load)
		} else {
			to = b.least(nil, func(i int) float64 { return load(i) + float64(len(r.Prompt)-r.Cached[i]) })
		}
		if load(to) > 2*load(lightest) && load(lightest) > 0 {
			to = lightest
		}
		history[to] = append(history[to], given{r.Asked, len(r.Prompt) - r.Cached[to]})
		return to
	}).start(w)
}
