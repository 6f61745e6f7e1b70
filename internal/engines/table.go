package engines

import (
	"maps"
	"slices"

	"github.com/select-service/select-service/pkg/catalog"
)

// Engine is a kind of engine: how it describes itself over HTTP, and the series of its metrics. What
// the catalog has to know of it is in pkg/catalog/engines.go.
type Engine struct {
	catalog.Engine
	// Owner is the owned_by of its list of models, by which it is known where no path tells it from
	// others; "": a path does.
	Owner string
	// InfoPaths are those of its server information, of the newest release first; nil: it has none.
	InfoPaths []string
	// SourcesPath is the one that names the sockets of its KV events; "": none does.
	SourcesPath string
	// EventsPort is the port of rank 0's KV events unless the engine is told another, followed by
	// those of further ranks; 0: it has no default.
	EventsPort uint32
	// MetricsNeed says what an engine without a metrics page has to be told; "": it always has one.
	MetricsNeed string

	// RankLabel is the label of a series that names its data-parallel rank; "": no label does.
	RankLabel string
	// Cache are the series that tell its block size, of which a page has the first or the second.
	Cache []CacheSeries
	// Load are the series that tell the load of a rank, by name.
	Load map[string]Part
}

// CacheSeries are the series of a metrics page that describe a KV cache.
type CacheSeries struct {
	// Size and Blocks are the families with the tokens of a block and the number of blocks. They are
	// one family if its labels tell them.
	Size, Blocks string
	// SizeLabel and BlocksLabel are the labels that tell them; "": the values do.
	SizeLabel, BlocksLabel string
	// ByRank: each rank has a series of its own, read by the rules of VLLMBlockSize and VLLMTokens.
	ByRank bool
}

// Part is what a series says of the load of a rank.
type Part uint8

// The parts.
const (
	Running     Part = iota // requests
	Waiting                 // requests
	Usage                   // share of the KV cache, at most 1
	UsedTokens              // of the KV cache
	TotalTokens             // its capacity
	TotalBlocks             // its capacity in blocks of BlockTokens
	BlockTokens             // tokens of a block
	NumParts
)

// table has a row for each engine of the catalog. A new engine is a row here and one there.
var table = []Engine{
	{
		Engine:      catalog.EngineNamed(catalog.EngineVLLM),
		SourcesPath: "/kv_event_sources", // from 0.32 on
		EventsPort:  5557,
		RankLabel:   LabelEngine,
		Cache:       []CacheSeries{{Size: VLLMCacheInfo, Blocks: VLLMCacheInfo, SizeLabel: LabelBlockSize, BlocksLabel: LabelBlocks, ByRank: true}},
		Load: map[string]Part{
			"vllm:num_requests_running": Running, "vllm:num_requests_waiting": Waiting,
			"vllm:kv_cache_usage_perc": Usage, "vllm:gpu_cache_usage_perc": Usage, // the latter before 0.10
		},
	},
	{
		Engine:    catalog.EngineNamed(catalog.EngineSGLang),
		InfoPaths: []string{"/server_info", "/get_server_info"}, // the latter of earlier releases
		RankLabel: LabelDPRank,
		Cache: []CacheSeries{
			{Size: "sglang:cache_config_info", Blocks: "sglang:cache_config_info", SizeLabel: LabelPageSize, BlocksLabel: LabelPages},
			{Size: "sglang:page_size", Blocks: "sglang:num_pages"},
		},
		Load: map[string]Part{
			"sglang:num_running_reqs": Running, "sglang:num_queue_reqs": Waiting, "sglang:token_usage": Usage,
			"sglang:num_used_tokens": UsedTokens, "sglang:max_total_num_tokens": TotalTokens,
		},
	},
	// TensorRT-LLM's trtllm-serve, read in its source as of August 2026 and never run here: the owner is
	// that of ModelCard (serve/openai_protocol.py), the series those of metrics/collector.py, the port
	// that of ZmqEventPublisher (_torch/pyexecutor/kv_cache_events.py), to which the rank is added.
	{
		Engine:      catalog.EngineNamed(catalog.EngineTRTLLM),
		Owner:       "tensorrt_llm",
		EventsPort:  5557,
		MetricsNeed: "trtllm-serve has the page with return_perf_metrics, and its block size with enable_iter_perf_stats",
		Cache:       []CacheSeries{{Size: "trtllm_kv_cache_tokens_per_block", Blocks: "trtllm_kv_cache_max_blocks"}},
		Load: map[string]Part{
			"trtllm_num_requests_running": Running, "trtllm_num_requests_waiting": Waiting, "trtllm_kv_cache_utilization": Usage,
			"trtllm_kv_cache_max_blocks": TotalBlocks, "trtllm_kv_cache_tokens_per_block": BlockTokens,
		},
	},
}

// other is an engine that nobody names: each way to describe itself may be its own.
var other = func() Engine {
	e := Engine{Engine: catalog.EngineNamed("")}
	for i := range table {
		e.InfoPaths = append(e.InfoPaths, table[i].InfoPaths...)
		e.Cache = append(e.Cache, table[i].Cache...)
		if e.SourcesPath == "" {
			e.SourcesPath = table[i].SourcesPath
		}
	}
	return e
}()

// Named returns the engine with a name; "" is one of which nothing is known.
func Named(name string) *Engine {
	if i := slices.IndexFunc(table, func(e Engine) bool { return e.Name == name }); i >= 0 {
		return &table[i]
	}
	return &other
}

// OwnedBy returns the engine whose list of models has an owner, nil if that tells none.
func OwnedBy(owner string) *Engine {
	if i := slices.IndexFunc(table, func(e Engine) bool { return owner != "" && e.Owner == owner }); i >= 0 {
		return &table[i]
	}
	return nil
}

// LoadSeries is what a family of an engine's metrics says of the load of a rank.
type LoadSeries struct {
	Part      Part
	RankLabel string // the label that names the rank, "" if none does
}

// LoadFamilies returns the families of all engines that tell a load, by name. VLLMCacheInfo, which
// tells a capacity by its labels, is not among them.
func LoadFamilies() map[string]LoadSeries {
	all := make(map[string]LoadSeries)
	for i := range table {
		for name, part := range maps.All(table[i].Load) {
			all[name] = LoadSeries{part, table[i].RankLabel}
		}
	}
	return all
}
