// Package simapi defines the JSON that the simulated engines and the player exchange over HTTP.
// All times except Speedup's are model time.
package simapi

// Paths of an engine.
const (
	PathGenerate = "/generate"           // POST GenerateRequest, answered by lines of Step
	PathInfo     = "/info"               // GET Info
	PathStats    = "/stats"              // GET Stats
	PathReset    = "/reset"              // POST ResetRequest, answered by Info
	PathSlow     = "/slow"               // POST SlowRequest
	PathClear    = "/reset_prefix_cache" // POST, 409 while requests run
	PathFaults   = "/faults"             // POST Faults
	PathFetch    = "/kv_cache"           // POST FetchRequest of another engine, answered by Transfer
)

// GenerateRequest asks for an answer. The model is simulated, so the caller also provides the
// answer; the engine only takes the time for it.
type GenerateRequest struct {
	RequestID      string   `json:"request_id"`
	TokenIDs       []uint32 `json:"token_ids"`
	OutputTokenIDs []uint32 `json:"output_token_ids"`
	LoRA           string   `json:"lora_name,omitempty"`  // blocks are shared only within an adapter
	Salt           string   `json:"cache_salt,omitempty"` // and only under the same salt
	Transfer       Transfer `json:"transfer,omitzero"`
}

// Transfer is the KV cache of a prompt's first tokens that another engine has computed, and the link over which it comes.
type Transfer struct {
	Tokens     int     `json:"tokens"`
	SetupMS    float64 `json:"setup_ms"`
	PerTokenUS float64 `json:"per_token_us"`
}

// FetchRequest asks for the KV cache of a prompt's first tokens: of those that the named blocks have or, without any, of the tokens.
type FetchRequest struct {
	BlockHashes []uint64 `json:"block_hashes,omitempty"` // as this engine has announced them
	TokenIDs    []uint32 `json:"token_ids,omitempty"`
	LoRA        string   `json:"lora_name,omitempty"`
	Salt        string   `json:"cache_salt,omitempty"`
	Has         int      `json:"has"`    // tokens that the asking engine has
	Domain      string   `json:"domain"` // its transfer domain
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
	EngineMS     float64 `json:"engine_ms,omitempty"`     // done: the engine's time that the request took, its part of each step
	Error        string  `json:"error,omitempty"`
}

// Info describes an engine, as needed to register it with a selection service.
type Info struct {
	BlockSize        int     `json:"block_size"` // tokens
	CacheBlocks      int     `json:"cache_blocks"`
	PrefillRate      float64 `json:"prefill_rate"` // tokens a second, unless chunked
	DecodeRate       float64 `json:"decode_rate"`  // tokens a second of each request, unless chunked
	Chunked          bool    `json:"chunked"`      // prefills in chunks beside decoding
	Speed            float64 `json:"speed"`        // factor of all its rates
	Speedup          float64 `json:"speedup"`      // model seconds per second
	KVEventsEndpoint string  `json:"kv_events_endpoint"`
	ReplayEndpoint   string  `json:"replay_endpoint"`
	Subscribers      int     `json:"subscribers"` // of the KV events
}

// Stats has the measurements of an engine since its start.
type Stats struct {
	ModelSeconds  float64   `json:"model_seconds"` // since the start
	Requests      int       `json:"requests"`      // finished
	Waiting       int       `json:"waiting"`       // in the prefill queue or in prefill
	Running       int       `json:"running"`       // decoding
	PromptTokens  int       `json:"prompt_tokens"`
	CachedTokens  int       `json:"cached_tokens"`   // part of prompt_tokens
	Received      int       `json:"received_tokens"` // part of prompt_tokens: they came from other engines
	OutputTokens  int       `json:"output_tokens"`
	CachedBlocks  int       `json:"cached_blocks"`   // in the cache now
	PrefillBusyMS float64   `json:"prefill_busy_ms"` // time in which prompt tokens were computed
	WorkMS        float64   `json:"work_ms"`         // time of steps beyond what each takes whatever it computes
	TTFTMS        []float64 `json:"ttft_ms"`         // one per request
	QueueMS       []float64 `json:"queue_ms"`        // same order
	TPOTMS        []float64 `json:"tpot_ms"`         // time per output token after the first, one per finished request with two or more
	TotalMS       []float64 `json:"total_ms"`        // from arrival to the last token, one per finished request
}

// ResetRequest restarts an engine: it has an empty cache, new event sockets that count from 0,
// new block hashes, and its model clock at 0.
type ResetRequest struct {
	Speedup float64 `json:"speedup"` // model seconds per second, above 0
}

// SlowRequest makes an engine run at a factor of its configured speed, until the next
// such request or a restart.
type SlowRequest struct {
	Factor float64 `json:"factor"` // above 0
}

// Faults are the faults of completions from now on. The zero value ends them.
type Faults struct {
	Status      int  `json:"status"`       // refuse completions with this status
	Reset       bool `json:"reset"`        // break the connection
	ResetTokens int  `json:"reset_tokens"` // output tokens before the break; 0: before the answer begins
	DelayMS     int  `json:"delay_ms"`     // real time before an answer begins
}
