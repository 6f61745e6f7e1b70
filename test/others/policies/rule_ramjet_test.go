package policies

// Dynamo's ramjet (lib/router-plugins/builtin/src/ramjet.rs, ai-dynamo/dynamo at 6dcfceb3, after helixml/ramjet at 5319354c)
// with its defaults: the greatest of
//
//	affinity - 4 · (requests + tokens to compute / 8192)
//
// where affinity is what the warmest engine holds of the prompt, in units of 512 tokens and 32 at most, less what the engine
// holds less than that one, also 32 at most. Among equals the one that holds more, then in turn.
func startRamjet(w *world) Rule {
	turn := 0
	return byBoard(func(b *Board, r *Request) int {
		warmest := 0
		for _, tokens := range r.Cached {
			warmest = max(warmest, tokens/512)
		}
		score := func(i int) float64 {
			l := &b.Engines[i]
			affinity := max(0, min(warmest, 32)-min(warmest-r.Cached[i]/512, 32))
			return float64(affinity) - 4*(float64(l.Requests)+float64(l.Prefill)/8192)
		}
		var best []int
		for i := range b.Engines {
			switch {
			case len(best) == 0, score(i) > score(best[0]), score(i) == score(best[0]) && r.Cached[i]/512 > r.Cached[best[0]]/512:
				best = append(best[:0], i)
			case score(i) == score(best[0]) && r.Cached[i]/512 == r.Cached[best[0]]/512:
				best = append(best, i)
			}
		}
		turn++
		return best[(turn-1)%len(best)]
	}).start(w)
}
