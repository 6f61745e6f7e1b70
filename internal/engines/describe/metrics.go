package describe

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"github.com/select-service/select-service/internal/engines"
	"github.com/select-service/select-service/pkg/catalog"
)

const (
	// maxLine and maxSeries bound a line of /metrics, in bytes, and the lines that are used.
	maxLine   = 64 << 10
	maxSeries = 16 * catalog.MaxRanks
)

// Cache is what the metrics of an engine say of its KV cache.
type Cache struct {
	BlockSize uint32 // tokens
	Blocks    uint64 // of this size, of each rank; 0: not known
	Tokens    uint64 // capacity of each rank where it is told in tokens; 0: it is not
	// FirstRank and Ranks are the data-parallel ranks of the engine; Ranks is 0 if the metrics do
	// not tell them.
	FirstRank, Ranks uint32
}

// Cache asks for the metrics of an engine of a kind, and reads them as far as it has to. An error is
// an *Error.
func (c *Client) Cache(ctx context.Context, base string, kind *engines.Engine) (Cache, error) {
	var cache Cache
	var samples map[string][]engines.Sample
	err := c.query(ctx, base, kind.MetricsPath, maxMetrics, func(body io.Reader) (err error) {
		samples, err = cacheSamples(body, kind)
		return err
	})
	if err != nil {
		return cache, err
	}
	if cache, err = readCache(samples, kind); err != nil {
		return cache, notUnderstood(base, kind.MetricsPath, err)
	}
	return cache, nil
}

// cacheSamples returns the samples that describe the cache, by family. It ends at the first line
// after them.
func cacheSamples(metrics io.Reader, kind *engines.Engine) (map[string][]engines.Sample, error) {
	scan := bufio.NewScanner(metrics)
	scan.Buffer(nil, maxLine)
	read := make(map[string][]engines.Sample)
	n := 0
	for scan.Scan() {
		name, used := familyOf(scan.Bytes(), kind)
		if !used {
			if seriesOf(read, kind, true) != nil {
				return read, nil
			}
			continue
		}
		if n++; n > maxSeries {
			return nil, fmt.Errorf("%w: %s has more than %d series", engines.ErrTooLong, name, maxSeries)
		}
		sample, err := engines.ReadSample(scan.Bytes())
		if err != nil {
			return nil, fmt.Errorf("%w: it is of %s", err, name)
		}
		read[name] = append(read[name], sample)
	}
	if errors.Is(scan.Err(), bufio.ErrTooLong) {
		return nil, fmt.Errorf("%w: a line has more than %d bytes", engines.ErrTooLong, maxLine)
	}
	return read, scan.Err()
}

// familyOf returns the family of a sample, and whether it describes the cache.
func familyOf(line []byte, kind *engines.Engine) (name string, used bool) {
	end := bytes.IndexAny(line, "{ \t")
	if end < 0 {
		return "", false
	}
	for i := range kind.Cache {
		for _, name := range [...]string{kind.Cache[i].Size, kind.Cache[i].Blocks} {
			if string(line[:end]) == name {
				return name, true
			}
		}
	}
	return "", false
}

// seriesOf returns the first series whose families have been read, nil if there are none: both of
// them, or at least that of the block size.
func seriesOf(read map[string][]engines.Sample, kind *engines.Engine, both bool) *engines.CacheSeries {
	for i := range kind.Cache {
		if c := &kind.Cache[i]; read[c.Size] != nil && (!both || read[c.Blocks] != nil) {
			return c
		}
	}
	return nil
}

var errNoCache = errors.New("it has no metric that tells the block size")

// readCache reads the samples of cacheSamples.
func readCache(read map[string][]engines.Sample, kind *engines.Engine) (Cache, error) {
	c := seriesOf(read, kind, false)
	switch {
	case c == nil:
		return Cache{}, errNoCache
	case c.ByRank:
		return readByRank(c, read[c.Size])
	}
	return agree(c.Size, values(read[c.Size], c.SizeLabel), values(read[c.Blocks], c.BlocksLabel))
}

// readByRank reads series of which each rank has one.
func readByRank(c *engines.CacheSeries, series []engines.Sample) (Cache, error) {
	sizes := make([]string, len(series))
	for i := range series {
		sizes[i] = series[i].VLLMBlockSize()
	}
	cache, err := agree(c.Size, sizes, nil)
	if err != nil {
		return Cache{}, err
	}
	ranks, err := ranksOf(c.Size, values(series, engines.LabelEngine))
	if err != nil {
		return Cache{}, err
	}
	cache.FirstRank, cache.Ranks = ranks[0], uint32(len(ranks))
	tokens := series[0].VLLMTokens(len(ranks), 0)
	for i := range series {
		if other := series[i].VLLMTokens(len(ranks), 0); other != tokens {
			return Cache{}, fmt.Errorf("series of %s disagree: ranks of %d and %d tokens", c.Size, tokens, other)
		}
	}
	cache.Tokens, cache.Blocks = series[0].VLLMTokensTold(), tokens/uint64(cache.BlockSize)
	return cache, nil
}

// ranksOf returns the ranks that labels name, in order: each one once, without a gap.
func ranksOf(family string, labels []string) ([]uint32, error) {
	var ranks []uint32
	for _, label := range labels {
		if label == "" {
			label = "0" // releases without the label have one rank
		}
		rank, err := strconv.ParseUint(label, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("the engine label %q of %s is no rank", catalog.Clip(label), family)
		}
		ranks = append(ranks, uint32(rank))
	}
	slices.Sort(ranks)
	ranks = slices.Compact(ranks)
	if n := len(ranks); n > catalog.MaxRanks || ranks[n-1]-ranks[0] != uint32(n-1) {
		return nil, fmt.Errorf("the engine labels of %s are not up to %d ranks in a row: %d to %d", family, catalog.MaxRanks, ranks[0], ranks[n-1])
	}
	return ranks, nil
}

// agree returns what all series say. A number of blocks that is not a number is not known.
func agree(family string, sizes, blocks []string) (Cache, error) {
	size, err := same(family, sizes)
	if err != nil {
		return Cache{}, err
	}
	n, err := strconv.ParseUint(size, 10, 32)
	if err != nil || n == 0 {
		return Cache{}, fmt.Errorf("the block size %q of %s is not a number from 1 to %d", catalog.Clip(size), family, math.MaxUint32)
	}
	count, err := same(family, blocks)
	if err != nil {
		return Cache{}, err
	}
	cache := Cache{BlockSize: uint32(n)}
	if total, err := strconv.ParseUint(count, 10, 53); err == nil {
		cache.Blocks = total
	}
	return cache, nil
}

// same returns the only value, "" if there is none.
func same(family string, values []string) (string, error) {
	for _, v := range values {
		if v != values[0] {
			return "", fmt.Errorf("series of %s disagree: %q and %q", family, catalog.Clip(values[0]), catalog.Clip(v))
		}
	}
	if len(values) == 0 {
		return "", nil
	}
	return values[0], nil
}

// values returns what a label of series says, or the values of the series where it is "": as whole
// numbers where they are such.
func values(series []engines.Sample, label string) []string {
	texts := make([]string, len(series))
	for i := range series {
		if texts[i] = series[i].Label(label); label == "" {
			texts[i] = strconv.FormatFloat(series[i].Value, 'f', -1, 64)
		}
	}
	return texts
}
