// Package simapi holds the JSON that the simulated engines and the player
// exchange over HTTP. All times but Speedup's are model time.
package simapi

// Paths of an engine.
const (
	PathGenerate = "/generate"           // POST GenerateRequest, answered by lines of Step
	PathInfo     = "/info"               // GET Info
	PathStats    = "/stats"              // GET Stats
	PathReset    = "/reset"              // POST ResetRequest, answered by Info
	PathClear    = "/reset_prefix_cache" // POST, 409 while requests run
)

// GenerateRequest asks for an answer. The model is simulated, so the caller
// brings the answer too; the engine only takes the time that it needs.
type GenerateRequest struct {
	RequestID      string   `json:"request_id"`
	TokenIDs       []uint32 `json:"token_ids"`
	OutputTokenIDs []uint32 `json:"output_token_ids"`
}

// Values of Step.Event, in the order in which they come.
const (
	EventFirstToken = "first_token" // once
	EventBlock      = "block"       // each time the answer fills another block
	EventDone       = "done"        // once, last
	EventError      = "error"       // last: the engine was restarted meanwhile
)

// Step is one line of the answer to a GenerateRequest.
type Step struct {
	Event        string  `json:"event"`
	OutputTokens int     `json:"output_tokens"`
	CachedTokens int     `json:"cached_tokens,omitempty"` // first_token: prompt tokens found in the cache
	QueueMS      float64 `json:"queue_ms,omitempty"`      // first_token: arrival to start of prefill
	TTFTMS       float64 `json:"ttft_ms,omitempty"`       // first_token: arrival to first token
	Error        string  `json:"error,omitempty"`
}

// Info describes an engine, as needed to register it with a selection service.
type Info struct {
	BlockSize        int     `json:"block_size"` // tokens
	CacheBlocks      int     `json:"cache_blocks"`
	PrefillRate      float64 `json:"prefill_rate"` // tokens a second
	DecodeRate       float64 `json:"decode_rate"`  // tokens a second of each request
	Speedup          float64 `json:"speedup"`      // model seconds per second
	KVEventsEndpoint string  `json:"kv_events_endpoint"`
	ReplayEndpoint   string  `json:"replay_endpoint"`
	Subscribers      int     `json:"subscribers"` // of the KV events
}

// Stats is what an engine has measured since its start.
type Stats struct {
	ModelSeconds  float64   `json:"model_seconds"` // since the start
	Requests      int       `json:"requests"`      // finished
	Waiting       int       `json:"waiting"`       // in the prefill queue or in prefill
	Running       int       `json:"running"`       // decoding
	PromptTokens  int       `json:"prompt_tokens"`
	CachedTokens  int       `json:"cached_tokens"` // part of prompt_tokens
	OutputTokens  int       `json:"output_tokens"`
	CachedBlocks  int       `json:"cached_blocks"`   // in the cache now
	PrefillBusyMS float64   `json:"prefill_busy_ms"` // time spent in prefill
	TTFTMS        []float64 `json:"ttft_ms"`         // one per request
	QueueMS       []float64 `json:"queue_ms"`        // same order
}

// ResetRequest restarts an engine: an empty cache, new event sockets that count
// from 0, new block names, the model clock at 0.
type ResetRequest struct {
	Speedup float64 `json:"speedup"` // model seconds per second, above 0
}
