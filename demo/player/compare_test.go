package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestCompare proves that ratios are taken within a round, and that medians and ranges
// are those of the rounds.
func TestCompare(t *testing.T) {
	var results []result
	for round, mean := range [][2]float64{{100, 50}, {200, 60}, {1000, 900}} {
		results = append(results,
			result{Policy: "a", Round: round + 1, TTFTMeanMS: mean[0], TTFTP99MS: 10, HitRate: mean[0]},
			result{Policy: "b", Round: round + 1, TTFTMeanMS: mean[1], TTFTP99MS: 5})
	}
	want := []comparison{{
		Policy: "b", Against: "a",
		TTFTMean: ratio{Median: 0.5, Least: 0.3, Most: 0.9}, TTFTP99: ratio{0.5, 0.5, 0.5},
	}}
	if diff := cmp.Diff(want, compare(results)); diff != "" {
		t.Error(diff)
	}
	if got := median(byPolicy(results)[0]); got.TTFTMeanMS != 200 || got.HitRate != 200 {
		t.Errorf("medians %+v", got)
	}
	if compare(results[:1]) != nil {
		t.Error("one policy is set against another")
	}
	var text strings.Builder
	writeComparisons(&text, want)
	for _, want := range []string{"By the figures of a:", "0.50 (0.30–0.90)", "0.50 "} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, text.String())
		}
	}
}
