package selector_test

import (
	"math"
	"slices"
	"testing"

	"github.com/select-service/select-service/pkg/selector"
)

// TestDecodeCosts: what dynamo-kv-router 1.6.1 adds to the cost. The numbers of
// the prefix terms are those at which a running one changed its choice.
func TestDecodeCosts(t *testing.T) {
	prompt := selector.Prompt{Tokens: 32, Blocks: 8, BlockSize: 4}
	cands := []selector.Candidate{known(selector.Candidate{Device: 8, Active: 8, Requests: 2}), known(selector.Candidate{})}
	tests := map[string]struct {
		change func(*selector.Weights)
		want   []float64
	}{
		"tracked":            {func(w *selector.Weights) { w.PrefixOnly = true }, []float64{16, 16}},
		"requests":           {func(w *selector.Weights) { w.ActiveRequests = 0.5 }, []float64{17, 16}},
		"prefix":             {func(w *selector.Weights) { w.PrefixOnly, w.TrackPrefill = true, false }, []float64{8, 8}},
		"prefix of 1.3.1":    {func(w *selector.Weights) { w.TrackPrefill = false }, []float64{16, 8}},
		"no credit":          {func(w *selector.Weights) { w.PrefixOnly, w.TrackPrefill, w.OverlapCredit = true, false, 0 }, []float64{16, 8}},
		"credit of 2":        {func(w *selector.Weights) { w.PrefixOnly, w.TrackPrefill, w.OverlapCredit = true, false, 2 }, []float64{0, 8}},
		"credit of 3":        {func(w *selector.Weights) { w.PrefixOnly, w.TrackPrefill, w.OverlapCredit = true, false, 3 }, []float64{0, 8}},
		"scale is no matter": {func(w *selector.Weights) { w.PrefixOnly, w.TrackPrefill, w.PrefillScale = true, false, 9 }, []float64{8, 8}},
		"prefix, requests": {
			func(w *selector.Weights) {
				w.PrefixOnly, w.TrackPrefill, w.OverlapCredit, w.ActiveRequests = true, false, 3, 0.5
			}, []float64{1, 8},
		},
		"huge credit": {func(w *selector.Weights) {
			w.PrefixOnly, w.TrackPrefill, w.OverlapCredit = true, false, math.MaxFloat64
		}, []float64{0, 8}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := weights(tt.change)
			if got := w.Costs(prompt, cands, nil); !slices.Equal(got, tt.want) {
				t.Errorf("costs are %v, want %v", got, tt.want)
			}
			if credit := w.CreditBlocks(&cands[0]); math.IsInf(credit, 0) {
				t.Error("the credit is not finite")
			}
		})
	}
}

// TestPartial: the blocks that a prompt fills in part, as 1.6.1 counts them.
func TestPartial(t *testing.T) {
	for _, tt := range []struct {
		tokens uint64
		blocks int
		want   uint64
	}{{0, 0, 0}, {1, 0, 1}, {4, 3, 0}, {12, 3, 0}, {13, 3, 1}, {100, 3, 22}, {math.MaxUint64, 0, 1 << 62}} {
		p := selector.Prompt{Tokens: tt.tokens, Blocks: tt.blocks, BlockSize: 4}
		if got := p.Partial(); got != tt.want {
			t.Errorf("%d tokens, %d blocks: %d, want %d", tt.tokens, tt.blocks, got, tt.want)
		}
	}
}
