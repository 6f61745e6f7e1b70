package load

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/select-service/select-service/pkg/catalog"
)

// Bounds of a page.
const (
	maxPage = 4 << 20 // bytes
	maxLine = 64 << 10
	// seriesPerRank and moreSeries bound the series that are used: each rank has few, some engines
	// one of each for every process of a rank.
	seriesPerRank, moreSeries = 64, 256
)

// errTooLarge is the error of a page beyond the bounds, errUseless of one without a load.
var (
	errTooLarge = errors.New("the page is too large")
	errUseless  = errors.New("the page has no load of an engine")
)

// gauge is a number of a page, the largest where a rank has several.
type gauge struct {
	v          float64
	known, bad bool
}

func (g *gauge) set(v float64) {
	g.bad = g.bad || math.IsNaN(v) || v < 0 || v > MaxAmount
	g.v, g.known = max(g.v, v), true
}

func (g *gauge) amount() Amount {
	if !g.known || g.bad {
		return Amount{}
	}
	return Known(uint64(g.v))
}

// gauges are the numbers of one rank.
type gauges struct {
	running, waiting gauge
	usage            gauge // share of the KV cache, at most 1
	used, total      gauge // tokens of the KV cache
	blocks           gauge // of the KV caches of all ranks of the page
	blockSize        gauge // tokens
}

// families are the metrics that are read, by name. The first of each line is vLLM's, with the
// rank as label engine, the others are SGLang's, with the rank as label dp_rank.
var families = map[string]func(*gauges) *gauge{
	"vllm:num_requests_running": func(g *gauges) *gauge { return &g.running }, "sglang:num_running_reqs": func(g *gauges) *gauge { return &g.running },
	"vllm:num_requests_waiting": func(g *gauges) *gauge { return &g.waiting }, "sglang:num_queue_reqs": func(g *gauges) *gauge { return &g.waiting },
	"vllm:kv_cache_usage_perc": func(g *gauges) *gauge { return &g.usage }, "sglang:token_usage": func(g *gauges) *gauge { return &g.usage },
	"vllm:gpu_cache_usage_perc":   func(g *gauges) *gauge { return &g.usage }, // before 0.10
	"sglang:num_used_tokens":      func(g *gauges) *gauge { return &g.used },
	"sglang:max_total_num_tokens": func(g *gauges) *gauge { return &g.total },
	cacheInfo:                     nil, // a series whose labels say it
}

// cacheInfo is vLLM's, with labels block_size and num_gpu_blocks.
const cacheInfo = "vllm:cache_config_info"

// infos are the labels of the series cacheInfo, which stay what they are while an engine runs: their
// many labels are read again only when a page has others. The zero infos are to be read.
type infos struct {
	sum   uint64 // of the lines
	known bool
	all   []labels
}

// maxInfos bounds the lines of which a page's labels are kept, in bytes.
const maxInfos = 16 << 10

var infoSeed = maphash.MakeSeed()

// read returns the labels in the lines of cacheInfo.
func (i *infos) read(lines []byte) ([]labels, error) {
	sum := maphash.Bytes(infoSeed, lines)
	if i.known && sum == i.sum {
		return i.all, nil
	}
	families, err := parse(lines)
	if err != nil {
		return nil, err
	}
	var all []labels
	for _, m := range families[cacheInfo].GetMetric() {
		all = append(all, labelsOf(m))
	}
	if *i = (infos{}); len(lines) <= maxInfos {
		*i = infos{sum, true, all}
	}
	return all, nil
}

func parse(lines []byte) (map[string]*dto.MetricFamily, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(lines))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUseless, err)
	}
	return families, nil
}

// readPage reads the reports of a page's ranks. Ranks whose numbers are bad, and ranks that the
// page should not have, are left out and passed to drop. known is what the page had when it was
// read last.
func readPage(body *bufio.Reader, page *catalog.LoadPage, known *infos, drop func(Reason)) (map[uint32]Report, error) {
	lines, infoLines, err := usedLines(body, seriesPerRank*int(page.Ranks)+moreSeries)
	if err != nil {
		return nil, err
	}
	all, err := parse(lines)
	if err != nil {
		return nil, err
	}
	capacities, err := known.read(infoLines)
	if err != nil {
		return nil, err
	}
	ranks := byLabel(all, capacities)
	reports := make(map[uint32]Report, len(ranks))
	for label, g := range ranks {
		if !g.running.known && !g.waiting.known && !g.usage.known {
			continue
		}
		dp, ok := rankOf(label, len(ranks), page)
		if !ok {
			drop(ForeignRank)
			continue
		}
		report, ok := g.report(page)
		if !ok {
			drop(BadNumber)
			continue
		}
		reports[dp] = report
	}
	if len(reports) == 0 {
		return nil, errUseless
	}
	return reports, nil
}

// usedLines returns the samples of the families that are read, at most a number of them, those of
// cacheInfo by themselves. It reads the whole page, so that its connection can be used again.
func usedLines(body *bufio.Reader, most int) (lines, infos []byte, err error) {
	read, series := 0, 0
	for {
		line, err := body.ReadSlice('\n')
		read += len(line)
		used := isUsed(line)
		for errors.Is(err, bufio.ErrBufferFull) && !used && read <= maxPage {
			line, err = body.ReadSlice('\n')
			read += len(line)
		}
		switch {
		case read > maxPage, errors.Is(err, bufio.ErrBufferFull):
			return nil, nil, errTooLarge
		case err != nil && !errors.Is(err, io.EOF):
			return nil, nil, err
		}
		if used {
			if series++; series > most {
				return nil, nil, errTooLarge
			}
			if bytes.HasPrefix(line, []byte(cacheInfo)) {
				infos = append(infos, line...)
			} else {
				lines = append(lines, line...)
			}
		}
		if err != nil { // the end of the page
			return append(lines, '\n'), append(infos, '\n'), nil //nolint:nilerr // io.EOF
		}
	}
}

// isUsed reports whether a line is a sample of a family that is read.
func isUsed(line []byte) bool {
	if len(line) == 0 || line[0] != 'v' && line[0] != 's' {
		return false
	}
	for _, name := range names {
		if n := len(name); len(line) > n && string(line[:n]) == name && (line[n] == '{' || line[n] == ' ' || line[n] == '\t') {
			return true
		}
	}
	return false
}

// names are those of families.
var names = slices.Sorted(maps.Keys(families))

// byLabel sorts the samples and the capacities by the rank in their labels. What stands without a rank
// holds for all ranks, or is the only one.
func byLabel(all map[string]*dto.MetricFamily, capacities []labels) map[string]*gauges {
	ranks := make(map[string]*gauges)
	of := func(rank string) *gauges {
		g := ranks[rank]
		if g == nil {
			g = new(gauges)
			ranks[rank] = g
		}
		return g
	}
	infos := make(map[string]bool) // ranks with a cacheInfo
	for _, l := range capacities {
		if g := of(l.rank); l.blocks > 0 && l.blockSize > 0 {
			g.blocks.set(l.blocks)
			g.blockSize.set(l.blockSize)
			infos[l.rank] = true
		}
	}
	for name, family := range all {
		part := families[name]
		if part == nil {
			continue
		}
		for _, m := range family.GetMetric() {
			part(of(labelsOf(m).rank)).set(valueOf(m))
		}
	}
	if shared := ranks[""]; shared != nil && len(ranks) > 1 && !shared.running.known {
		delete(ranks, "")
		for _, g := range ranks {
			g.inherit(shared)
		}
	}
	for _, g := range ranks {
		if g.blocks.known && g.blockSize.known && !g.total.known {
			g.total.set(math.Floor(g.blocks.v / float64(max(len(infos), 1)) * g.blockSize.v))
		}
	}
	return ranks
}

// inherit takes the capacity that is the same for all ranks.
func (g *gauges) inherit(from *gauges) {
	for _, pair := range [...][2]*gauge{{&g.total, &from.total}, {&g.blocks, &from.blocks}, {&g.blockSize, &from.blockSize}} {
		if !pair[0].known {
			*pair[0] = *pair[1]
		}
	}
}

type labels struct {
	rank              string
	blocks, blockSize float64
}

func labelsOf(m *dto.Metric) (l labels) {
	for _, pair := range m.GetLabel() {
		switch pair.GetName() {
		case "engine", "dp_rank":
			l.rank = pair.GetValue()
		case "num_gpu_blocks":
			l.blocks = count(pair.GetValue())
		case "block_size":
			l.blockSize = count(pair.GetValue())
		}
	}
	return l
}

// count reads a label, 0 for one that is no number: engines write None.
func count(text string) float64 {
	n, err := strconv.ParseUint(text, 10, 48)
	if err != nil {
		return 0
	}
	return float64(n)
}

// valueOf returns the value of a sample whose family has no type, as all have without comments.
func valueOf(m *dto.Metric) float64 {
	if m.Untyped == nil {
		return math.NaN()
	}
	return m.GetUntyped().GetValue()
}

// rankOf returns the rank that a label names. Where page and worker have one rank each, it is that
// one: a server of its own may number its rank from 0.
func rankOf(label string, ranks int, page *catalog.LoadPage) (dp uint32, ok bool) {
	if page.Ranks == 1 && ranks == 1 {
		return page.FirstRank, true
	}
	n, err := strconv.ParseUint(label, 10, 32)
	if err != nil || uint32(n)-page.FirstRank >= page.Ranks {
		return 0, false
	}
	return uint32(n), true
}

// report returns what the numbers say, false if one of them is bad.
func (g *gauges) report(page *catalog.LoadPage) (Report, bool) {
	if g.running.bad || g.waiting.bad || g.usage.bad || g.used.bad || g.total.bad || g.usage.v > 1 {
		return Report{}, false
	}
	r := Report{
		Running: g.running.amount(), Waiting: g.waiting.amount(),
		KVTokensUsed: g.used.amount(), KVTokensTotal: g.total.amount(),
		Source: Scrape, Interval: page.Interval,
	}
	r.capacities()
	if total := r.KVTokensTotal.Or(page.KVTokens); g.usage.known && total > 0 && total <= MaxAmount {
		r.KVTokensUsed = Known(uint64(math.Round(g.usage.v * float64(total))))
	}
	return r, true
}
