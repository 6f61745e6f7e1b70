package catalog

// Description is what an engine says of itself. Zero values are not known.
type Description struct {
	Engine  string // EngineSGLang, EngineVLLM, or "" for another one
	Version string

	Model           string
	Adapters        []string // nil: not known
	BlockSize       uint32   // tokens
	StartRank, Size uint32   // the data-parallel ranks; Size is 0 if they are not known
	// Endpoints by rank: of KV events, of their replays and of load reports.
	KVEventsEndpoints, ReplayEndpoints, LoadEndpoints map[uint32]string

	TotalKVBlocks       uint64 // capacity of each rank's device, in blocks
	MaxNumBatchedTokens uint64 // tokens that one step of the engine may compute

	// From says for each known value, by the name of its member of a record, where it comes
	// from: a path of the engine, or FromDefault.
	From map[string]string
	// Unknown says why the engine does not tell a value, in its words where it has any.
	Unknown map[string]string
	// Unanswered: the engine did not answer some question, so that asking again may tell more.
	Unanswered bool
}

// Names of engines in a Description.
const (
	EngineSGLang = "sglang"
	EngineVLLM   = "vllm"
)

// FromDefault is the origin of a value that the engine does not tell and that is assumed because
// the caller has named the engine.
const FromDefault = "default"

// The members of a record that an engine can fill in, as From and Unknown name them.
const (
	FieldModel               = "model_name"
	FieldAdapters            = "adapters"
	FieldBlockSize           = "block_size"
	FieldStartRank           = "data_parallel_start_rank"
	FieldSize                = "data_parallel_size"
	FieldKVEventsEndpoints   = "kv_events_endpoints"
	FieldReplayEndpoints     = "replay_endpoints"
	FieldLoadEndpoints       = "load_endpoints"
	FieldTotalKVBlocks       = "total_kv_blocks"
	FieldMaxNumBatchedTokens = "max_num_batched_tokens"
)
