package catalog

import "slices"

// Engine is a kind of inference engine, with what the catalog has to know of it. How it describes
// itself, and the series of its metrics, are in a table of internal/engines.
type Engine struct {
	// Name is what a record, a list of engines and a description call it.
	Name string
	// MetricsPath is that of its metrics in Prometheus' text format, below its URL.
	MetricsPath string
	// RankHeader is how its frontend wants to be told a rank, if no record says it: RankNone of one that
	// takes none; "" of one that takes a rank, see Catalog.RankHeader.
	RankHeader string
}

// Names of engines.
const (
	EngineVLLM   = "vllm"
	EngineSGLang = "sglang"
	EngineTRTLLM = "trtllm" // TensorRT-LLM's trtllm-serve
)

// kinds has a row for each engine, in the order in which errors and answers name them.
var kinds = [...]Engine{
	{Name: EngineVLLM, MetricsPath: "/metrics"},
	{Name: EngineSGLang, MetricsPath: "/metrics"},
	// Its /metrics is a queue of statistics in JSON, which each reader empties (openai_server.py).
	{Name: EngineTRTLLM, MetricsPath: "/prometheus/metrics", RankHeader: RankNone},
}

// otherEngine stands for an engine that has not said what it is.
var otherEngine = Engine{MetricsPath: "/metrics"}

// Engines returns the names of all engines.
func Engines() []string {
	names := make([]string, 0, len(kinds))
	for i := range kinds {
		names = append(names, kinds[i].Name)
	}
	return names
}

// EngineNamed returns the engine with a name, and one that is unknown, with a Name of "", for any other.
func EngineNamed(name string) Engine {
	if i := slices.IndexFunc(kinds[:], func(e Engine) bool { return e.Name == name }); i >= 0 {
		return kinds[i]
	}
	return otherEngine
}

// engine returns the kind of the record's engine, as the record names it or the engine itself does.
func (r *Record) engine() Engine {
	switch d := r.Describe; {
	case d == nil:
		return otherEngine
	case d.Engine == "" && d.Told != nil:
		return EngineNamed(d.Told.Engine)
	default:
		return EngineNamed(d.Engine)
	}
}
