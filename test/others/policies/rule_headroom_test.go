package policies

import (
	"context"

	"github.com/select-service/select-service/pkg/catalog"
)

// llm-d's least headroom, for requests with a target for the first token, with the defaults of its authors
// (guides/predicted-latency-routing/router/predicted-latency-slo.values.yaml of llm-d/llm-d at 8fc4c593; the plugins
// prefix-cache-affinity-filter, slo-headroom-tier-filter, latency-scorer, weighted-random-picker and latency-slo-admitter of
// llm-d/llm-d-router at 066c20ea, 45c38549, 2b0e7579 and 0f255d70). The engines that remain after these filters:
//
//   - those that hold 0.99 of the prompt, unless the least time predicted for them is 5 s longer than that of the others
//   - with a chance of 0.99 those that are predicted to hold the target, else the others
//   - those that hold 0.80 of the prompt, as above
//
// get as their weight 101 less a hundred times their distance to the target, from the least distance of them (0) to the greatest
// (1), and one is drawn by weight. If none is predicted to hold the target, only those count that have no request, if there are
// any. A request that may be refused (sheds) is, if none holds the target and each has a request.
//
// The predictions are those of this service's learner for the same requests, which knows that an engine is slow. llm-d's predictor
// takes all engines to be alike. Its second target, for the time between tokens, is not played.
type headroom struct {
	ours
	board *Board
	sheds bool
}

func startHeadroom(sheds bool) func(w *world) Rule {
	return func(w *world) Rule {
		h := &headroom{board: w.board, sheds: sheds}
		h.ours = drawing("predicted-ttft", 1, ours{})(w).(ours)
		return h
	}
}

func (h *headroom) Place(r *Request) int {
	ask := h.ask(r)
	x, err := h.Explain(context.Background(), ask)
	if err != nil {
		h.T.Fatal(err)
	}
	predicted := make([]float64, len(h.board.Engines))
	for _, c := range x.Candidates {
		predicted[c.Rank.Worker] = c.TTFT()
	}
	to, refused := h.choose(r, predicted)
	if refused {
		return refusedRequest
	}
	ask.Pinned = &catalog.Rank{Worker: uint64(to)}
	return h.book(ask)
}

func (h *headroom) choose(r *Request, predicted []float64) (to int, refused bool) {
	b, target := h.board, r.Target.Seconds()
	sticky := func(some []int, share float64) []int {
		holders := having(some, func(i int) bool { return float64(r.Cached[i]) >= share*float64(len(r.Prompt)) })
		others := having(some, func(i int) bool { return float64(r.Cached[i]) < share*float64(len(r.Prompt)) })
		if len(holders) == 0 || len(others) > 0 && shortest(predicted, holders) > shortest(predicted, others)+5 {
			return some
		}
		return holders
	}
	idle := func(i int) bool { return b.Engines[i].Requests == 0 }
	holds := func(i int) bool { return predicted[i] <= target }
	if h.sheds && len(having(all(b), holds)) == 0 && len(having(all(b), idle)) == 0 {
		return 0, true
	}
	some := sticky(all(b), 0.99)
	in, out := having(some, holds), having(some, func(i int) bool { return !holds(i) })
	switch {
	case len(in) > 0 && (len(out) == 0 || b.Random.Float64() >= 0.01):
		some = in
	default:
		some = out
	}
	some = sticky(some, 0.8)
	if !holds(some[0]) {
		if none := having(some, idle); len(none) > 0 {
			some = none
		}
	}
	return weighted(b, some, func(i int) float64 { return max(predicted[i]-target, target-predicted[i]) }), false
}

// having returns those of some engines for which a condition holds.
func having(some []int, condition func(i int) bool) (those []int) {
	for _, i := range some {
		if condition(i) {
			those = append(those, i)
		}
	}
	return those
}

func shortest(times []float64, some []int) float64 {
	least := times[some[0]]
	for _, i := range some {
		least = min(least, times[i])
	}
	return least
}

// weighted draws one of some engines: a weight of 101 for the one with the least distance, of 1 for the one with the greatest.
func weighted(b *Board, some []int, distance func(i int) float64) int {
	least, greatest := distance(some[0]), distance(some[0])
	for _, i := range some {
		least, greatest = min(least, distance(i)), max(greatest, distance(i))
	}
	weights, sum := make([]float64, len(some)), 0.0
	for k, i := range some {
		far := 0.5
		if greatest-least > 1e-9 {
			far = (distance(i) - least) / (greatest - least)
		}
		weights[k] = float64(int((1-far)*100) + 1)
		sum += weights[k]
	}
	draw := b.Random.Float64() * sum
	for k, i := range some {
		if draw -= weights[k]; draw < 0 {
			return i
		}
	}
	return some[len(some)-1]
}
