package describe_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/engines"
	"github.com/select-service/select-service/internal/engines/describe"
	"github.com/select-service/select-service/pkg/catalog"
)

const (
	models     = `{"object":"list","data":[{"id":"m","parent":null},{"id":"sql","parent":"m"},{"id":"chat","parent":"m"}]}`
	serverInfo = `{"version":"0.5.23","served_model_name":"m","page_size":64,"dcp_size":1,"dp_size":2,"nnodes":1,"enable_dp_attention":false,
		"max_total_num_tokens":640000,"max_prefill_tokens":16384,"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,
		"topic":"","block_size":64,"dp_size":2,"load_endpoint_port_base":5561,"load_topic":"load","replay_endpoint_port_base":5559}}`
	metrics = `# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0
`
	version = `{"version":"0.33.0"}`

	// What trtllm-serve answers by its source: ModelCard of serve/openai_protocol.py, version and
	// get_server_info of serve/openai_server.py, and the gauges of metrics/collector.py, of which a
	// registry of several processes has one for each (label pid). /metrics is a queue of statistics in
	// JSON, which a reader empties. None of it was run here.
	trtModels  = `{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"tensorrt_llm"}]}`
	trtMetrics = `# HELP trtllm_kv_cache_max_blocks Multiprocess metric
# TYPE trtllm_kv_cache_max_blocks gauge
trtllm_kv_cache_max_blocks{engine_type="undefined",model_name="undefined",pid="7"} 1000.0
trtllm_kv_cache_tokens_per_block{engine_type="undefined",model_name="undefined",pid="7"} 32.0
`
)

// answers are those of an engine by path: a text is a 200, and what starts with a status is one.
type answers map[string]string

func (a answers) with(more answers) answers {
	all := maps.Clone(a)
	maps.Copy(all, more)
	return all
}

var (
	sglang = answers{"/server_info": serverInfo, "/v1/models": models}
	vllm   = answers{"/v1/models": models, "/metrics": metrics, "/version": version}
	trtllm = answers{
		"/v1/models": trtModels, "/version": `{"version":"1.3.0"}`, "/prometheus/metrics": trtMetrics,
		"/server_info": `{"disaggregated_params":{}}`, "/metrics": `[{"iter":1}]`,
	}
)

func (a answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, known := a[r.URL.Path]
	if !known {
		http.Error(w, `{"detail":"Not Found"}`, http.StatusNotFound)
		return
	}
	var status int
	if n, _ := fmt.Sscanf(text, "status %d ", &status); n == 1 {
		w.WriteHeader(status)
		text = text[len("status 200 "):]
	}
	_, _ = io.WriteString(w, text)
}

// engine starts an engine with these answers.
func engine(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func client(t *testing.T) *describe.Client {
	t.Helper()
	c := describe.New(describe.Options{})
	c.SetPatience(2 * time.Minute) // the machine may be busy
	t.Cleanup(c.Close)
	return c
}

// TestDescribe proves what is taken from where, for each kind of engine and each thing that it may
// leave unsaid. Errors are compared without the engine's address.
func TestDescribe(t *testing.T) {
	events := map[uint32]string{0: "tcp://127.0.0.1:5557", 1: "tcp://127.0.0.1:5558"}
	whole := catalog.Description{
		Engine: "sglang", Version: "0.5.23", Model: "m", Adapters: []string{"chat", "sql"}, BlockSize: 64, Size: 2,
		KVEventsEndpoints: events,
		ReplayEndpoints:   map[uint32]string{0: "tcp://127.0.0.1:5559", 1: "tcp://127.0.0.1:5560"},
		LoadEndpoints:     map[uint32]string{0: "tcp://127.0.0.1:5561", 1: "tcp://127.0.0.1:5562"},
		TotalKVBlocks:     10000, MaxNumBatchedTokens: 16384,
		From: map[string]string{
			"model_name": "/v1/models", "adapters": "/v1/models", "block_size": "/server_info", "data_parallel_size": "/server_info",
			"kv_events_endpoints": "/server_info", "replay_endpoints": "/server_info", "load_endpoints": "/server_info",
			"total_kv_blocks": "/server_info", "max_num_batched_tokens": "/server_info",
		},
		Unknown: map[string]string{},
	}
	named := catalog.Description{
		Engine: "vllm", Version: "0.33.0", Model: "m", Adapters: []string{"chat", "sql"}, BlockSize: 16, Size: 1, TotalKVBlocks: 1000,
		KVEventsEndpoints: map[uint32]string{0: "tcp://127.0.0.1:5557"},
		From: map[string]string{
			"model_name": "/v1/models", "adapters": "/v1/models", "block_size": "/metrics", "data_parallel_size": "/metrics",
			"total_kv_blocks": "/metrics", "kv_events_endpoints": "default",
		},
		Unknown: map[string]string{},
	}
	unnamed := named
	unnamed.KVEventsEndpoints, unnamed.From = nil, maps.Clone(named.From)
	delete(unnamed.From, "kv_events_endpoints")
	unnamed.Unknown = map[string]string{"kv_events_endpoints": "the engine does not describe its KV event sockets"}
	change := func(d catalog.Description, how func(d *catalog.Description)) catalog.Description {
		d.From, d.Unknown = maps.Clone(d.From), maps.Clone(d.Unknown)
		how(&d)
		return d
	}
	trt := catalog.Description{
		Engine: "trtllm", Version: "1.3.0", Model: "m", Adapters: []string{}, BlockSize: 32, TotalKVBlocks: 1000,
		KVEventsEndpoints: map[uint32]string{0: "tcp://127.0.0.1:5557"},
		From: map[string]string{
			"model_name": "/v1/models", "adapters": "/v1/models", "block_size": "/prometheus/metrics", "total_kv_blocks": "/prometheus/metrics",
			"kv_events_endpoints": "default",
		},
		Unknown: map[string]string{},
	}
	noEvents := change(whole, func(d *catalog.Description) {
		d.KVEventsEndpoints, d.ReplayEndpoints, d.LoadEndpoints = nil, nil, nil
		for _, f := range []string{"kv_events_endpoints", "replay_endpoints", "load_endpoints"} {
			delete(d.From, f)
		}
		d.Unknown["kv_events_endpoints"] = "GET /server_info: the engine publishes no KV events (--kv-events-config)"
	})
	info := func(change ...string) answers {
		return sglang.with(answers{"/server_info": strings.NewReplacer(change...).Replace(serverInfo)})
	}
	hostile := func(why string) catalog.Description {
		return change(noEvents, func(d *catalog.Description) { d.Unknown["kv_events_endpoints"] = "GET /server_info: " + why })
	}
	denied := func(d catalog.Description) catalog.Description {
		return change(d, func(d *catalog.Description) {
			d.Model, d.Adapters = "", nil
			for _, f := range []string{"model_name", "adapters"} {
				delete(d.From, f)
				d.Unknown[f] = `GET /v1/models: status 401`
			}
		})
	}
	rows := map[string]struct {
		engine answers
		kind   string
		want   catalog.Description
		err    string // instead
	}{
		"SGLang":          {sglang, "", whole, ""},
		"SGLang, by name": {sglang, "sglang", whole, ""},
		"of an older release": {answers{"/get_server_info": serverInfo, "/v1/models": models}, "", change(whole, func(d *catalog.Description) {
			for f, from := range d.From {
				if from == "/server_info" {
					d.From[f] = "/get_server_info"
				}
			}
		}), ""},
		"any wildcard":      {info(`"*"`, `"[::]"`), "", whole, ""},
		"its own host":      {info(`"*"`, `"127.0.0.1"`), "", whole, ""},
		"publishes nothing": {sglang.with(answers{"/server_info": serverInfo[:strings.Index(serverInfo, `{"publisher`)] + "null}"}), "", noEvents, ""},
		"no block size of events": {
			sglang.with(answers{"/server_info": strings.Replace(serverInfo[:strings.Index(serverInfo, `{"publisher`)]+"null}", `"dcp_size":1`, `"dcp_size":2`, 1)}), "",
			change(noEvents, func(d *catalog.Description) { d.BlockSize = 128 }), "",
		},
		"no list of models": {sglang.with(answers{"/v1/models": "status 500 x"}), "", change(whole, func(d *catalog.Description) {
			d.From["model_name"] = "/server_info"
			delete(d.From, "adapters")
			d.Adapters = nil
			d.Unknown["model_name"], d.Unknown["adapters"] = `GET /v1/models: status 500`, `GET /v1/models: status 500`
			d.Unanswered = true
		}), ""},
		"ranks on two nodes": {info(`"nnodes":1,"enable_dp_attention":false`, `"nnodes":2,"enable_dp_attention":true`), "", change(whole, func(d *catalog.Description) {
			d.KVEventsEndpoints = map[uint32]string{0: events[0]}
			d.ReplayEndpoints = map[uint32]string{0: "tcp://127.0.0.1:5559"}
			d.LoadEndpoints = map[uint32]string{0: "tcp://127.0.0.1:5561"}
			d.Unknown["kv_events_endpoints"] = "the ranks from 1 on are on other nodes of the engine"
		}), ""},
		"one that prefills, with EAGLE": {info(`"nnodes":1`, `"disaggregation_mode":"prefill","speculative_algorithm":"EAGLE3","nnodes":1`), "", change(whole, func(d *catalog.Description) {
			d.Role, d.Eagle, d.From["role"], d.From["is_eagle"] = catalog.RolePrefill, true, "/server_info", "/server_info"
		}), ""},
		"one of both roles, with n-grams": {info(`"nnodes":1`, `"disaggregation_mode":"null","speculative_algorithm":"NGRAM","nnodes":1`), "", whole, ""},
		"a foreign host":                  {info(`"*"`, `"10.0.0.9"`), "", hostile(`the engine names sockets on "10.0.0.9", which is not the host of its URL`), ""},
		"a foreign name":                  {info(`"*"`, `"127.0.0.1.evil"`), "", hostile(`the engine names sockets on "127.0.0.1.evil", which is not the host of its URL`), ""},
		"ports past the last":             {info(`5557`, `65535`), "", hostile("the ports from 65535 on for the ranks 0 to 1 are not in [1, 65535]"), ""},
		"port 0":                          {info(`5557`, `0`), "", hostile("the ports from 0 on for the ranks 0 to 1 are not in [1, 65535]"), ""},
		"a negative port":                 {info(`5557`, `-1`), "", hostile("kv_events: json: cannot unmarshal number -1 into Go struct field kvEvents.endpoint_port_base of type uint32"), ""},
		"another publisher":               {info(`"zmq"`, `"nats"`), "", hostile(`its publisher of KV events is "nats", not zmq`), ""},
		"no block size":                   {info(`"block_size":64`, `"block_size":0`), "", hostile("its KV events have the block size 0"), ""},
		"a foreign replay": {info(`"replay_endpoint_port_base":5559`, `"replay_endpoint_port_base":0`), "", change(whole, func(d *catalog.Description) {
			d.ReplayEndpoints = nil
			delete(d.From, "replay_endpoints")
			d.Unknown["replay_endpoints"] = "GET /server_info: the ports from 0 on for the ranks 0 to 1 are not in [1, 65535]"
		}), ""},
		"too many ranks": {info(`"dp_size":2`, `"dp_size":4097`), "", change(hostile("its dp_size is 4097, not a number from 1 to 4096"), func(d *catalog.Description) {
			d.Size = 0
			delete(d.From, "data_parallel_size")
		}), ""},
		"not SGLang":       {vllm, "sglang", catalog.Description{}, `GET /get_server_info: status 404`},
		"HTML, by name":    {sglang.with(answers{"/server_info": "<html>"}), "sglang", catalog.Description{}, `GET /server_info: the answer is no JSON`},
		"HTML":             {answers{"/v1/models": "<html>", "/server_info": "<html>"}, "", catalog.Description{}, `GET /v1/models: the answer is no JSON`},
		"no access":        {answers{"/v1/models": "status 401 no", "/server_info": "status 401 no", "/metrics": "status 401 no"}, "", catalog.Description{}, `GET /v1/models: status 401`},
		"nothing":          {answers{}, "", catalog.Description{}, `GET /v1/models: status 404`},
		"SGLang is busy":   {sglang.with(answers{"/server_info": "status 503 x"}), "", catalog.Description{}, `GET /server_info: status 503`},
		"and has no model": {sglang.with(answers{"/server_info": "status 503 x", "/v1/models": "status 503 y"}), "", catalog.Description{}, `GET /server_info: status 503`},

		"vLLM":                                {vllm, "", unnamed, ""},
		"vLLM, by name":                       {vllm, "vllm", named, ""},
		"vLLM of developers":                  {vllm.with(answers{"/server_info": `{"vllm_config":"x"}`}), "", unnamed, ""},
		"HTML where a path is not known":      {vllm.with(answers{"/server_info": "<html>"}), "", unnamed, ""},
		"no access where a path is not known": {vllm.with(answers{"/server_info": "status 401 no"}), "", unnamed, ""},
		"not allowed where it is not known":   {vllm.with(answers{"/server_info": "status 405 no"}), "", unnamed, ""},
		"no access below /v1":                 {vllm.with(answers{"/v1/models": "status 401 no"}), "", denied(unnamed), ""},
		"no access below /v1, by name":        {vllm.with(answers{"/v1/models": "status 401 no"}), "vllm", denied(named), ""},
		"two models": {
			vllm.with(answers{"/v1/models": `{"data":[{"id":"m"},{"id":"n"},{"id":"sql","parent":"n"}]}`}), "",
			change(unnamed, func(d *catalog.Description) { d.Adapters, d.Further = []string{"sql"}, []string{"n"} }), "",
		},
		// vLLM lists each --served-model-name with the root of the model.
		"two names of a model": {
			vllm.with(answers{"/v1/models": `{"data":[{"id":"m","root":"/models/a"},{"id":"gpt-4","root":"/models/a"},{"id":"n","root":"/models/b"},{"id":"o"},` +
				`{"id":"sql","parent":"gpt-4","root":"/adapters/sql"}]}`}), "",
			change(unnamed, func(d *catalog.Description) {
				d.Adapters, d.Aliases, d.Further = []string{"sql"}, []string{"gpt-4"}, []string{"n", "o"}
			}), "",
		},
		"vLLM with ranks": {
			vllm.with(answers{"/metrics": strings.Replace(metrics, "} 1.0", "} 1.0\n"+`vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="1000"} 1.0`, 1)}), "vllm",
			change(named, func(d *catalog.Description) { d.Size, d.TotalKVBlocks, d.KVEventsEndpoints = 2, 500, events }), "",
		},
		"vLLM, rank 3 of others": {
			vllm.with(answers{"/metrics": strings.Replace(metrics, `engine="0"`, `engine="3"`, 1)}), "vllm",
			change(named, func(d *catalog.Description) {
				d.StartRank, d.KVEventsEndpoints = 3, map[uint32]string{3: "tcp://127.0.0.1:5560"}
				d.From["data_parallel_start_rank"] = "/metrics"
			}), "",
		},
		"vLLM tells its sockets": {
			vllm.with(answers{"/kv_event_sources": `{"0":{"endpoint":"tcp://*:6000","replay_endpoint":"tcp://*:6001","publisher":"zmq"}}`}), "",
			change(named, func(d *catalog.Description) {
				d.KVEventsEndpoints, d.ReplayEndpoints = map[uint32]string{0: "tcp://127.0.0.1:6000"}, map[uint32]string{0: "tcp://127.0.0.1:6001"}
				d.From["kv_events_endpoints"], d.From["replay_endpoints"] = "/kv_event_sources", "/kv_event_sources"
			}), "",
		},
		"vLLM has none": {vllm.with(answers{"/kv_event_sources": `{}`}), "vllm", change(unnamed, func(d *catalog.Description) {
			d.Unknown["kv_events_endpoints"] = "GET /kv_event_sources: the engine publishes no KV events (--kv-events-config)"
		}), ""},
		"vLLM, foreign sockets": {vllm.with(answers{"/kv_event_sources": `{"0":{"endpoint":"tcp://10.0.0.9:6000"}}`}), "vllm", change(unnamed, func(d *catalog.Description) {
			d.Unknown["kv_events_endpoints"] = `GET /kv_event_sources: the engine names sockets on "10.0.0.9", which is not the host of its URL`
		}), ""},
		"vLLM, local sockets": {vllm.with(answers{"/kv_event_sources": `{"0":{"endpoint":"ipc:///tmp/x"}}`}), "vllm", change(unnamed, func(d *catalog.Description) {
			d.Unknown["kv_events_endpoints"] = "GET /kv_event_sources: its socket `ipc:///tmp/x` cannot be reached over the network"
		}), ""},
		"another answer": {vllm.with(answers{"/kv_event_sources": `{"status":"ok"}`}), "vllm", named, ""},
		"vLLM is too busy": {vllm.with(answers{"/metrics": "status 503 busy"}), "vllm", change(named, func(d *catalog.Description) {
			d.BlockSize, d.Size, d.TotalKVBlocks, d.Unanswered = 0, 0, 0, true
			for _, f := range []string{"block_size", "data_parallel_size", "total_kv_blocks"} {
				delete(d.From, f)
				d.Unknown[f] = `GET /metrics: status 503`
			}
		}), ""},
		"TensorRT-LLM, by name": {trtllm, "trtllm", trt, ""},
		// It has /version as vLLM has, and is no vLLM for that.
		"TensorRT-LLM": {trtllm, "", change(trt, func(d *catalog.Description) {
			d.KVEventsEndpoints = nil
			delete(d.From, "kv_events_endpoints")
			d.Unknown["kv_events_endpoints"] = "the engine does not describe its KV event sockets"
		}), ""},
		"TensorRT-LLM without its metrics": {answers{"/v1/models": trtModels}, "trtllm", change(trt, func(d *catalog.Description) {
			d.Version, d.BlockSize, d.TotalKVBlocks = "", 0, 0
			for _, f := range []string{"block_size", "data_parallel_size", "total_kv_blocks"} {
				delete(d.From, f)
				d.Unknown[f] = "GET /prometheus/metrics: status 404: trtllm-serve has the page with return_perf_metrics, and its block size with enable_iter_perf_stats"
			}
		}), ""},
		"no model": {answers{"/v1/models": `{"data":[{"id":"a","parent":"b"}]}`}, "", catalog.Description{}, "GET /v1/models: it lists no model"},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := engine(t, row.engine)
			got, err := client(t).Describe(t.Context(), at, row.kind)
			if row.err != "" {
				if text := strings.ReplaceAll(fmt.Sprint(err), at, ""); text != row.err || got != nil {
					t.Errorf("error %s\nwant  %s", text, row.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for field, why := range got.Unknown {
				got.Unknown[field] = strings.ReplaceAll(why, at, "")
			}
			if diff := cmp.Diff(row.want, *got); diff != "" {
				t.Errorf("-want +got: %s", diff)
			}
		})
	}
}

// TestMetrics proves which series tell the cache, and that disagreement is an error.
func TestMetrics(t *testing.T) {
	const other = "other{x=\"y\"} 1\n"
	rows := map[string]struct {
		text string
		want describe.Cache
		err  string
	}{
		"vLLM":                        {other + metrics + other, describe.Cache{BlockSize: 16, Blocks: 1000, Ranks: 1}, ""},
		"vLLM before labels of ranks": {`vllm:cache_config_info{block_size="32",num_gpu_blocks="None"} 1`, describe.Cache{BlockSize: 32, Ranks: 1}, ""},
		// The block size of events is that of full attention, with decode context parallelism
		// (vLLM's CacheConfig). DeepSeek-V4 has groups of 4, 8, 64 and 256 tokens.
		"vLLM, groups": {
			`vllm:cache_config_info{block_size="4",effective_attention_block_size="256",engine="0",kv_cache_size_tokens="150000",num_gpu_blocks="2000"} 1`,
			describe.Cache{BlockSize: 256, Blocks: 585, Tokens: 150000, Ranks: 1},
			"",
		},
		"vLLM, groups without tokens":      {`vllm:cache_config_info{block_size="4",effective_attention_block_size="256",num_gpu_blocks="2000"} 1`, describe.Cache{BlockSize: 256, Ranks: 1}, ""},
		"vLLM, decode context parallelism": {`vllm:cache_config_info{block_size="16",effective_attention_block_size="32",kv_cache_size_tokens="None",num_gpu_blocks="2000"} 1`, describe.Cache{BlockSize: 32, Ranks: 1}, ""},
		"vLLM, effective size not known":   {`vllm:cache_config_info{block_size="32",effective_attention_block_size="None",num_gpu_blocks="64"} 1`, describe.Cache{BlockSize: 32, Blocks: 64, Ranks: 1}, ""},
		"vLLM, tokens of each rank": {
			"vllm:cache_config_info{block_size=\"16\",engine=\"0\",kv_cache_size_tokens=\"1600\",num_gpu_blocks=\"200\"} 1\nvllm:cache_config_info{block_size=\"16\",engine=\"1\",kv_cache_size_tokens=\"1600\",num_gpu_blocks=\"200\"} 1\n",
			describe.Cache{BlockSize: 16, Blocks: 100, Tokens: 1600, Ranks: 2},
			"",
		},
		"vLLM disagrees": {
			"vllm:cache_config_info{block_size=\"16\",engine=\"0\"} 1\nvllm:cache_config_info{block_size=\"32\",engine=\"1\"} 1\n",
			describe.Cache{},
			`series of vllm:cache_config_info disagree: "16" and "32"`,
		},
		"vLLM with a gap": {
			"vllm:cache_config_info{block_size=\"16\",engine=\"0\"} 1\nvllm:cache_config_info{block_size=\"16\",engine=\"2\"} 1\n",
			describe.Cache{},
			"the engine labels of vllm:cache_config_info are not up to 4096 ranks in a row: 0 to 2",
		},
		"vLLM, no number":    {`vllm:cache_config_info{block_size="None",engine="0"} 1`, describe.Cache{}, `the block size "None" of vllm:cache_config_info is not a number from 1 to 4294967295`},
		"SGLang":             {"sglang:page_size{dp_rank=\"0\"} 64.0\nsglang:page_size{dp_rank=\"1\"} 64.0\n" + other + "sglang:num_pages{dp_rank=\"0\"} 1e+04\n", describe.Cache{BlockSize: 64, Blocks: 10000}, ""},
		"SGLang, one family": {`sglang:cache_config_info{page_size="1",num_pages="7"} 1`, describe.Cache{BlockSize: 1, Blocks: 7}, ""},
		"TensorRT-LLM":       {"trtllm_kv_cache_tokens_per_block 32\ntrtllm_kv_cache_max_blocks 99\n", describe.Cache{BlockSize: 32, Blocks: 99}, ""},
		"NaN":                {"trtllm_kv_cache_tokens_per_block NaN\n", describe.Cache{}, `the block size "NaN" of trtllm_kv_cache_tokens_per_block is not a number from 1 to 4294967295`},
		"1e30":               {"trtllm_kv_cache_tokens_per_block 1e30\n", describe.Cache{}, `the block size "1000000000000000000000000000000" of trtllm_kv_cache_tokens_per_block is not a number from 1 to 4294967295`},
		"none":               {other, describe.Cache{}, "it has no metric that tells the block size"},
		"no sample":          {"sglang:page_size{a=\n", describe.Cache{}, "a line of the metrics cannot be read: it is of sglang:page_size"},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := engine(t, answers{"/metrics": row.text})
			got, err := client(t).Cache(t.Context(), at, engines.Named(""))
			if row.err != "" {
				if text := strings.TrimPrefix(fmt.Sprint(err), "GET "+at+"/metrics: "); text != row.err {
					t.Errorf("error %s\nwant  %s", text, row.err)
				}
				return
			}
			if err != nil || got != row.want {
				t.Errorf("%+v, %v, want %+v", got, err, row.want)
			}
		})
	}
}

// endless writes until its reader goes.
func endless(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := io.WriteString(w, text); err != nil {
				return
			}
		}
	}
}

// TestBounds proves that an engine cannot make its reader read without end, nor go elsewhere, and
// which refusals are worth a second try.
func TestBounds(t *testing.T) {
	elsewhere := engine(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") }))
	gone := httptest.NewServer(nil)
	gone.Close()
	rows := map[string]struct {
		handler http.Handler
		path    string
		away    bool
		want    string
	}{
		"long JSON":         {endless(strings.Repeat(" ", 4096)), "/v1/models", false, "the answer is too long: more than 1048576 bytes"},
		"long metrics":      {endless("# " + strings.Repeat("x", 60_000) + "\n"), "/metrics", false, "the answer is too long: more than 8388608 bytes"},
		"a long line":       {endless(strings.Repeat("x", 4096)), "/metrics", false, "the answer is too long: a line has more than 65536 bytes"},
		"many series":       {endless(strings.Repeat("sglang:page_size 1\n", 256)), "/metrics", false, "the answer is too long: sglang:page_size has more than 65536 series"},
		"a redirect":        {http.RedirectHandler(elsewhere, http.StatusFound), "/v1/models", false, "status 302: redirects are not followed"},
		"not found":         {answers{}, "/v1/models", false, `status 404`},
		"loading":           {answers{"/v1/models": "status 503 "}, "/v1/models", true, "status 503"},
		"too many requests": {answers{"/v1/models": "status 429 "}, "/v1/models", true, "status 429"},
		"cut off":           {http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), "/v1/models", true, "EOF"},
		"many adapters":     {answers{"/v1/models": `{"data":[{"id":"m"}` + numbered(`,{"id":"%d","parent":"m"}`, 1025) + `]}`}, "/v1/models", false, "it lists 1025 adapters, the maximum is 1024"},
		"a long name":       {answers{"/v1/models": `{"data":[{"id":"` + strings.Repeat("x", 1025) + `"}]}`}, "/v1/models", false, "it lists a model whose id has 1025 bytes, the maximum is 1024"},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := engine(t, row.handler)
			c := client(t)
			var err error
			if row.path == "/metrics" {
				_, err = c.Cache(t.Context(), at, engines.Named(""))
			} else {
				_, err = c.Models(t.Context(), at)
			}
			var e *describe.Error
			if !errors.As(err, &e) || e.Err.Error() != row.want || e.Away != row.away || e.URL != at+row.path {
				t.Errorf("%v (%+v), want %s, away %t", err, e, row.want, row.away)
			}
		})
	}
	_, err := client(t).Models(t.Context(), gone.URL)
	var e *describe.Error
	if !errors.As(err, &e) || !e.Away || !strings.HasSuffix(err.Error(), "connection refused") {
		t.Errorf("nobody there: %v", err)
	}
	for _, kind := range []string{"", "sglang", "vllm"} {
		if _, err := client(t).Describe(t.Context(), gone.URL, kind); err == nil || !strings.HasPrefix(err.Error(), "GET "+gone.URL+"/v1/models: ") {
			t.Errorf("nobody there, as %q: %v", kind, err)
		}
	}
}

func numbered(format string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// TestMetricsAreReadToTheLine proves that the rest of a long answer is not awaited.
func TestMetricsAreReadToTheLine(t *testing.T) {
	at := engine(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, metrics+"other 1\n"+strings.Repeat("x", 64<<10))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	if got, err := client(t).Cache(t.Context(), at, engines.Named("")); err != nil || got.BlockSize != 16 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestAtATime proves that no more than 16 questions are under way, and that one that gives up
// waiting for its turn says so.
func TestAtATime(t *testing.T) {
	var now, most atomic.Int64
	full, release := make(chan struct{}), make(chan struct{})
	at := engine(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := now.Add(1)
		defer now.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		if n == 16 {
			close(full)
		}
		<-release
		_, _ = io.WriteString(w, models)
	}))
	c := client(t)
	done := make(chan error)
	for range 16 {
		go func() {
			_, err := c.Models(context.WithoutCancel(t.Context()), at)
			done <- err
		}()
	}
	<-full
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := c.Models(ctx, at)
	var e *describe.Error
	if !errors.As(err, &e) || !e.Away || !errors.Is(err, context.Canceled) {
		t.Errorf("without a turn: %v", err)
	}
	close(release)
	for range 16 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if most.Load() != 16 {
		t.Errorf("%d at a time", most.Load())
	}
}

// TestAllowed proves that engines that no rule allows, and addresses of metadata services, are not
// even connected to.
func TestAllowed(t *testing.T) {
	var asked atomic.Int64
	at := engine(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { asked.Add(1); _, _ = io.WriteString(w, models) }))
	port := at[strings.LastIndex(at, ":"):]
	for _, row := range []struct {
		rules []string
		url   string
		want  string
	}{
		{nil, at, ""},
		{[]string{"tcp://127.0.0.0/8:5557"}, at, ""},
		{[]string{"tcp://10.0.0.0/8"}, at, "127.0.0.1 is not among the allowed endpoints (--allow-endpoints)"},
		{[]string{"tcp://*:5557"}, at, "127.0.0.1 is not among the allowed endpoints (--allow-endpoints)"},
		{[]string{"tcp://localhost"}, "http://localhost" + port, ""},
		{nil, "http://169.254.169.254", "169.254.169.254: link-local, multicast and cloud metadata addresses are not asked"},
	} {
		policy := catalog.EndpointPolicy{}
		for _, text := range row.rules {
			rule, err := catalog.ParseEndpointRule(text)
			if err != nil {
				t.Fatal(err)
			}
			policy.Allowed = append(policy.Allowed, rule)
		}
		c := describe.New(describe.Options{Access: engines.Access{Dialer: engines.Dialer{Endpoints: policy}}})
		before := asked.Load()
		_, err := c.Models(t.Context(), row.url)
		c.Close()
		if row.want == "" {
			if err != nil {
				t.Errorf("%v %s: %v", row.rules, row.url, err)
			}
			continue
		}
		var e *describe.Error
		if !errors.As(err, &e) || e.Away || !strings.HasSuffix(err.Error(), row.want) || asked.Load() != before {
			t.Errorf("%v %s: %v, want %s", row.rules, row.url, err, row.want)
		}
	}
}

// TestOwnAddress: an address to which the URL's name resolves is not foreign; since
// vllm-project/vllm#55844 an engine that binds a wildcard names its own. The sockets are at the host
// of the URL all the same.
func TestOwnAddress(t *testing.T) {
	for name, row := range map[string]struct {
		sources, info string
		kind, want    string
	}{
		"vLLM":            {sources: `{"0":{"endpoint":"tcp://127.0.0.1:6000","replay_endpoint":"tcp://127.0.0.1:6001"}}`, kind: "vllm", want: "map[0:tcp://localhost:6000]"},
		"vLLM, another":   {sources: `{"0":{"endpoint":"tcp://127.0.0.9:6000"}}`, kind: "vllm", want: "map[]"},
		"SGLang":          {info: strings.ReplaceAll(serverInfo, `"*"`, `"127.0.0.1"`), want: "map[0:tcp://localhost:5557 1:tcp://localhost:5558]"},
		"SGLang, another": {info: strings.ReplaceAll(serverInfo, `"*"`, `"10.0.0.9"`), want: "map[]"},
		"a name of it":    {info: strings.ReplaceAll(serverInfo, `"*"`, `"localhost.evil"`), want: "map[]"},
	} {
		t.Run(name, func(t *testing.T) {
			all := answers{"/v1/models": models, "/metrics": metrics}
			if row.sources != "" {
				all["/kv_event_sources"] = row.sources
			}
			if row.info != "" {
				all["/server_info"] = row.info
			}
			at := strings.Replace(engine(t, all), "127.0.0.1", "localhost", 1)
			d, err := client(t).Describe(t.Context(), at, row.kind)
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(d.KVEventsEndpoints); got != row.want {
				t.Errorf("%s, want %s (%v)", got, row.want, d.Unknown)
			}
		})
	}
}

// TestNothingRepeated: an error repeats nothing of what answers at a URL, be it a page, JSON of another
// kind, or no HTTP at all: who may name URLs could read others' pages with it.
func TestNothingRepeated(t *testing.T) {
	const secret = "TOPSECRET"
	speaks := func(text string) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = bufio.NewReader(c).ReadString('\n')
				_, _ = io.WriteString(c, text)
				_ = c.Close()
			}
		}()
		return "http://" + l.Addr().String()
	}
	var log bytes.Buffer
	c := describe.New(describe.Options{Log: zerolog.New(&log)})
	t.Cleanup(c.Close)
	for name, at := range map[string]string{
		"a page":       engine(t, answers{"/v1/models": "<p>" + secret, "/server_info": secret, "/metrics": secret + "\n"}),
		"a refusal":    engine(t, answers{"/v1/models": "status 403 " + secret, "/server_info": "status 403 " + secret, "/metrics": "status 403 " + secret}),
		"a string":     engine(t, answers{"/v1/models": `"` + secret + `"`, "/server_info": `"` + secret + `"`}),
		"no HTTP":      speaks("SSH-2.0-" + secret + "\r\n"),
		"a bad header": speaks("HTTP/1.1 200 OK\r\n" + secret + "\r\n\r\n"),
		"a bad status": speaks("HTTP/1.1 " + secret + "\r\n\r\n"),
		"a bad length": speaks("HTTP/1.1 200 OK\r\nContent-Length: " + secret + "\r\n\r\n"),
	} {
		log.Reset()
		for _, kind := range []string{"", "vllm", "sglang"} {
			d, err := c.Describe(t.Context(), at, kind)
			if err == nil || strings.Contains(fmt.Sprint(err, d), secret) {
				t.Errorf("%s as %q: %v", name, kind, err)
			}
		}
		if !strings.Contains(log.String(), secret) {
			t.Errorf("%s: the log does not say what has answered: %s", name, log.String())
		}
	}
}

// TestToken proves that every question shows the token there is at that moment.
func TestToken(t *testing.T) {
	var shown []string
	url := engine(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		shown = append(shown, r.Header.Get("Authorization"))
	}))
	token := "first"
	c := describe.New(describe.Options{Access: engines.Access{Token: func() string { return token }}})
	defer c.Close()
	for _, token = range []string{"first", "", "second"} {
		_, _ = c.Models(t.Context(), url)
	}
	if want := []string{"Bearer first", "", "Bearer second"}; !slices.Equal(shown, want) {
		t.Errorf("shown %q, want %q", shown, want)
	}
}

// TestLength proves that the length of a model is that of its entry in the list, by which name it is asked
// for, and that a description has it.
func TestLength(t *testing.T) {
	const list = `{"data":[{"id":"m","max_model_len":4096,"root":"r"},{"id":"alias","max_model_len":4096,"root":"r"},{"id":"none"}]}`
	at := engine(t, vllm.with(answers{"/v1/models": list}))
	c := client(t)
	for name, want := range map[string]int{"m": 4096, "alias": 4096} {
		for _, engine := range []string{at, strings.TrimPrefix(at, "http://")} { // as a record may have it
			if got, err := c.Length(t.Context(), engine, name); got != want || err != nil {
				t.Errorf("%s at %s: %d, %v", name, engine, got, err)
			}
		}
	}
	for _, name := range []string{"none", "other"} {
		if got, err := c.Length(t.Context(), at, name); err == nil {
			t.Errorf("%s: %d", name, got)
		}
	}
	d, err := c.Describe(t.Context(), at, "")
	if err != nil || d.MaxModelLen != 4096 || d.From["max_model_len"] != "/v1/models" {
		t.Errorf("%+v, %v", d, err)
	}
}

// FuzzDescribe proves that no answer makes the reader panic, name a socket on a foreign host, or
// leave a value without its origin.
func FuzzDescribe(f *testing.F) {
	f.Add(serverInfo, models, metrics, `{"0":{"endpoint":"tcp://*:1"}}`)
	f.Add("{}", models, metrics, "{}")
	var now answers
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { now.ServeHTTP(w, r) }))
	f.Cleanup(s.Close)
	c := describe.New(describe.Options{})
	f.Cleanup(c.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, info, models, metrics, sources string) {
		now = answers{"/server_info": info, "/v1/models": models, "/metrics": metrics, "/kv_event_sources": sources}
		for _, kind := range []string{"", "sglang", "vllm"} {
			d, err := c.Describe(t.Context(), s.URL, kind)
			if err != nil {
				continue
			}
			for _, all := range []map[uint32]string{d.KVEventsEndpoints, d.ReplayEndpoints, d.LoadEndpoints} {
				for _, at := range slices.Collect(maps.Values(all)) {
					if e, err := catalog.ParseEndpoint(at); err != nil || e.Host != u.Hostname() {
						t.Errorf("%s: %v", at, err)
					}
				}
			}
			if (d.BlockSize != 0) != (d.From["block_size"] != "") || (d.Model != "") != (d.From["model_name"] != "") {
				t.Errorf("%+v", d)
			}
		}
	})
}
