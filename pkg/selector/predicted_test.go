package selector_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/select-service/select-service/pkg/selector"
)

// TestSlowerAnswers: of two idle ranks a prompt of 100,000 tokens goes to the one whose answers attend to less, and a longer wait there
// counts more in the end. Between short prompts, and where nothing is learned of answers, what they attend to changes no cost.
func TestSlowerAnswers(t *testing.T) {
	policy := &selector.PredictedTTFT{Own: selector.DefaultWeights()}
	decision := func(perAttended float64, tokens uint64, queues ...selector.Queue) *selector.Decision {
		d := &selector.Decision{
			Prompt: selector.Prompt{Tokens: tokens, Blocks: int(tokens / 16), BlockSize: 16}, Weights: selector.DefaultWeights(), Queues: queues,
			Rand: rand.New(rand.NewPCG(1, 2)),
		}
		for range queues {
			d.Candidates = append(d.Candidates, selector.Candidate{Known: true, Device: uint32(tokens / 16 * 9 / 10)})
		}
		d.Model.PerToken, d.Model.Learned, d.Model.PerAttended, d.Model.Output = 8e-5, true, perAttended, 500
		return d
	}
	const k = 44e-9
	full, free := selector.Queue{Decoding: 4, Prompts: 800_000}, selector.Queue{Decoding: 4, Prompts: 200_000}
	behind := func(q selector.Queue, tokens uint64) selector.Queue {
		q.Prefills, q.Tokens, q.HeadTokens, q.HeadPrompt = 1, float64(tokens), tokens, tokens
		return q
	}
	for name, tt := range map[string]struct {
		of   *selector.Decision
		want int
	}{
		"less is attended to":           {decision(k, 100_000, full, free), 1},
		"fewer requests":                {decision(k, 100_000, selector.Queue{Decoding: 9, Prompts: 200_000}, free), 1},
		"a slow rank":                   {decision(k, 100_000, selector.Queue{Decoding: 4, Prompts: 200_000, Speed: 2}, free), 1},
		"a short wait":                  {decision(k, 100_000, full, behind(free, 5_000)), 1},
		"a longer one":                  {decision(k, 100_000, full, behind(free, 50_000)), 0},
		"a short prompt, a longer wait": {decision(k, 1_000, full, behind(free, 50_000)), 0},
	} {
		costs := policy.Costs(tt.of, nil)
		if slices.Index(costs, slices.Min(costs)) != tt.want {
			t.Errorf("%s: costs %v, want rank %d", name, costs, tt.want)
		}
	}
	for name, of := range map[string]*selector.Decision{
		"nothing is learned": decision(0, 100_000, full, free),
		"prompts are short":  decision(k, 4_000, selector.Queue{Decoding: 10, Prompts: 80_000}, selector.Queue{Decoding: 10, Prompts: 8_000}),
	} {
		if c := policy.Costs(of, nil); c[0] != c[1] || policy.Reasons(of, 0).Answer != 0 {
			t.Errorf("where %s the costs are %v", name, c)
		}
	}
}
