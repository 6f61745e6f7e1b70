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

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

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
	Blocks    uint64 // of each rank; 0: not known
	// FirstRank and Ranks are the data-parallel ranks of the engine; Ranks is 0 if the metrics do
	// not tell them.
	FirstRank, Ranks uint32
}

// Families of metrics. An engine has one of the first lines, or both of a pair.
const (
	vllmCacheInfo   = "vllm:cache_config_info"   // labels block_size, num_gpu_blocks (all ranks together), engine (a rank)
	sglangCacheInfo = "sglang:cache_config_info" // labels page_size, num_pages
	sglangPageSize  = "sglang:page_size"
	sglangPages     = "sglang:num_pages"
	trtllmBlockSize = "trtllm_kv_cache_tokens_per_block"
	trtllmBlocks    = "trtllm_kv_cache_max_blocks"
)

// Cache asks GET /metrics, and reads it as far as it has to. An error is an *Error.
func (c *Client) Cache(ctx context.Context, base string) (Cache, error) {
	var cache Cache
	var lines []byte
	err := c.ask(ctx, base, metricsPath, func(body io.Reader) (err error) {
		lines, err = cacheLines(body)
		return err
	})
	if err != nil {
		return cache, err
	}
	if cache, err = readCache(lines); err != nil {
		return cache, notUnderstood(base, metricsPath, err)
	}
	return cache, nil
}

// cacheLines returns the samples of the families that describe the cache. It ends at the first
// line after them.
func cacheLines(metrics io.Reader) ([]byte, error) {
	limited := &io.LimitedReader{R: metrics, N: maxMetrics + 1}
	scan := bufio.NewScanner(limited)
	scan.Buffer(nil, maxLine)
	var lines []byte
	series, whole := 0, false // whole: no other family is needed
	seen := make(map[string]bool)
	for scan.Scan() {
		line := scan.Bytes()
		name := familyOf(line)
		if name == "" {
			if whole {
				return lines, nil
			}
			continue
		}
		if !seen[name] {
			seen[name] = true
			whole = seen[vllmCacheInfo] || seen[sglangCacheInfo] || seen[sglangPageSize] && seen[sglangPages] || seen[trtllmBlockSize] && seen[trtllmBlocks]
		}
		if series++; series > maxSeries {
			return nil, fmt.Errorf("%w: %s has more than %d series", errTooLong, name, maxSeries)
		}
		lines = append(append(lines, line...), '\n')
	}
	switch {
	case limited.N <= 0:
		return nil, fmt.Errorf("%w: more than %d bytes", errTooLong, maxMetrics)
	case errors.Is(scan.Err(), bufio.ErrTooLong):
		return nil, fmt.Errorf("%w: a line has more than %d bytes", errTooLong, maxLine)
	}
	return lines, scan.Err()
}

// familyOf returns the family of a sample, "" for lines that are not used.
func familyOf(line []byte) string {
	end := bytes.IndexAny(line, "{ \t")
	if end < 0 {
		return ""
	}
	switch name := string(line[:end]); name {
	case vllmCacheInfo, sglangCacheInfo, sglangPageSize, sglangPages, trtllmBlockSize, trtllmBlocks:
		return name
	}
	return ""
}

var errNoCache = errors.New("it has no metric that tells the block size")

// readCache reads the samples of cacheLines.
func readCache(lines []byte) (Cache, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(lines))
	if err != nil {
		return Cache{}, err
	}
	switch {
	case families[vllmCacheInfo] != nil:
		return readVLLM(families[vllmCacheInfo].GetMetric())
	case families[sglangCacheInfo] != nil:
		series := families[sglangCacheInfo].GetMetric()
		return agree(sglangCacheInfo, ofLabel(series, "page_size"), ofLabel(series, "num_pages"))
	case families[sglangPageSize] != nil:
		return agree(sglangPageSize, ofValue(families[sglangPageSize]), ofValue(families[sglangPages]))
	case families[trtllmBlockSize] != nil:
		return agree(trtllmBlockSize, ofValue(families[trtllmBlockSize]), ofValue(families[trtllmBlocks]))
	}
	return Cache{}, errNoCache
}

// readVLLM reads vLLM's series, one for each rank.
func readVLLM(series []*dto.Metric) (Cache, error) {
	cache, err := agree(vllmCacheInfo, ofLabel(series, "block_size"), ofLabel(series, "num_gpu_blocks"))
	if err != nil {
		return Cache{}, err
	}
	ranks, err := ranksOf(ofLabel(series, "engine"))
	if err != nil {
		return Cache{}, err
	}
	if cache.FirstRank, cache.Ranks = ranks[0], uint32(len(ranks)); cache.Ranks > 1 {
		cache.Blocks /= uint64(cache.Ranks) // each series has the sum over all ranks
	}
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
			return nil, fmt.Errorf("the engine label %q of %s is no rank", catalog.Clip(label), vllmCacheInfo)
		}
		ranks = append(ranks, uint32(rank))
	}
	slices.Sort(ranks)
	ranks = slices.Compact(ranks)
	if n := len(ranks); n > catalog.MaxRanks || ranks[n-1]-ranks[0] != uint32(n-1) {
		return nil, fmt.Errorf("the engine labels of %s are not up to %d ranks in a row: %d to %d", vllmCacheInfo, catalog.MaxRanks, ranks[0], ranks[n-1])
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

func ofLabel(series []*dto.Metric, name string) []string {
	values := make([]string, len(series))
	for i, m := range series {
		for _, label := range m.GetLabel() {
			if label.GetName() == name {
				values[i] = label.GetValue()
			}
		}
	}
	return values
}

// ofValue returns the values of a family without a type, as whole numbers where they are such.
func ofValue(family *dto.MetricFamily) []string {
	var values []string
	for _, m := range family.GetMetric() {
		values = append(values, strconv.FormatFloat(m.GetUntyped().GetValue(), 'f', -1, 64))
	}
	return values
}
