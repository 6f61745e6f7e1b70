package policies

// prefillRate is about what a simulated engine computes of prompts of medium length, in tokens a second.
const prefillRate = 25_000

// llm-d's default, optimized-baseline (lib/router-plugins/builtin/src/llm_d/optimized_baseline.rs of ai-dynamo/dynamo has a port,
// llm-d's documentation the constants): if some engines hold at least 0.80 of the prompt, they alone are candidates, unless the
// tokens of their requests, at the rate of an engine, take 18 s longer than those of the best other engine. Of the candidates
// the one that has the fewest tokens to compute, the request's included.
func startLLMD(rate float64) func(w *world) Rule {
	return byBoard(func(b *Board, r *Request) int {
		wait := func(i int) float64 { return float64(b.Engines[i].Prompts) / rate }
		shortest := wait(b.least(nil, wait))
		var holders []int
		for i, tokens := range r.Cached {
			if float64(tokens) >= 0.8*float64(len(r.Prompt)) && wait(i)-shortest <= 18 {
				holders = append(holders, i)
			}
		}
		return b.least(holders, func(i int) float64 { return float64(b.Engines[i].Prefill + len(r.Prompt) - r.Cached[i]) })
	}).start
}
