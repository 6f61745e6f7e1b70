// Package plot draws times to first token, as a self-contained SVG.
package plot

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/select-service/select-service/demo/sim/stats"
)

// Plot has two panels, the time to first token over the play and its distribution, with a line
// for each series.
type Plot struct {
	Heading  string // the part behind the first "; " is a second line
	Series   []Series
	Slow     []Slowdown
	Span     time.Duration // of the arrivals
	Requests int           // of one series
}

// Series has the first tokens of one policy.
type Series struct {
	Name  string
	First []FirstToken
	Bold  bool
}

// FirstToken is the first token of one request.
type FirstToken struct {
	At   time.Duration // arrival, since the start
	TTFT float64       // ms
}

// Slowdown is a part of the play during which an engine is slow.
type Slowdown struct {
	Engine      int // from 0
	Factor      float64
	From, Until float64 // parts of the span
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

// picture is the SVG of a plot while it is drawn.
type picture struct {
	Plot
	svg strings.Builder
}

// Draw returns the SVG.
func (p *Plot) Draw() string {
	s := picture{Plot: *p}
	return s.draw()
}

func (p *picture) draw() string {
	top := 64 + legendRow*len(p.Series) + 40
	height := top + 2*panelHeight + panelGap + 56
	p.printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" font-family="Helvetica, Arial, 'DejaVu Sans', sans-serif" font-size="13">`,
		plotWidth, height, plotWidth, height)
	p.printf(`<title>Time to first token by policy</title>`)
	p.printf(`<rect width="%d" height="%d" fill="#fff"/>`, plotWidth, height)
	for i, part := range strings.SplitN(p.Heading, "; ", 2) {
		p.text(marginLeft, 26+legendRow*i, "start", "#555", part)
	}
	for i := range p.Series {
		p.legend(64+legendRow*i, i)
	}
	p.overTime(panel{top: top})
	p.distribution(panel{top: top + panelHeight + panelGap})
	p.printf(`</svg>`)
	return p.svg.String()
}

func (p *picture) legend(y, i int) {
	s := p.Series[i]
	ttft := ttftOf(s.First)
	p.printf(`<path d="M%d %dh26" %s/>`, marginLeft, y+9, p.stroke(i))
	p.text(marginLeft+36, y+14, "start", "#222", s.Name)
	p.text(marginLeft+320, y+14, "start", "#555", fmt.Sprintf("mean %s, p50 %s, p90 %s, p99 %s", stats.Milliseconds(stats.Mean(ttft)),
		stats.Milliseconds(stats.Quantile(ttft, 0.5)), stats.Milliseconds(stats.Quantile(ttft, 0.9)), stats.Milliseconds(stats.Quantile(ttft, 0.99))))
}

// overTime draws the mean TTFT of the requests that arrived in the same part of the play.
func (p *picture) overTime(at panel) {
	at.x = axis{lo: 0, hi: max(p.Span.Seconds(), 1)}
	parts := min(max(p.Requests/perPoint, 8), 60)
	means := make([][]point, len(p.Series)) // s, ms
	lo, hi := math.Inf(1), 0.0
	for i, s := range p.Series {
		for k, b := range binned(s.First, at.x.hi, parts) {
			if len(b) > 0 {
				means[i] = append(means[i], point{(float64(k) + 0.5) / float64(parts) * at.x.hi, max(1, stats.Mean(b))})
				lo, hi = min(lo, stats.Mean(b)), max(hi, stats.Mean(b))
			}
		}
	}
	at.y = logAxis(lo, hi)
	p.title(at, "Time to first token by time of arrival (means over "+fmt.Sprintf("%.1f s", at.x.hi/float64(parts))+")")
	for _, s := range p.Slow {
		x0, x1 := at.px(s.From*at.x.hi), at.px(s.Until*at.x.hi)
		p.printf(`<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="#000" opacity="0.06"/>`, x0, at.top, x1-x0, panelHeight)
		p.text((x0+x1)/2, float64(at.top+16), "middle", "#555", fmt.Sprintf("engine %d at %g of its speed", s.Engine+1, s.Factor))
	}
	for _, v := range at.y.ticks() {
		p.across(at, v, duration(v))
	}
	step := niceStep(at.x.hi)
	for t := 0.0; t <= at.x.hi; t += step {
		p.text(at.px(t), float64(at.top+panelHeight+18), "middle", "#555", fmt.Sprintf("%d:%02d", int(t)/60, int(t)%60))
	}
	p.frame(at, "model time since the first arrival")
	for i := range p.Series {
		p.line(at, i, means[i])
	}
}

// distribution draws the share of requests that waited at least as long. Both axes are
// logarithmic, so that the tails can be seen; the fastest 2 % of all are left out.
func (p *picture) distribution(at panel) {
	lo, hi, most := math.Inf(1), 0.0, 10
	for _, s := range p.Series {
		ttft := ttftOf(s.First)
		lo, hi = min(lo, stats.Quantile(ttft, 0.02)), max(hi, stats.Quantile(ttft, 1))
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
	for i, s := range p.Series {
		ttft := slices.Sorted(slices.Values(ttftOf(s.First)))
		var points []point
		for k, x := range ttft {
			if x < at.x.lo && k+1 < len(ttft) && ttft[k+1] < at.x.lo {
				continue
			}
			points = append(points, point{x, float64(len(ttft)-k) / float64(len(ttft))})
		}
		p.line(at, i, points)
	}
}

func (p *picture) printf(format string, args ...any) { fmt.Fprintf(&p.svg, format+"\n", args...) }

func (p *picture) text(x, y any, anchor, color, text string) {
	p.printf(`<text x="%v" y="%v" text-anchor="%s" fill="%s">%s</text>`, rounded(x), rounded(y), anchor, color, html.EscapeString(text))
}

func rounded(x any) any {
	if f, ok := x.(float64); ok {
		return math.Round(f*10) / 10
	}
	return x
}

func (p *picture) title(at panel, text string) {
	p.printf(`<text x="%d" y="%d" fill="#222" font-weight="bold">%s</text>`, marginLeft, at.top-12, html.EscapeString(text))
}

// frame draws the axes, the horizontal one with its title.
func (p *picture) frame(at panel, title string) {
	p.printf(`<path d="M%d %dv%dh%d" fill="none" stroke="#888"/>`, marginLeft, at.top, panelHeight, plotWidth-marginLeft-marginRight)
	p.text(at.px(at.x.hi), float64(at.top+panelHeight+36), "end", "#555", title)
}

// across draws a horizontal line with its label.
func (p *picture) across(at panel, v float64, label string) {
	p.printf(`<path d="M%d %.1fh%d" stroke="#ddd"/>`, marginLeft, at.py(v), plotWidth-marginLeft-marginRight)
	p.text(marginLeft-8, at.py(v)+4, "end", "#555", label)
}

// line draws a line through points, leaving out points less than a pixel from the one before.
func (p *picture) line(at panel, series int, points []point) {
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
	p.printf(`<path d="%s" fill="none" %s stroke-linejoin="round"/>`, d.String(), p.stroke(series))
}

// stroke has the attributes of the line of a series. More series than colors are dashed.
func (p *picture) stroke(series int) string {
	width, dashes := "1.2", ""
	if p.Series[series].Bold {
		width = "2.5"
	}
	if series >= len(colors) {
		dashes = ` stroke-dasharray="5 3"`
	}
	return fmt.Sprintf(`stroke="%s" stroke-width="%s"%s`, colors[series%len(colors)], width, dashes)
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

func ttftOf(first []FirstToken) []float64 {
	all := make([]float64, len(first))
	for i, f := range first {
		all[i] = f.TTFT
	}
	return all
}

// binned sorts times to first token by arrival into equal parts of span seconds.
func binned(first []FirstToken, span float64, parts int) [][]float64 {
	all := make([][]float64, parts)
	for _, f := range first {
		i := min(parts-1, int(f.At.Seconds()/span*float64(parts)))
		all[i] = append(all[i], f.TTFT)
	}
	return all
}

// duration formats ms.
func duration(ms float64) string {
	if ms >= 999.9 {
		return fmt.Sprintf("%s s", stats.Thousands(int(ms/1000+0.5)))
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
