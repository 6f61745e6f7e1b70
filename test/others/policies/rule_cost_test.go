package policies

// Dynamo's default cost without weights (dynamo-kv-router 1.6.1), in blocks: those that the engine has to compute before and
// for the request, and those that its requests hold, each counted once.
func dynamoCost(b *Board, r *Request, i int) float64 {
	prefill, decode := costParts(b, r, i)
	return prefill + decode
}

// costParts are the two terms of the cost.
func costParts(b *Board, r *Request, i int) (prefill, decode float64) {
	l := &b.Engines[i]
	held := len(l.Blocks)
	for _, x := range r.Blocks {
		if l.Blocks[x] == 0 {
			held++
		}
	}
	return float64(l.Prefill+len(r.Prompt)-r.Cached[i]) / blockSize, float64(held)
}

// cheapest returns the engine with the least of Dynamo's costs.
func cheapest(b *Board, r *Request) int {
	return b.least(nil, func(i int) float64 { return dynamoCost(b, r, i) })
}

func startRoundRobin(w *world) Rule {
	next := -1
	return byBoard(func(b *Board, _ *Request) int {
		next++
		return next % len(b.Engines)
	}).start(w)
}
