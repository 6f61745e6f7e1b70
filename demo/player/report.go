package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/select-service/select-service/demo/sim/plot"
	"github.com/select-service/select-service/demo/sim/stats"
	"github.com/select-service/select-service/internal/simulation/workload"
)

// report has the results of all policies; its JSON is the file of --json.
type report struct {
	Config   config           `json:"config"`
	Engines  []engineModel    `json:"engines"`
	Workload workload.Summary `json:"workload"`
	Results  []result         `json:"results"`
	// Comparisons compares each policy with the first one.
	Comparisons []comparison `json:"comparisons,omitempty"`
}

func (r *report) heading() string {
	w, source := r.Workload, fmt.Sprintf("built-in %s, seed %d", r.Config.Workload, r.Config.Seed)
	if r.Config.Trace != "" {
		source = filepath.Base(r.Config.Trace)
	}
	if r.Config.Rate != 1 {
		source += fmt.Sprintf(", at %g times their rate", r.Config.Rate)
	}
	return fmt.Sprintf("%s requests in %.0f s of model time, %s prompt tokens each (%s); %s, %g times real time",
		stats.Thousands(w.Requests), w.Span.Seconds(), stats.Thousands(w.PromptTokens/max(1, w.Requests)), source,
		describe(r.Engines), r.Config.Speedup)
}

func (r *report) writeTable(w io.Writer) {
	name := len("select-service")
	for _, x := range r.Results {
		name = max(name, len(x.Policy))
	}
	row := "%-" + fmt.Sprint(name) + "s %9s %10s %10s %10s %10s %9s %12s %12s %14s\n"
	rounds := ""
	if r.Config.Rounds > 1 {
		rounds = fmt.Sprintf(", medians of %d rounds", r.Config.Rounds)
	}
	fmt.Fprintf(w, "\nMeasured inside the engines, in model time%s:\n\n", rounds)
	fmt.Fprintf(w, row, "policy", "hit rate", "TTFT mean", "p50", "p90", "p99", "TPOT", "load spread", "engine load", "choice (real)")
	fmt.Fprintln(w, strings.Repeat("-", name+105))
	for _, g := range byPolicy(r.Results) {
		x := median(g)
		fmt.Fprintf(w, row, x.Policy,
			fmt.Sprintf("%.1f %%", 100*x.HitRate),
			stats.Milliseconds(x.TTFTMeanMS), stats.Milliseconds(x.TTFTP50MS), stats.Milliseconds(x.TTFTP90MS), stats.Milliseconds(x.TTFTP99MS),
			fmt.Sprintf("%.1f ms", x.TPOTMeanMS),
			fmt.Sprintf("%.2f", x.BusySpread), fmt.Sprintf("%.0f %%", 100*x.Load),
			fmt.Sprintf("%.1f ms", x.ChoiceMeanMS))
	}
	fmt.Fprintf(w, "\nhit rate: prompt tokens found in the caches; TPOT: mean time per output token; load spread: busiest engine by the mean\n")
	for _, g := range byPolicy(r.Results) {
		if x := median(g); x.Sessions > 0 {
			fmt.Fprintf(w, "%s: last token after %s in the mean, p99 %s; %d whole sessions took %.1f s in the mean, p99 %.1f s\n",
				x.Policy, stats.Milliseconds(x.TotalMeanMS), stats.Milliseconds(x.TotalP99MS), x.Sessions, x.SessionMeanS, x.SessionP99S)
		}
	}
	writeComparisons(w, r.Comparisons)
	if len(r.Comparisons) > 0 {
		fmt.Fprintf(w, "\n+ choice: TTFT with the time before it until the engine was chosen, also in a queue of the service\n")
	}
	for _, x := range r.Results {
		if x.LateMaxMS > maxLate {
			fmt.Fprintf(w, "%s, round %d: the machine was too busy, requests came up to %.1f s of model time late; --speedup below %g helps\n",
				x.Policy, x.Round, x.LateMaxMS/1000, r.Config.Speedup)
		}
		if len(x.Phases) > 0 {
			fmt.Fprintln(w)
			writePhases(w, x.Phases)
			fmt.Fprintf(w, "all replicas were back after %.1f s of real time\n", x.DisturbedSeconds)
		}
		if len(x.Errors) > 0 {
			fmt.Fprintf(w, "%s: %d requests failed, %d more had failing lifecycle calls\n  %s\n", x.Policy, x.Failed, x.Unreported, strings.Join(x.Errors, "\n  "))
		}
	}
}

func (r *report) writeJSON(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("results: %w", err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return nil
}

// writePlot writes the plot to a file.
func (r *report) writePlot(path string) error {
	slow, err := r.Config.slowdowns()
	if err != nil {
		return err
	}
	p := plot.Plot{Heading: r.heading(), Slow: slow, Span: r.Workload.Span, Requests: r.Workload.Requests}
	for _, x := range r.Results {
		i := slices.IndexFunc(p.Series, func(s plot.Series) bool { return s.Name == x.Policy })
		if i < 0 {
			i = len(p.Series)
			p.Series = append(p.Series, plot.Series{Name: x.Policy, Bold: x.Model != ""})
		}
		for _, f := range x.first {
			p.Series[i].First = append(p.Series[i].First, plot.FirstToken{At: f.at, TTFT: f.ttft})
		}
	}
	if err := os.WriteFile(path, []byte(p.Draw()), 0o644); err != nil {
		return fmt.Errorf("write plot: %w", err)
	}
	return nil
}

// failures returns an error if a request failed, since the figures are then not comparable, or
// if the play has not recovered from a disturbance.
func (r *report) failures() error {
	failed := 0
	for _, x := range r.Results {
		failed += x.Failed
		if x.Spoilt {
			return errors.New(x.Errors[len(x.Errors)-1])
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d requests failed", failed)
	}
	return nil
}
