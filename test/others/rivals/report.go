package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/select-service/select-service/demo/sim/plot"
	"github.com/select-service/select-service/demo/sim/stats"
	"github.com/select-service/select-service/demo/sim/traffic"
)

// resultsFile has all results of a run.
const resultsFile = "results.json"

// report has all results; its JSON is resultsFile.
type report struct {
	Machine string   `json:"machine"`
	Rounds  int      `json:"rounds"`
	Paired  bool     `json:"paired"` // the contestants of a round played at once
	Results []result `json:"results"`
}

// result has the figures of one contestant in one round.
type result struct {
	Play       string  `json:"play"`
	Contestant string  `json:"contestant"`
	Round      int     `json:"round"`
	Load1      float64 `json:"load1"` // the machine's load average before the round
	Requests   int     `json:"requests"`
	Failed     int     `json:"failed"`
	Failure    string  `json:"failure,omitempty"` // one of them
	HitRate    float64 `json:"hit_rate"`
	TTFTMean   float64 `json:"ttft_mean_ms"`
	TTFTP50    float64 `json:"ttft_p50_ms"`
	TTFTP90    float64 `json:"ttft_p90_ms"`
	TTFTP99    float64 `json:"ttft_p99_ms"`
	TPOT       float64 `json:"tpot_mean_ms"`
	CPU        float64 `json:"cpu_ms"`                 // of all gateway processes, per request
	EnvoyCPU   float64 `json:"envoy_cpu_ms,omitempty"` // the part of CPU that Envoy took
	RSS        float64 `json:"rss_mib"`                // peak of all gateway processes

	First []plot.FirstToken `json:"first"` // for the plot

	disturbed error
}

func (r *result) fill(t *traffic.Result, cpu, envoyCPU time.Duration, rss int64) {
	ttft := t.TTFT()
	r.Requests, r.Failed, r.HitRate = len(ttft), t.Failed, t.HitRate()
	if t.Failure != nil {
		r.Failure = t.Failure.Error()
	}
	r.TTFTMean, r.TTFTP50, r.TTFTP90, r.TTFTP99 = stats.Mean(ttft), stats.Quantile(ttft, 0.5), stats.Quantile(ttft, 0.9), stats.Quantile(ttft, 0.99)
	r.TPOT = stats.Mean(t.TPOT())
	perRequest := func(d time.Duration) float64 {
		return float64(d) / float64(time.Millisecond) / float64(max(1, r.Requests))
	}
	r.CPU, r.EnvoyCPU = perRequest(cpu), perRequest(envoyCPU)
	r.RSS = float64(rss) / (1 << 20)
	for i, q := range t.Requests {
		r.First = append(r.First, plot.FirstToken{At: q.At, TTFT: ttft[i]})
	}
}

func (r *result) line() string {
	return fmt.Sprintf("%-13s %-17s %d  %s", r.Play, r.Contestant, r.Round, strings.Join(r.cells(), "  "))
}

// header has the names of cells.
var header = []string{"requests", "failed", "hit rate", "TTFT mean", "p50", "p90", "p99", "TPOT", "CPU a request", "RSS"}

func (r *result) cells() []string {
	cpu := fmt.Sprintf("%.2f ms", r.CPU)
	if r.EnvoyCPU > 0 {
		cpu += fmt.Sprintf(" (Envoy %.2f)", r.EnvoyCPU)
	}
	return []string{
		strconv.Itoa(r.Requests), strconv.Itoa(r.Failed), fmt.Sprintf("%.1f %%", 100*r.HitRate),
		fmt.Sprintf("%.1f ms", r.TTFTMean), fmt.Sprintf("%.1f ms", r.TTFTP50), fmt.Sprintf("%.1f ms", r.TTFTP90), fmt.Sprintf("%.1f ms", r.TTFTP99),
		fmt.Sprintf("%.1f ms", r.TPOT), cpu, fmt.Sprintf("%.0f MiB", r.RSS),
	}
}

// median has the median of each figure over the rounds of a contestant.
func median(rounds []result) result {
	m := rounds[0]
	of := func(figure func(*result) float64) float64 {
		var all []float64
		for i := range rounds {
			all = append(all, figure(&rounds[i]))
		}
		return stats.Quantile(all, 0.5)
	}
	m.Requests = int(of(func(r *result) float64 { return float64(r.Requests) }))
	m.Failed = int(of(func(r *result) float64 { return float64(r.Failed) }))
	m.HitRate = of(func(r *result) float64 { return r.HitRate })
	m.TTFTMean = of(func(r *result) float64 { return r.TTFTMean })
	m.TTFTP50 = of(func(r *result) float64 { return r.TTFTP50 })
	m.TTFTP90 = of(func(r *result) float64 { return r.TTFTP90 })
	m.TTFTP99 = of(func(r *result) float64 { return r.TTFTP99 })
	m.TPOT = of(func(r *result) float64 { return r.TPOT })
	m.CPU = of(func(r *result) float64 { return r.CPU })
	m.EnvoyCPU = of(func(r *result) float64 { return r.EnvoyCPU })
	m.RSS = of(func(r *result) float64 { return r.RSS })
	return m
}

// read reads the results of an earlier run, none if there was none.
func (rep *report) read(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, resultsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var before report
	if err := json.Unmarshal(text, &before); err != nil {
		return fmt.Errorf("%s: %w", resultsFile, err)
	}
	rep.Results = before.Results
	return nil
}

// has reports whether a round has been played.
func (rep *report) has(play, contestant string, round int) bool {
	return slices.ContainsFunc(rep.of(play, contestant), func(r result) bool { return r.Round == round })
}

// of returns the results of a contestant in a play, a round after the other.
func (rep *report) of(play, contestant string) (list []result) {
	for _, r := range rep.Results {
		if r.Play == play && r.Contestant == contestant {
			list = append(list, r)
		}
	}
	return list
}

// markdown has a table of medians for each play.
func (rep *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s. Medians of %d rounds.\n", rep.Machine, rep.Rounds)
	for _, p := range plays {
		if !slices.ContainsFunc(rep.Results, func(r result) bool { return r.Play == p.name }) {
			continue
		}
		fmt.Fprintf(&b, "\n**%s**: %s.\n\n| | %s |\n|---%s|\n", p.name, p.about, strings.Join(header, " | "), strings.Repeat("|---", len(header)))
		for _, c := range contestants {
			if rounds := rep.of(p.name, c.name); len(rounds) > 0 {
				m := median(rounds)
				fmt.Fprintf(&b, "| %s | %s |\n", c.name, strings.Join(m.cells(), " | "))
			}
		}
		for _, c := range contestants {
			if rounds := rep.of(p.name, c.name); c.ours && len(rounds) > 0 {
				rep.compare(&b, p.name, c.name, median(rounds))
			}
		}
		if rep.Paired {
			rep.ratios(&b, p.name)
		}
	}
	return b.String()
}

// base is the contestant by which ratios of paired rounds are taken.
const base = "smg"

// ratios writes the figures of each contestant by those of base in the same round: median, least and greatest.
func (rep *report) ratios(b *strings.Builder, play string) {
	figures := []func(r, by *result) float64{
		func(r, by *result) float64 { return r.CPU / by.CPU }, func(r, by *result) float64 { return r.EnvoyCPU / by.CPU },
		func(r, by *result) float64 { return r.TTFTP50 / by.TTFTP50 }, func(r, by *result) float64 { return r.TTFTP99 / by.TTFTP99 },
		func(r, by *result) float64 { return r.RSS / by.RSS },
	}
	b.WriteString("\n| by " + base + " of the same round | CPU | Envoy's part of it | TTFT p50 | p99 | RSS |\n|---|---|---|---|---|---|\n")
	by := rep.of(play, base)
	for _, c := range contestants {
		rounds := rep.of(play, c.name)
		if c.name == base || len(rounds) == 0 {
			continue
		}
		fmt.Fprintf(b, "| %s |", c.name)
		for _, figure := range figures {
			var all []float64
			for i := range rounds {
				if at := slices.IndexFunc(by, func(r result) bool { return r.Round == rounds[i].Round }); at >= 0 {
					all = append(all, figure(&rounds[i], &by[at]))
				}
			}
			if len(all) == 0 {
				b.WriteString(" – |")
				continue
			}
			fmt.Fprintf(b, " %.2f (%.2f–%.2f) |", stats.Quantile(all, 0.5), slices.Min(all), slices.Max(all))
		}
		b.WriteString("\n")
	}
}

// compare says how one of ours stands beside the best of the other gateways, for each figure by
// itself.
func (rep *report) compare(b *strings.Builder, play, name string, ours result) {
	var best *result
	for _, c := range contestants {
		rounds := rep.of(play, c.name)
		if !c.rival || len(rounds) == 0 {
			continue
		}
		m := median(rounds)
		if best == nil {
			best = &m
			continue
		}
		best.HitRate, best.Failed = max(best.HitRate, m.HitRate), min(best.Failed, m.Failed)
		best.TTFTMean, best.TTFTP50, best.TTFTP99 = min(best.TTFTMean, m.TTFTMean), min(best.TTFTP50, m.TTFTP50), min(best.TTFTP99, m.TTFTP99)
		best.CPU = min(best.CPU, m.CPU)
	}
	if best == nil {
		return
	}
	fmt.Fprintf(b, "\n%s by the best rival of each figure: hit rate %+.1f points, TTFT mean %.2f, p50 %.2f, p99 %.2f, CPU %.1f, failed %+d.\n", name,
		100*(ours.HitRate-best.HitRate), ours.TTFTMean/best.TTFTMean, ours.TTFTP50/best.TTFTP50, ours.TTFTP99/best.TTFTP99, ours.CPU/best.CPU, ours.Failed-best.Failed)
}

// write writes all results so far, and the plot of the last play.
func (rep *report) write(dir string) error {
	text, err := json.Marshal(rep)
	if err != nil {
		return err
	}
	last := rep.Results[len(rep.Results)-1].Play
	for name, data := range map[string][]byte{
		resultsFile: append(text, '\n'), "results.md": []byte(rep.markdown()), last + ".svg": []byte(rep.plot(last)),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (rep *report) plot(name string) string {
	p := plots(name)
	for _, c := range contestants {
		s := plot.Series{Name: c.name, Bold: c.ours}
		rounds := rep.of(name, c.name)
		for i := range rounds {
			s.First = append(s.First, rounds[i].First...)
			p.Requests = max(p.Requests, rounds[i].Requests)
			for _, f := range rounds[i].First {
				p.Span = max(p.Span, f.At)
			}
		}
		if len(rounds) > 0 {
			p.Series = append(p.Series, s)
		}
	}
	return p.Draw()
}

func plots(name string) plot.Plot {
	i := slices.IndexFunc(plays, func(p play) bool { return p.name == name })
	return plot.Plot{Heading: name + ": " + plays[i].about}
}

// failures returns an error if a request of select-service has failed where no engine was
// restarted.
func (rep *report) failures() error {
	for _, r := range rep.Results {
		p := slices.IndexFunc(plays, func(p play) bool { return p.name == r.Play })
		c := slices.IndexFunc(contestants, func(c contestant) bool { return c.name == r.Contestant })
		if r.Failed > 0 && p >= 0 && !plays[p].restart && c >= 0 && contestants[c].ours {
			return fmt.Errorf("%s, %s: %d requests failed, for example: %s", r.Play, r.Contestant, r.Failed, r.Failure)
		}
	}
	return nil
}

// machine describes the machine.
func machine() string {
	name := "unknown CPU"
	text, _ := os.ReadFile("/proc/cpuinfo") // described as unknown
	if _, after, ok := strings.Cut(string(text), "model name\t: "); ok {
		name, _, _ = strings.Cut(after, "\n")
	}
	return fmt.Sprintf("%d cores (%s), load average %.1f at the start, %s", runtime.NumCPU(), name, loadAverage(), time.Now().Format(time.DateOnly))
}

// loadAverage returns the machine's load average of the last minute, 0 if it is unknown.
func loadAverage() float64 {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	load, _ := strconv.ParseFloat(first, 64)
	return load
}
