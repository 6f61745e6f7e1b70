package load

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/select-service/select-service/internal/engines"
	"github.com/select-service/select-service/pkg/catalog"
)

// Bounds of a page, whose length its reader bounds.
const (
	maxPage = 4 << 20 // bytes
	maxLine = 64 << 10
	// seriesPerRank and moreSeries bound the series that are used: each rank has few, some engines
	// one of each for every process of a rank.
	seriesPerRank, moreSeries = 64, 256
)

// errUseless is the error of a page without a load. One beyond the bounds has engines.ErrTooLong.
var errUseless = errors.New("the page has no load of an engine")

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

// gauges are the numbers of one rank, by engines.Part.
type gauges [engines.NumParts]gauge

// families are the metrics that are read, by name.
var families = engines.LoadFamilies()

// readPage reads the reports of a page's ranks. Ranks whose numbers are bad, and ranks that the
// page should not have, are left out and passed to drop.
func readPage(body *bufio.Reader, page *catalog.LoadPage, drop func(Reason)) (map[uint32]Report, error) {
	samples, err := usedSamples(body, seriesPerRank*int(page.Ranks)+moreSeries)
	if err != nil {
		return nil, err
	}
	ranks := byLabel(samples, page.BlockSize)
	reports := make(map[uint32]Report, len(ranks))
	for label, g := range ranks {
		if !g[engines.Running].known && !g[engines.Waiting].known && !g[engines.Usage].known {
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

// usedSamples returns the samples of the families that are read, at most a number of them. It reads
// the whole page, so that its connection can be used again.
func usedSamples(body *bufio.Reader, most int) (samples []engines.Sample, err error) {
	for {
		line, err := body.ReadSlice('\n')
		used := isUsed(line)
		for errors.Is(err, bufio.ErrBufferFull) && !used {
			line, err = body.ReadSlice('\n')
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, fmt.Errorf("%w: a line has more than %d bytes", engines.ErrTooLong, maxLine)
		case err != nil && !errors.Is(err, io.EOF):
			return nil, err
		}
		if used {
			if len(samples) == most {
				return nil, fmt.Errorf("%w: more than %d series", engines.ErrTooLong, most)
			}
			sample, wrong := engines.ReadSample(line)
			if wrong != nil {
				return nil, fmt.Errorf("%w: %w", errUseless, wrong)
			}
			samples = append(samples, sample)
		}
		if err != nil { // the end of the page
			return samples, nil //nolint:nilerr // io.EOF
		}
	}
}

// isUsed reports whether a line is a sample of a family that is read.
func isUsed(line []byte) bool {
	if len(line) == 0 || !firstBytes[line[0]] {
		return false
	}
	for _, name := range names {
		if n := len(name); len(line) > n && string(line[:n]) == name && (line[n] == '{' || line[n] == ' ' || line[n] == '\t') {
			return true
		}
	}
	return false
}

// names are those of families, and of the one whose labels tell a capacity. firstBytes are those of names.
var (
	names      = append(slices.Sorted(maps.Keys(families)), engines.VLLMCacheInfo)
	firstBytes = func() (is [256]bool) {
		for _, name := range names {
			is[name[0]] = true
		}
		return is
	}()
)

// byLabel sorts the samples by the rank in their labels. A sample without a rank holds for all
// ranks, or for the only one. blockSize is that of the worker.
func byLabel(samples []engines.Sample, blockSize uint32) map[string]*gauges {
	ranks := make(map[string]*gauges)
	of := func(rank string) *gauges {
		g := ranks[rank]
		if g == nil {
			g = new(gauges)
			ranks[rank] = g
		}
		return g
	}
	infos := make(map[string]*engines.Sample) // of VLLMCacheInfo, by rank
	for i := range samples {
		s := &samples[i]
		if series, is := families[s.Name]; is {
			of(s.Label(series.RankLabel))[series.Part].set(s.Value)
			continue
		}
		rank := s.Label(engines.LabelEngine)
		of(rank)
		infos[rank] = s
	}
	for rank, info := range infos {
		if tokens := info.VLLMTokens(len(infos), blockSize); tokens > 0 && !ranks[rank][engines.TotalTokens].known {
			ranks[rank][engines.TotalTokens].set(float64(tokens))
		}
	}
	for _, g := range ranks {
		if blocks, size := &g[engines.TotalBlocks], &g[engines.BlockTokens]; blocks.known && size.known && !g[engines.TotalTokens].known {
			g[engines.TotalTokens].set(blocks.v * size.v)
		}
	}
	if shared := ranks[""]; shared != nil && len(ranks) > 1 && !shared[engines.Running].known {
		delete(ranks, "")
		for _, g := range ranks {
			if !g[engines.TotalTokens].known { // the capacity is the same for all ranks
				g[engines.TotalTokens] = shared[engines.TotalTokens]
			}
		}
	}
	return ranks
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
	usage := &g[engines.Usage]
	if slices.ContainsFunc(g[:], func(one gauge) bool { return one.bad }) || usage.v > 1 {
		return Report{}, false
	}
	r := Report{
		Running: g[engines.Running].amount(), Waiting: g[engines.Waiting].amount(),
		KVTokensUsed: g[engines.UsedTokens].amount(), KVTokensTotal: g[engines.TotalTokens].amount(),
		Source: Scrape, Interval: page.Interval,
	}
	r.capacities()
	if total := r.KVTokensTotal.Or(page.KVTokens); usage.known && total > 0 && total <= MaxAmount {
		r.KVTokensUsed = Known(uint64(math.Round(usage.v * float64(total))))
	}
	return r, true
}
