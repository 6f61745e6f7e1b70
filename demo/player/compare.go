package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/select-service/select-service/demo/sim/stats"
)

// ratio compares a figure of one policy with that of another in the same round: the median,
// lowest and highest ratio of all rounds.
type ratio struct {
	Median float64 `json:"median"`
	Least  float64 `json:"least"`
	Most   float64 `json:"most"`
}

func newRatio(ours, theirs []result, figure func(*result) float64) ratio {
	var all []float64
	for i := range ours {
		if base := figure(&theirs[i]); base > 0 {
			all = append(all, figure(&ours[i])/base)
		}
	}
	if len(all) == 0 {
		return ratio{}
	}
	return ratio{Median: stats.Quantile(all, 0.5), Least: slices.Min(all), Most: slices.Max(all)}
}

func (r ratio) String() string {
	if r.Least == r.Most {
		return fmt.Sprintf("%.2f", r.Median)
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f)", r.Median, r.Least, r.Most)
}

// comparison compares a policy with the first one.
type comparison struct {
	Policy    string `json:"policy"`
	Against   string `json:"against"`
	TTFTMean  ratio  `json:"ttft_mean"`
	TTFTP99   ratio  `json:"ttft_p99"`
	AskedMean ratio  `json:"asked_ttft_mean"` // with the choice before it
	AskedP99  ratio  `json:"asked_ttft_p99"`
	TPOTMean  ratio  `json:"tpot_mean"`
	TotalMean ratio  `json:"total_mean"`
}

// byPolicy groups results by policy, in the order of first play; within a group they are in
// the order of rounds.
func byPolicy(results []result) [][]result {
	var groups [][]result
	for _, x := range results {
		i := slices.IndexFunc(groups, func(g []result) bool { return g[0].Policy == x.Policy })
		if i < 0 {
			groups = append(groups, []result{x})
			continue
		}
		groups[i] = append(groups[i], x)
	}
	return groups
}

func compare(results []result) []comparison {
	groups := byPolicy(results)
	if len(groups) < 2 {
		return nil
	}
	base := groups[0]
	var all []comparison
	for _, g := range groups[1:] {
		all = append(all, comparison{
			Policy: g[0].Policy, Against: base[0].Policy,
			TTFTMean:  newRatio(g, base, func(x *result) float64 { return x.TTFTMeanMS }),
			TTFTP99:   newRatio(g, base, func(x *result) float64 { return x.TTFTP99MS }),
			AskedMean: newRatio(g, base, func(x *result) float64 { return x.AskedTTFTMeanMS }),
			AskedP99:  newRatio(g, base, func(x *result) float64 { return x.AskedTTFTP99MS }),
			TPOTMean:  newRatio(g, base, func(x *result) float64 { return x.TPOTMeanMS }),
			TotalMean: newRatio(g, base, func(x *result) float64 { return x.TotalMeanMS }),
		})
	}
	return all
}

// median returns a result whose figures are the medians of one policy's rounds.
func median(rounds []result) result {
	res := rounds[0]
	for _, figure := range []func(*result) *float64{
		func(x *result) *float64 { return &x.HitRate },
		func(x *result) *float64 { return &x.TTFTMeanMS },
		func(x *result) *float64 { return &x.TTFTP50MS },
		func(x *result) *float64 { return &x.TTFTP90MS },
		func(x *result) *float64 { return &x.TTFTP99MS },
		func(x *result) *float64 { return &x.TPOTMeanMS },
		func(x *result) *float64 { return &x.TotalMeanMS },
		func(x *result) *float64 { return &x.TotalP99MS },
		func(x *result) *float64 { return &x.SessionMeanS },
		func(x *result) *float64 { return &x.SessionP99S },
		func(x *result) *float64 { return &x.BusySpread },
		func(x *result) *float64 { return &x.Load },
		func(x *result) *float64 { return &x.ChoiceMeanMS },
	} {
		var all []float64
		for i := range rounds {
			all = append(all, *figure(&rounds[i]))
		}
		*figure(&res) = stats.Quantile(all, 0.5)
	}
	return res
}

func writeComparisons(w io.Writer, all []comparison) {
	if len(all) == 0 {
		return
	}
	name := len("policy")
	for _, c := range all {
		name = max(name, len(c.Policy))
	}
	row := "%-" + fmt.Sprint(name) + "s  %-17s %-17s %-17s %-17s %-17s %-17s"
	line := func(cells ...any) { fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf(row, cells...), " ")) }
	fmt.Fprintf(w, "\nBy the figures of %s:\n\n", all[0].Against)
	line("policy", "TTFT mean", "TTFT p99", "+ choice, mean", "+ choice, p99", "TPOT", "whole answer")
	fmt.Fprintln(w, strings.Repeat("-", name+106))
	for _, c := range all {
		line(c.Policy, c.TTFTMean, c.TTFTP99, c.AskedMean, c.AskedP99, c.TPOTMean, c.TotalMean)
	}
}
