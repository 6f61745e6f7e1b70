package load

import (
	"bufio"
	"bytes"
	"errors"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/engines"
	"github.com/select-service/select-service/pkg/catalog"
)

func scraped(change func(*Report)) Report {
	r := Report{Source: Scrape, Interval: 2 * time.Second}
	change(&r)
	return r
}

// TestPage: the series of both engines in all their releases' forms, and pages that are none.
func TestPage(t *testing.T) {
	vllm := func(engine, running, usage string) string {
		return `vllm:num_requests_running{engine="` + engine + `",model_name="m"} ` + running + "\n" +
			`vllm:num_requests_waiting{engine="` + engine + `",model_name="m"} 2.0` + "\n" +
			`vllm:kv_cache_usage_perc{engine="` + engine + `",model_name="m"} ` + usage + "\n"
	}
	said := func(running, used, total uint64) Report {
		return scraped(func(r *Report) {
			r.Running, r.Waiting, r.KVTokensUsed, r.KVTokensTotal = Known(running), Known(2), Known(used), Known(total)
		})
	}
	info := func(labels string) string { return "vllm:cache_config_info{" + labels + "} 1.0\n" }
	one, two := catalog.LoadPage{Ranks: 1}, catalog.LoadPage{Ranks: 2}
	for name, tc := range map[string]struct {
		page    catalog.LoadPage
		text    string
		want    map[uint32]Report
		dropped []Reason
		err     error
	}{
		"vLLM": {one, "# HELP vllm:x a\n# TYPE vllm:num_requests_running gauge\n" + vllm("0", "3.0", "0.25") + info(`block_size="16",engine="0",num_gpu_blocks="100"`), map[uint32]Report{0: said(3, 400, 1600)}, nil, nil},
		"vLLM, ranks share what it counts over all of them": {
			two, vllm("0", "3", "0.25") + vllm("1", "4", "0.5") + info(`block_size="16",engine="0",num_gpu_blocks="200"`) + info(`block_size="16",engine="1",num_gpu_blocks="200"`),
			map[uint32]Report{0: said(3, 400, 1600), 1: said(4, 800, 1600)},
			nil, nil,
		},
		"vLLM before it knows its cache": {one, vllm("0", "3", "0.0") + info(`block_size="16",engine="0",num_gpu_blocks="None"`), map[uint32]Report{0: scraped(func(r *Report) { r.Running, r.Waiting = Known(3), Known(2) })}, nil, nil},
		"vLLM before 0.10": {
			one, "vllm:num_requests_running{model_name=\"m\"} 3.0\nvllm:num_requests_waiting{model_name=\"m\"} 2.0\nvllm:gpu_cache_usage_perc{model_name=\"m\"} 0.5\n" + info(`block_size="16",num_gpu_blocks="100"`),
			map[uint32]Report{0: said(3, 800, 1600)},
			nil, nil,
		},
		"info without ranks": {
			two, vllm("0", "3", "0.25") + vllm("1", "4", "0.5") + info(`block_size="16",num_gpu_blocks="100"`),
			map[uint32]Report{0: said(3, 400, 1600), 1: said(4, 800, 1600)},
			nil, nil,
		},
		// DeepSeek-V4 has groups of 4, 8, 64 and 256 tokens: num_gpu_blocks times block_size is no
		// capacity (vllm-project/vllm#51163). kv_cache_size_tokens is that of one rank, and is not
		// summed over them (vLLM's core_client.py).
		"a hybrid cache": {
			one, vllm("0", "3", "0.1") + info(`block_size="4",effective_attention_block_size="256",engine="0",kv_cache_size_tokens="150000",num_gpu_blocks="2000"`),
			map[uint32]Report{0: said(3, 15000, 150000)},
			nil, nil,
		},
		"a hybrid cache of two ranks": {
			two, vllm("0", "3", "0.1") + vllm("1", "4", "0.5") +
				info(`block_size="4",engine="0",kv_cache_size_tokens="150000",num_gpu_blocks="4000"`) + info(`block_size="4",engine="1",kv_cache_size_tokens="150000",num_gpu_blocks="4000"`),
			map[uint32]Report{0: said(3, 15000, 150000), 1: said(4, 75000, 150000)},
			nil, nil,
		},
		"a hybrid cache that does not tell its tokens": {
			one, vllm("0", "3", "0.1") + info(`block_size="4",effective_attention_block_size="256",engine="0",kv_cache_size_tokens="None",num_gpu_blocks="2000"`),
			map[uint32]Report{0: scraped(func(r *Report) { r.Running, r.Waiting = Known(3), Known(2) })},
			nil, nil,
		},
		"blocks of another group than the worker's": {
			catalog.LoadPage{Ranks: 1, BlockSize: 256},
			vllm("0", "3", "0.1") + info(`block_size="4",engine="0",num_gpu_blocks="2000"`),
			map[uint32]Report{0: scraped(func(r *Report) { r.Running, r.Waiting = Known(3), Known(2) })},
			nil, nil,
		},
		"blocks of the worker's size": {
			catalog.LoadPage{Ranks: 1, BlockSize: 16},
			vllm("0", "3", "0.25") + info(`block_size="16",engine="0",num_gpu_blocks="100"`),
			map[uint32]Report{0: said(3, 400, 1600)},
			nil, nil,
		},
		"the record's capacity": {
			catalog.LoadPage{Ranks: 1, KVTokens: 1000},
			vllm("0", "3", "0.25"),
			map[uint32]Report{0: scraped(func(r *Report) { r.Running, r.Waiting, r.KVTokensUsed = Known(3), Known(2), Known(250) })},
			nil, nil,
		},
		"SGLang": {
			one, "sglang:num_running_reqs{model_name=\"m\",tp_rank=\"0\"} 3.0\nsglang:num_queue_reqs{model_name=\"m\",tp_rank=\"0\"} 2.0\nsglang:token_usage{model_name=\"m\",tp_rank=\"0\"} 0.5\nsglang:max_total_num_tokens{model_name=\"m\",tp_rank=\"0\"} 1600.0\n",
			map[uint32]Report{0: said(3, 800, 1600)},
			nil, nil,
		},
		"SGLang by rank, with processes that say the same": {
			two, "sglang:num_running_reqs{dp_rank=\"1\",tp_rank=\"0\"} 3\nsglang:num_running_reqs{dp_rank=\"1\",tp_rank=\"1\"} 0\nsglang:num_queue_reqs{dp_rank=\"1\",tp_rank=\"0\"} 2\nsglang:num_used_tokens{dp_rank=\"1\"} 800\nsglang:max_total_num_tokens{dp_rank=\"1\"} 1600\n",
			map[uint32]Report{1: said(3, 800, 1600)},
			nil, nil,
		},
		// trtllm-serve's metrics/collector.py, in which the usage is used_blocks / max_blocks; not run here.
		"TensorRT-LLM": {
			one, "trtllm_num_requests_running{pid=\"7\"} 3.0\ntrtllm_num_requests_waiting{pid=\"7\"} 2.0\ntrtllm_kv_cache_utilization{pid=\"7\"} 0.5\n" +
				"trtllm_kv_cache_max_blocks{pid=\"7\"} 50.0\ntrtllm_kv_cache_tokens_per_block{pid=\"7\"} 32.0\n",
			map[uint32]Report{0: said(3, 800, 1600)},
			nil, nil,
		},
		"a server of its own counts from 0": {catalog.LoadPage{FirstRank: 5, Ranks: 1}, vllm("0", "3", "0"), map[uint32]Report{5: scraped(func(r *Report) { r.Running, r.Waiting = Known(3), Known(2) })}, nil, nil},
		"ranks from another start":          {catalog.LoadPage{FirstRank: 4, Ranks: 2}, vllm("5", "3", "0") + vllm("6", "1", "0"), map[uint32]Report{5: scraped(func(r *Report) { r.Running, r.Waiting = Known(3), Known(2) })}, []Reason{ForeignRank}, nil},
		"which rank?":                       {two, "vllm:num_requests_running 3\n", nil, []Reason{ForeignRank}, errUseless},
		"a rank that is none":               {two, vllm("-1", "3", "0") + vllm("0", "3", "0"), map[uint32]Report{0: scraped(func(r *Report) { r.Running, r.Waiting = Known(3), Known(2) })}, []Reason{ForeignRank}, nil},
		"NaN":                               {two, vllm("0", "NaN", "0") + vllm("1", "3", "0"), map[uint32]Report{1: scraped(func(r *Report) { r.Running, r.Waiting = Known(3), Known(2) })}, []Reason{BadNumber}, nil},
		"negative":                          {two, vllm("0", "-1", "0") + vllm("1", "3", "0"), map[uint32]Report{1: scraped(func(r *Report) { r.Running, r.Waiting = Known(3), Known(2) })}, []Reason{BadNumber}, nil},
		"1e30":                              {one, vllm("0", "1e30", "0"), nil, []Reason{BadNumber}, errUseless},
		"infinite":                          {one, vllm("0", "+Inf", "0"), nil, []Reason{BadNumber}, errUseless},
		"more than the whole cache":         {one, vllm("0", "3", "1.5"), nil, []Reason{BadNumber}, errUseless},
		"bad beside good":                   {one, vllm("0", "-1", "0") + vllm("0", "3", "0"), nil, []Reason{BadNumber}, errUseless},
		"no load":                           {one, "python_info{a=\"b\"} 1\nvllm:prompt_tokens_total 3\n", nil, nil, errUseless},
		"empty":                             {one, "", nil, nil, errUseless},
		"not the format":                    {one, "<html>vllm:num_requests_running</html>", nil, nil, errUseless},
		"broken":                            {one, `vllm:num_requests_running{engine="0} 3`, nil, nil, errUseless},
		"only a capacity":                   {one, "sglang:max_total_num_tokens 1600\n", nil, nil, errUseless},
		"a long line of another family":     {one, "x{a=\"" + strings.Repeat("b", 200<<10) + "\"} 1\n" + vllm("0", "3", "0"), map[uint32]Report{0: scraped(func(r *Report) { r.Running, r.Waiting = Known(3), Known(2) })}, nil, nil},
		"a long line":                       {one, "vllm:num_requests_running{a=\"" + strings.Repeat("b", 200<<10) + "\"} 1\n", nil, nil, engines.ErrTooLong},
		"without an end of its last line":   {one, strings.TrimSuffix(vllm("0", "3", "0"), "\n"), map[uint32]Report{0: scraped(func(r *Report) { r.Running, r.Waiting = Known(3), Known(2) })}, nil, nil},
		"more than 4 MiB":                   {one, strings.Repeat("# a comment\n", 4<<20/12+1), nil, nil, engines.ErrTooLong},
		"more than 4 MiB in a line":         {one, strings.Repeat("#", 4<<20+1), nil, nil, engines.ErrTooLong},
		"far more series than ranks":        {one, strings.Repeat("vllm:num_requests_running 1\n", 321), nil, nil, engines.ErrTooLong},
	} {
		t.Run(name, func(t *testing.T) {
			var dropped []Reason
			tc.page.Interval = 2 * time.Second
			got, err := readPage(bufio.NewReaderSize(engines.AtMost(strings.NewReader(tc.text), maxPage), maxLine), &tc.page, func(why Reason) { dropped = append(dropped, why) })
			if !errors.Is(err, tc.err) || (err == nil) != (tc.err == nil) {
				t.Fatalf("%v, want %v", err, tc.err)
			}
			if tc.err == nil && !maps.Equal(got, tc.want) {
				t.Errorf("%+v, want %+v", got, tc.want)
			}
			if !slices.Equal(dropped, tc.dropped) {
				t.Errorf("dropped %v, want %v", dropped, tc.dropped)
			}
		})
	}
}

// TestRecordedPages: what engines have written. The first two pages are by the metrics' own code of
// two ranks with the same load; the last is of a vLLM server with more requests than its cache holds.
func TestRecordedPages(t *testing.T) {
	of := func(running, waiting, used, total uint64) Report {
		return scraped(func(r *Report) {
			r.Running, r.Waiting, r.KVTokensUsed, r.KVTokensTotal = Known(running), Known(waiting), Known(used), Known(total)
		})
	}
	ranks := func(total uint64) map[uint32]Report {
		return map[uint32]Report{0: of(12, 3, total*23/32, total), 1: of(4, 0, total/4, total)}
	}
	for name, want := range map[string]map[uint32]Report{
		"sglang-0.5.23":    ranks(8192),
		"vllm-0.32.0":      ranks(64 * 32),
		"vllm-0.32.0-busy": {0: of(6, 2, 1950, 64*32)}, // 20/21 of its blocks
	} {
		text, err := os.ReadFile("testdata/pages/" + name + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		page := catalog.LoadPage{Ranks: uint32(len(want)), Interval: 2 * time.Second}
		got, err := readPage(bufio.NewReaderSize(bytes.NewReader(text), maxLine), &page, func(why Reason) { t.Errorf("%s: dropped: %s", name, why) })
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("%s: %+v (%v), want %+v", name, got, err, want)
		}
	}
}

// TestCapacityChanges: an engine that comes back with another cache is believed, however often its
// page was read before, and one that says it no longer has none.
func TestCapacityChanges(t *testing.T) {
	page := catalog.LoadPage{Ranks: 1}
	for _, blocks := range []string{"100", "100", "200", "200", "None", "", "", "100"} {
		text := "vllm:num_requests_running 3\n"
		if blocks != "" {
			text += `vllm:cache_config_info{block_size="16",num_gpu_blocks="` + blocks + "\"} 1\n"
		}
		got, err := readPage(bufio.NewReaderSize(strings.NewReader(text), maxLine), &page, func(Reason) {})
		if err != nil {
			t.Fatal(err)
		}
		n, _ := strconv.ParseUint(blocks, 10, 64)
		if total := got[0].KVTokensTotal.Or(0); total != 16*n {
			t.Errorf("%d tokens in %q blocks of 16", total, blocks)
		}
	}
}

// TestManyLabels: a line costs memory, and so time, in proportion to its labels. A parser that looks
// at all labels so far with each one makes a map for each: 64 KiB of them took seconds.
func TestManyLabels(t *testing.T) {
	var labels strings.Builder
	for i := 0; labels.Len() < maxLine-100; i++ {
		labels.WriteString(`a` + strconv.Itoa(i) + `="",`)
	}
	for _, name := range []string{"vllm:num_requests_running", engines.VLLMCacheInfo} {
		text := "vllm:num_requests_waiting 1\n" + name + "{" + labels.String() + "} 1\n"
		page := catalog.LoadPage{Ranks: 1}
		allocs := testing.AllocsPerRun(1, func() {
			if _, err := readPage(bufio.NewReaderSize(strings.NewReader(text), maxLine), &page, func(Reason) {}); err != nil {
				t.Fatal(err)
			}
		})
		if allocs > 100 {
			t.Errorf("%s: %.0f allocations", name, allocs)
		}
	}
}

// FuzzPage: whatever a page says, no report has a number above MaxAmount or a foreign rank.
func FuzzPage(f *testing.F) {
	f.Add("vllm:num_requests_running{engine=\"0\"} 3\nvllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"100\"} 1\n")
	f.Add("sglang:token_usage{dp_rank=\"1\"} NaN\nsglang:max_total_num_tokens 1e300\n")
	f.Fuzz(func(t *testing.T, text string) {
		page := catalog.LoadPage{FirstRank: 1, Ranks: 2, KVTokens: 1 << 40}
		reports, err := readPage(bufio.NewReaderSize(strings.NewReader(text), maxLine), &page, func(Reason) {})
		if err != nil {
			return
		}
		for dp, r := range reports {
			for _, a := range []Amount{r.Running, r.Waiting, r.KVTokensUsed, r.KVTokensTotal} {
				if n, _ := a.Get(); n > MaxAmount {
					t.Errorf("%d", n)
				}
			}
			if dp < 1 || dp > 2 {
				t.Errorf("rank %d", dp)
			}
		}
	})
}
