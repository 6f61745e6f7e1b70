package main

import (
	"fmt"
	"html"
	"math"
	"os"
	"slices"
	"strings"
	"time"
)

// plot draws two panels, the time to first token over the play and its distribution, with a
// line for each policy, as a self-contained SVG.
type plot struct {
	svg      strings.Builder
	heading  string
	series   []series
	slow     []slowdown
	span     time.Duration // of the arrivals
	requests int
}

type series struct {
	name  string
	first []firstToken
	bold  bool // a policy of the service
	color string
}

// colors are the palette of Okabe and Ito, which most colour-blind people can distinguish.
var colors = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555"}

// Sizes in pixels.
const (
	plotWidth   = 960
	panelHeight = 300
	marginLeft  = 70
	marginRight = 24
	legendRow   = 20
	panelGap    = 76 // between panels: an axis and the next title
)

// perPoint is the average number of a policy's requests per point of its line over time.
const perPoint = 25

// writePlot writes the plot to a file.
func (r *report) writePlot(path string) error {
	slow, err := r.Config.slowdowns()
	if err != nil {
		return err
	}
	p := plot{heading: r.heading(), slow: slow, span: r.Workload.Span, requests: r.Workload.Requests}
	for _, x := range r.Results {
		i := slices.IndexFunc(p.series, func(s series) bool { return s.name == x.Policy })
		if i < 0 {
			i = len(p.series)
			p.series = append(p.series, series{name: x.Policy, bold: x.Model != "", color: colors[i%len(colors)]})
		}
		p.series[i].first = append(p.series[i].first, x.first...)
	}
	if err := os.WriteFile(path, []byte(p.draw()), 0o644); err != nil {
		return fmt.Errorf("write plot: %w", err)
	}
	return nil
}

func (p *plot) draw() string {
	top := 64 + legendRow*len(p.series) + 40
	height := top + 2*panelHeight + panelGap + 56
	p.printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" font-family="Helvetica, Arial, 'DejaVu Sans', sans-serif" font-size="13">`,
		plotWidth, height, plotWidth, height)
	p.printf(`<title>Time to first token by policy</title>`)
	p.printf(`<rect width="%d" height="%d" fill="#fff"/>`, plotWidth, height)
	for i, part := range strings.SplitN(p.heading, "; ", 2) {
		p.text(marginLeft, 26+legendRow*i, "start", "#555", part)
	}
	for i, s := range p.series {
		p.legend(64+legendRow*i, s)
	}
	p.overTime(panel{top: top})
	p.distribution(panel{top: top + panelHeight + panelGap})
	p.printf(`</svg>`)
	return p.svg.String()
}

func (p *plot) legend(y int, s series) {
	ttft := ttftOf(s.first)
	p.printf(`<path d="M%d %dh26" stroke="%s" stroke-width="%s"/>`, marginLeft, y+9, s.color, width(s))
	p.text(marginLeft+36, y+14, "start", "#222", s.name)
	p.text(marginLeft+320, y+14, "start", "#555", fmt.Sprintf("mean %s, p50 %s, p90 %s, p99 %s", milliseconds(mean(ttft)),
		milliseconds(quantile(ttft, 0.5)), milliseconds(quantile(ttft, 0.9)), milliseconds(quantile(ttft, 0.99))))
}

// overTime draws the mean TTFT of the requests that arrived in the same part of the play.
func (p *plot) overTime(at panel) {
	at.x = axis{lo: 0, hi: max(p.span.Seconds(), 1)}
	parts := min(max(p.requests/perPoint, 8), 60)
	means := make([][]point, len(p.series)) // s, ms
	lo, hi := math.Inf(1), 0.0
	for i, s := range p.series {
		for k, b := range binned(s.first, at.x.hi, parts) {
			if len(b) > 0 {
				means[i] = append(means[i], point{(float64(k) + 0.5) / float64(parts) * at.x.hi, max(1, mean(b))})
				lo, hi = min(lo, mean(b)), max(hi, mean(b))
			}
		}
	}
	at.y = logAxis(lo, hi)
	p.title(at, "Time to first token by time of arrival (means over "+fmt.Sprintf("%.1f s", at.x.hi/float64(parts))+")")
	for _, s := range p.slow {
		x0, x1 := at.px(s.from*at.x.hi), at.px(s.until*at.x.hi)
		p.printf(`<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="#000" opacity="0.06"/>`, x0, at.top, x1-x0, panelHeight)
		p.text((x0+x1)/2, float64(at.top+16), "middle", "#555", fmt.Sprintf("engine %d at %g of its speed", s.engine+1, s.factor))
	}
	for _, v := range at.y.ticks() {
		p.across(at, v, duration(v))
	}
	step := niceStep(at.x.hi)
	for t := 0.0; t <= at.x.hi; t += step {
		p.text(at.px(t), float64(at.top+panelHeight+18), "middle", "#555", fmt.Sprintf("%d:%02d", int(t)/60, int(t)%60))
	}
	p.frame(at, "model time since the first arrival")
	for i, s := range p.series {
		p.line(at, s, means[i])
	}
}

// distribution draws the share of requests that waited at least as long. Both axes are
// logarithmic, so that the tails can be seen; the fastest 2 % of all are left out.
func (p *plot) distribution(at panel) {
	lo, hi, most := math.Inf(1), 0.0, 10
	for _, s := range p.series {
		ttft := ttftOf(s.first)
		lo, hi = min(lo, quantile(ttft, 0.02)), max(hi, quantile(ttft, 1))
		most = max(most, len(ttft))
	}
	at.x = logAxis(lo, hi)
	at.y = axis{lo: math.Pow(10, -math.Ceil(math.Log10(float64(most)))), hi: 1, log: true}
	p.title(at, "Share of the requests that waited at least so long")
	for _, v := range at.x.ticks() {
		p.printf(`<path d="M%.1f %dv%d" stroke="#ddd"/>`, at.px(v), at.top, panelHeight)
		p.text(at.px(v), float64(at.top+panelHeight+18), "middle", "#555", duration(v))
	}
	for _, share := range []float64{1, 0.5, 0.1, 0.01, 0.001, 0.0001} {
		if share >= at.y.lo*0.999999 {
			p.across(at, share, fmt.Sprintf("%g %%", 100*share))
		}
	}
	p.frame(at, "time to first token")
	for _, s := range p.series {
		ttft := slices.Sorted(slices.Values(ttftOf(s.first)))
		var points []point
		for i, x := range ttft {
			if x < at.x.lo && i+1 < len(ttft) && ttft[i+1] < at.x.lo {
				continue
			}
			points = append(points, point{x, float64(len(ttft)-i) / float64(len(ttft))})
		}
		p.line(at, s, points)
	}
}

func (p *plot) printf(format string, args ...any) { fmt.Fprintf(&p.svg, format+"\n", args...) }

func (p *plot) text(x, y any, anchor, color, text string) {
	p.printf(`<text x="%v" y="%v" text-anchor="%s" fill="%s">%s</text>`, rounded(x), rounded(y), anchor, color, html.EscapeString(text))
}

func rounded(x any) any {
	if f, ok := x.(float64); ok {
		return math.Round(f*10) / 10
	}
	return x
}

func (p *plot) title(at panel, text string) {
	p.printf(`<text x="%d" y="%d" fill="#222" font-weight="bold">%s</text>`, marginLeft, at.top-12, html.EscapeString(text))
}

// frame draws the axes, the horizontal one with its title.
func (p *plot) frame(at panel, title string) {
	p.printf(`<path d="M%d %dv%dh%d" fill="none" stroke="#888"/>`, marginLeft, at.top, panelHeight, plotWidth-marginLeft-marginRight)
	p.text(at.px(at.x.hi), float64(at.top+panelHeight+36), "end", "#555", title)
}

// across draws a horizontal line with its label.
func (p *plot) across(at panel, v float64, label string) {
	p.printf(`<path d="M%d %.1fh%d" stroke="#ddd"/>`, marginLeft, at.py(v), plotWidth-marginLeft-marginRight)
	p.text(marginLeft-8, at.py(v)+4, "end", "#555", label)
}

// line draws a line through points, leaving out points less than a pixel from the one before.
func (p *plot) line(at panel, s series, points []point) {
	var d strings.Builder
	var last point
	for i, v := range points {
		next := point{at.px(v.x), at.py(v.y)}
		if i > 0 && i < len(points)-1 && math.Hypot(next.x-last.x, next.y-last.y) < 1 {
			continue
		}
		fmt.Fprintf(&d, "%c%.1f %.1f", "ML"[min(i, 1)], next.x, next.y)
		last = next
	}
	p.printf(`<path d="%s" fill="none" stroke="%s" stroke-width="%s" stroke-linejoin="round"/>`, d.String(), s.color, width(s))
}

func width(s series) string {
	if s.bold {
		return "2.5"
	}
	return "1.2"
}

type point struct{ x, y float64 }

// panel is one of the two pictures.
type panel struct {
	top  int
	x, y axis
}

func (p panel) px(v float64) float64 {
	return marginLeft + p.x.share(v)*(plotWidth-marginLeft-marginRight)
}

func (p panel) py(v float64) float64 { return float64(p.top) + (1-p.y.share(v))*panelHeight }

// axis maps values from lo to hi to 0..1. With log, both must be above 0.
type axis struct {
	lo, hi float64
	log    bool
}

// logAxis returns an axis that includes lo and hi (at least 1), with ends at 1, 2 or 5
// times a power of ten.
func logAxis(lo, hi float64) axis {
	lo = max(1, min(lo, hi))
	hi = max(hi, 2*lo)
	ends := axis{lo: lo, hi: hi, log: true}
	for _, t := range (axis{lo: lo / 10, hi: 10 * hi}).ticks() {
		if t <= lo {
			ends.lo = t
		}
		if t >= hi {
			ends.hi = t
			break
		}
	}
	return ends
}

func (a axis) share(v float64) float64 {
	v = min(max(v, a.lo), a.hi)
	if a.log {
		return math.Log(v/a.lo) / math.Log(a.hi/a.lo)
	}
	return (v - a.lo) / (a.hi - a.lo)
}

// ticks are the values from lo to hi that are 1, 2 or 5 times a power of ten.
func (a axis) ticks() []float64 {
	var all []float64
	for e := math.Floor(math.Log10(a.lo)); e <= math.Ceil(math.Log10(a.hi)); e++ {
		for _, m := range []float64{1, 2, 5} {
			if v := m * math.Pow(10, e); v >= a.lo*0.999999 && v <= a.hi*1.000001 {
				all = append(all, v)
			}
		}
	}
	return all
}

func ttftOf(first []firstToken) []float64 {
	all := make([]float64, len(first))
	for i, f := range first {
		all[i] = f.ttft
	}
	return all
}

// binned sorts times to first token by arrival into equal parts of span seconds.
func binned(first []firstToken, span float64, parts int) [][]float64 {
	all := make([][]float64, parts)
	for _, f := range first {
		i := min(parts-1, int(f.at.Seconds()/span*float64(parts)))
		all[i] = append(all[i], f.ttft)
	}
	return all
}

// duration formats ms.
func duration(ms float64) string {
	if ms >= 999.9 {
		return fmt.Sprintf("%s s", thousands(int(ms/1000+0.5)))
	}
	return fmt.Sprintf("%.0f ms", ms)
}

// niceStep divides seconds into about eight parts of a round length.
func niceStep(span float64) float64 {
	for _, s := range []float64{1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200, 3600} {
		if span/s <= 10 {
			return s
		}
	}
	return span / 8
}
