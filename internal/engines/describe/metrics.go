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
	metricsPath = "/metrics"
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

// Families of metrics, beside that of vLLM. An engine has the first, or both of a pair.
const (
	sglangCacheInfo = "sglang:cache_config_info" // labels page_size, num_pages
	sglangPageSize  = "sglang:page_size"
	sglangPages     = "sglang:num_pages"
	trtllmBlockSize = "trtllm_kv_cache_tokens_per_block"
	trtllmBlocks    = "trtllm_kv_cache_max_blocks"
)

// Cache asks GET /metrics, and reads it as far as it has to. An error is an *Error.
func (c *Client) Cache(ctx context.Context, base string) (Cache, error) {
	var cache Cache
	var samples []engines.Sample
	err := c.ask(ctx, base, metricsPath, func(body io.Reader) (err error) {
		samples, err = cacheSamples(body)
		return err
	})
	if err != nil {
		return cache, err
	}
	if cache, err = readCache(samples); err != nil {
		return cache, notUnderstood(base, metricsPath, err)
	}
	return cache, nil
}

// cacheSamples returns the samples of the families that describe the cache. It ends at the first
// line after them.
func cacheSamples(metrics io.Reader) ([]engines.Sample, error) {
	limited := &io.LimitedReader{R: metrics, N: maxMetrics + 1}
	scan := bufio.NewScanner(limited)
	scan.Buffer(nil, maxLine)
	var samples []engines.Sample
	whole := false // no other family is needed
	seen := make(map[string]bool)
	for scan.Scan() {
		line := scan.Bytes()
		name := familyOf(line)
		if name == "" {
			if whole {
				return samples, nil
			}
			continue
		}
		if !seen[name] {
			seen[name] = true
			whole = seen[engines.VLLMCacheInfo] || seen[sglangCacheInfo] || seen[sglangPageSize] && seen[sglangPages] || seen[trtllmBlockSize] && seen[trtllmBlocks]
		}
		if len(samples) == maxSeries {
			return nil, fmt.Errorf("%w: %s has more than %d series", errTooLong, name, maxSeries)
		}
		sample, err := engines.ReadSample(line)
		if err != nil {
			return nil, fmt.Errorf("%w: it is of %s", err, name)
		}
		samples = append(samples, sample)
	}
	switch {
	case limited.N <= 0:
		return nil, fmt.Errorf("%w: more than %d bytes", errTooLong, maxMetrics)
	case errors.Is(scan.Err(), bufio.ErrTooLong):
		return nil, fmt.Errorf("%w: a line has more than %d bytes", errTooLong, maxLine)
	}
	return samples, scan.Err()
}

// familyOf returns the family of a sample, "" for lines that are not used.
func familyOf(line []byte) string {
	end := bytes.IndexAny(line, "{ \t")
	if end < 0 {
		return ""
	}
	switch name := string(line[:end]); name {
	case engines.VLLMCacheInfo, sglangCacheInfo, sglangPageSize, sglangPages, trtllmBlockSize, trtllmBlocks:
		return name
	}
	return ""
}

var errNoCache = errors.New("it has no metric that tells the block size")

// readCache reads the samples of cacheSamples.
func readCache(samples []engines.Sample) (Cache, error) {
	families := make(map[string][]engines.Sample)
	for _, s := range samples {
		families[s.Name] = append(families[s.Name], s)
	}
	switch {
	case families[engines.VLLMCacheInfo] != nil:
		return readVLLM(families[engines.VLLMCacheInfo])
	case families[sglangCacheInfo] != nil:
		series := families[sglangCacheInfo]
		return agree(sglangCacheInfo, ofLabel(series, engines.LabelPageSize), ofLabel(series, engines.LabelPages))
	case families[sglangPageSize] != nil:
		return agree(sglangPageSize, ofValue(families[sglangPageSize]), ofValue(families[sglangPages]))
	case families[trtllmBlockSize] != nil:
		return agree(trtllmBlockSize, ofValue(families[trtllmBlockSize]), ofValue(families[trtllmBlocks]))
	}
	return Cache{}, errNoCache
}

// readVLLM reads vLLM's series, one for each rank.
func readVLLM(series []engines.Sample) (Cache, error) {
	sizes := make([]string, len(series))
	for i := range series {
		sizes[i] = series[i].VLLMBlockSize()
	}
	cache, err := agree(engines.VLLMCacheInfo, sizes, nil)
	if err != nil {
		return Cache{}, err
	}
	ranks, err := ranksOf(ofLabel(series, engines.LabelEngine))
	if err != nil {
		return Cache{}, err
	}
	cache.FirstRank, cache.Ranks = ranks[0], uint32(len(ranks))
	tokens := series[0].VLLMTokens(len(ranks), 0)
	for i := range series {
		if other := series[i].VLLMTokens(len(ranks), 0); other != tokens {
			return Cache{}, fmt.Errorf("series of %s disagree: ranks of %d and %d tokens", engines.VLLMCacheInfo, tokens, other)
		}
	}
	cache.Tokens, cache.Blocks = series[0].VLLMTokensTold(), tokens/uint64(cache.BlockSize)
	return cache, nil
}

// ranksOf returns the ranks that labels name, in order: each one once, without a gap.
func ranksOf(labels []string) ([]uint32, error) {
	var ranks []uint32
	for _, label := range labels {
		if label == "" {
			label = "0" // releases without the label have one rank
		}
		rank, err := strconv.ParseUint(label, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("the engine label %q of %s is no rank", catalog.Clip(label), engines.VLLMCacheInfo)
		}
		ranks = append(ranks, uint32(rank))
	}
	slices.Sort(ranks)
	ranks = slices.Compact(ranks)
	if n := len(ranks); n > catalog.MaxRanks || ranks[n-1]-ranks[0] != uint32(n-1) {
		return nil, fmt.Errorf("the engine labels of %s are not up to %d ranks in a row: %d to %d", engines.VLLMCacheInfo, catalog.MaxRanks, ranks[0], ranks[n-1])
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

func ofLabel(series []engines.Sample, name string) []string {
	values := make([]string, len(series))
	for i := range series {
		values[i] = series[i].Label(name)
	}
	return values
}

// ofValue returns the values of a family, as whole numbers where they are such.
func ofValue(series []engines.Sample) []string {
	var values []string
	for i := range series {
		values = append(values, strconv.FormatFloat(series[i].Value, 'f', -1, 64))
	}
	return values
}
