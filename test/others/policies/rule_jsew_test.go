package policies

import "math"

// Dynamo's dynamo-jsew (lib/router-plugins/builtin/src/jsew.rs, ai-dynamo/dynamo at 6345a80f), join the shortest expected work,
// with the defaults of its authors: Dynamo's cost, whose second term d becomes
//
//	u = d · requests^0.13
//	c = u · (u / mean of all u)^0.2
//	1.526 · c + 17.601 · (expected blocks of work / blocks of the prompt) · c
//
// where the expected work is a moving average, with a weight of 0.01737, of the tokens that requests had to compute.
func startJSEW(w *world) Rule {
	expected := math.NaN()
	return byBoard(func(b *Board, r *Request) int {
		least := math.Inf(1)
		for i := range b.Engines {
			least = min(least, float64(len(r.Prompt)-r.Cached[i]))
		}
		if math.IsNaN(expected) {
			expected = least
		}
		expected = 0.01737*least + (1-0.01737)*expected
		unshared, mean := make([]float64, len(b.Engines)), 0.0
		for i := range b.Engines {
			_, decode := costParts(b, r, i)
			unshared[i] = decode * math.Pow(float64(max(1, b.Engines[i].Requests)), 0.13)
			mean += unshared[i] / float64(len(b.Engines))
		}
		ratio := expected / blockSize / float64(max(1, len(r.Blocks)))
		return b.least(nil, func(i int) float64 {
			prefill, _ := costParts(b, r, i)
			charged := unshared[i]
			if mean > 0 && charged > 0 {
				charged *= math.Pow(charged/mean, 0.2)
			}
			return prefill + (1.526+17.601*ratio)*charged
		})
	}).start(w)
}
