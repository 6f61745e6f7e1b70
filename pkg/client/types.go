package client

import (
	"encoding/json"
	"time"
)

// Prompt is a prompt as tokens, or as hashes with its length. Tokens override hashes.
type Prompt struct {
	// TokenIDs are the prompt's tokens; empty and not nil is the empty prompt.
	TokenIDs []uint32 `json:"token_ids,omitzero"`

	BlockHashes    []int64 `json:"block_hashes,omitzero"`    // local hashes of the complete blocks
	SequenceHashes []int64 `json:"sequence_hashes,omitzero"` // rolling hashes of the same blocks
	ISLTokens      *uint64 `json:"isl_tokens,omitempty"`     // length of the whole prompt

	LoRA      string `json:"lora_name,omitempty"`
	CacheSalt string `json:"cache_salt,omitempty"`
	Eagle     *bool  `json:"is_eagle,omitempty"` // nil: as the workers are

	// BlockMM (block_mm_infos) and RoutingInfo (mm_routing_info) describe multimodal
	// prompts, as JSON.
	BlockMM     json.RawMessage `json:"block_mm_infos,omitempty"`
	RoutingInfo json.RawMessage `json:"mm_routing_info,omitempty"`
}

// Override changes weights of the cost function for one request; nil keeps the
// configured one.
type Override struct {
	OverlapCredit *float64 `json:"overlap_score_credit,omitempty"` // >= 0
	PrefillScale  *float64 `json:"prefill_load_scale,omitempty"`   // >= 0
	Temperature   *float64 `json:"router_temperature,omitempty"`   // >= 0
	TrackPrefill  *bool    `json:"track_prefill_tokens,omitempty"`
}

// Rank names one data-parallel rank of a worker.
type Rank struct {
	Worker uint64 `json:"worker_id"`
	DPRank uint32 `json:"dp_rank"`
}

// Constraints restrict and weigh workers by their taints.
type Constraints struct {
	Required  []string           `json:"required_taints,omitempty"`  // a worker must have all
	Preferred map[string]float32 `json:"preferred_taints,omitempty"` // positive weights attract
}

// SelectRequest asks for a worker. Empty names are "default".
type SelectRequest struct {
	Model        string `json:"model_name,omitempty"`
	RoutingGroup string `json:"routing_group,omitempty"` // the tenant
	// ID is the id of the selection and of the reservation. If it is empty, calls that
	// book make one, and Select sends none.
	ID string `json:"selection_id,omitempty"`
	Prompt
	Override *Override `json:"router_config_override,omitempty"`

	ExpectedOutputTokens *uint32 `json:"expected_output_tokens,omitempty"`
	PriorityJump         float64 `json:"priority_jump,omitempty"`   // seconds or a weight, depending on the order of the queue
	StrictPriority       uint32  `json:"strict_priority,omitempty"` // higher goes first

	// FairnessID names the program that pays for the engine time of the request, where the wait queue is fair: an agent
	// with its sub-agents, or a conversation. Empty: the session, else the tenant.
	FairnessID string `json:"fairness_id,omitempty"`

	// TTFTTargetMS and DeadlineMS say within how many milliseconds the first token and the whole answer are wanted;
	// 0: there is no such wish. OnMiss says what happens if that cannot be: "place", the default, or "refuse".
	TTFTTargetMS float64 `json:"ttft_target_ms,omitempty"`
	DeadlineMS   float64 `json:"deadline_ms,omitempty"`
	OnMiss       string  `json:"on_miss,omitempty"`

	Pinned *Rank `json:"pinned_worker,omitempty"`
	// Target is the worker or rank to prefer: if it is eligible, no other is considered.
	// With a Target, Session has no effect.
	Target *AffinityTarget `json:"affinity_target,omitempty"`
	// AllowedWorkers, if not nil, are the only workers to choose from.
	AllowedWorkers []uint64     `json:"allowed_worker_ids,omitzero"`
	Constraints    *Constraints `json:"routing_constraints,omitempty"`

	Session string `json:"session_id,omitempty"` // requests of a session go to one rank, if the service has that on; at most 256 bytes
	// SessionContext describes the session; its ID overrides Session.
	SessionContext *SessionContext `json:"session_context,omitempty"`
	// PolicyClass is the class of the wait queue, sent as a header; empty: the service
	// chooses one.
	PolicyClass string `json:"-"`
	// Advisory makes Select answer what it would choose, without waiting or refusal.
	Advisory bool `json:"advisory,omitempty"`
	// Explain asks for the Explanation of the choice.
	Explain bool `json:"explain,omitempty"`
}

// AffinityTarget is a rank, or all ranks of a worker.
type AffinityTarget struct {
	Worker uint64  `json:"worker_id"`
	DP     *uint32 `json:"dp_rank,omitempty"` // nil: any
}

// SessionContext describes a session of an agent. The service does not use InputTrigger.
type SessionContext struct {
	ID           string `json:"session_id"`                  // at most 256 bytes
	Parent       string `json:"parent_session_id,omitempty"` // the session that has started this one; at most 256 bytes
	Final        *bool  `json:"session_final,omitempty"`     // true: the session ends with the reservation of this request
	InputTrigger string `json:"input_trigger,omitempty"`     // user_message, tool_result or other
	// AgentHeaders are headers of the agent, by name in any case. They say Parent and Final where these are missing.
	AgentHeaders map[string][]string `json:"agent_headers,omitempty"`
}

// KVHint is a message for the engine of a booking, which the caller passes on to it (dynamo-kv-router 1.6.1).
type KVHint struct {
	ProtocolVersion string         `json:"protocol_version"`
	MessageID       string         `json:"message_id"` // the id of the reservation
	Actions         []KVHintAction `json:"actions"`
}

// KVHintAction is what a KVHint asks for.
type KVHintAction struct {
	ID      string      `json:"action_id"`
	Type    string      `json:"action_type"` // kv.fetch
	Version string      `json:"action_version"`
	Payload KVFetchHint `json:"payload"`
}

// KVFetchHint says where the first blocks of the prompt can be fetched.
type KVFetchHint struct {
	SourceControlEndpoint string   `json:"source_control_endpoint"`
	BlockHashes           []uint64 `json:"block_hashes"` // the source's names of the blocks, from the first one on
}

// Selection is what was chosen, and with SelectAndReserve booked.
type Selection struct {
	ID           string `json:"selection_id"` // also of the reservation; empty if the request had none
	Model        string `json:"model_name"`
	RoutingGroup string `json:"routing_group"`
	Worker       uint64 `json:"worker_id"`
	DPRank       uint32 `json:"dp_rank"`
	Endpoint     string `json:"endpoint"`
	BlockSize    uint32 `json:"block_size"` // tokens

	Overlap                Overlap `json:"overlap"`
	EffectivePrefillTokens uint64  `json:"effective_prefill_tokens"` // tokens to compute, less those cached
	PotentialDecodeBlocks  uint64  `json:"potential_decode_blocks"`  // active blocks of the rank with this prompt
	DecodeBusy             *bool   `json:"decode_busy"`              // nil: not configured

	// Set for reservations, so that other trackers can count them too.
	SequenceHashes []int64 `json:"sequence_hashes"`
	ISLTokens      uint64  `json:"isl_tokens"`
	TrackPrefill   bool    `json:"track_prefill_tokens"`
	LeaseSeconds   float64 `json:"lease_seconds"` // 0: no lease
	// KVHint says where the engine can fetch KV caches of the prompt from; nil: nowhere, or the answer is repeated.
	KVHint *KVHint `json:"kv_hint"`

	WorkerLoad  *WorkerLoad  `json:"worker_load"` // set for advisory selections
	Explanation *Explanation `json:"explanation"` // set if requested, but not in a repeated answer
	// With an Explanation: how the engine's frontend wants the rank (local, global or none),
	// and the rank's number within its worker, from 0.
	RankHeader  string `json:"rank_header"`
	LocalDPRank uint32 `json:"local_dp_rank"`
}

// PairRequest asks for a worker that prefills and one that decodes.
type PairRequest struct {
	Model        string `json:"model_name,omitempty"`
	RoutingGroup string `json:"routing_group,omitempty"` // the tenant
	ID           string `json:"selection_id,omitempty"`  // of the pair; empty: the call makes one
	Prompt
	Override *Override `json:"router_config_override,omitempty"`

	Prefill PairSide `json:"prefill,omitzero"` // where the prefill may go
	Decode  PairSide `json:"decode,omitzero"`
	// Conditional, if not nil, says which prompts the worker that decodes prefills itself.
	Conditional *Conditional `json:"conditional,omitempty"`

	ExpectedOutputTokens *uint32 `json:"expected_output_tokens,omitempty"`
	PriorityJump         float64 `json:"priority_jump,omitempty"` // this and the next field as in SelectRequest
	StrictPriority       uint32  `json:"strict_priority,omitempty"`
	Session              string  `json:"session_id,omitempty"` // of the side that decodes
	PolicyClass          string  `json:"-"`                    // as in SelectRequest
	Explain              bool    `json:"explain,omitempty"`    // asks for the Explanation of both sides
	LeaseSeconds         float64 `json:"lease_seconds,omitempty"`
}

// PairSide restricts one side of a pair, as the fields of these names do in a SelectRequest.
type PairSide struct {
	Pinned         *Rank        `json:"pinned_worker,omitempty"`
	AllowedWorkers []uint64     `json:"allowed_worker_ids,omitzero"`
	Constraints    *Constraints `json:"routing_constraints,omitempty"`
}

// Conditional are bounds, as far as they are given. The worker that decodes prefills if it has to
// compute fewer tokens of the prompt, and a smaller share of it.
type Conditional struct {
	MaxUncachedTokens *uint64  `json:"max_uncached_tokens,omitempty"`
	MaxUncachedShare  *float64 `json:"max_uncached_share,omitempty"` // 0 to 1
}

// Pair is what was chosen and booked for a PairRequest.
type Pair struct {
	ID      string     `json:"selection_id"` // by which calls mean both reservations
	Decode  Selection  `json:"decode"`
	Prefill *Selection `json:"prefill"` // nil: the worker that decodes prefills
	// Reason is pair, or why there is no Prefill: cached, short or no_prefill_worker. It is empty in
	// an answer that is repeated by a replica that does not know it.
	Reason       string  `json:"reason"`
	LeaseSeconds float64 `json:"lease_seconds"` // of both; 0: no lease
}

// Overlap is what the chosen worker has cached of the prompt, in tokens. Each tier
// includes those above it.
type Overlap struct {
	LongestMatched uint32            `json:"longest_matched"`
	GPU            uint32            `json:"gpu"`
	CPU            uint32            `json:"cpu"`
	Disk           uint32            `json:"disk"`
	DP             map[uint32]uint32 `json:"dp"` // device tokens by rank
}

// WorkerLoad is the load of the chosen rank.
type WorkerLoad struct {
	ActivePrefillTokens  uint64  `json:"active_prefill_tokens"`
	PrefillTokenCapacity uint64  `json:"prefill_token_capacity"`
	TotalKVBlocks        *uint64 `json:"total_kv_blocks"`
	PrefillBusy          *bool   `json:"prefill_busy"`
}

// ReserveRequest books a prompt on a rank that the caller chose, or, without
// Worker, what Select chose under the same ID.
type ReserveRequest struct {
	Model        string `json:"model_name,omitempty"`
	RoutingGroup string `json:"routing_group,omitempty"`
	ID           string `json:"selection_id"`

	Worker *uint64 `json:"worker_id,omitempty"` // nil: what Select chose; then all fields below are ignored
	DPRank uint32  `json:"dp_rank,omitempty"`
	Prompt
	Override               *Override `json:"router_config_override,omitempty"`
	ExpectedOutputTokens   *uint32   `json:"expected_output_tokens,omitempty"`
	EffectivePrefillTokens *uint64   `json:"effective_prefill_tokens,omitempty"`
	TrackPrefill           *bool     `json:"track_prefill_tokens,omitempty"`
}

// Reservation is load that is booked on a rank.
type Reservation struct {
	ID           string  `json:"selection_id"`
	Model        string  `json:"model_name"`
	RoutingGroup string  `json:"routing_group"`
	Worker       uint64  `json:"worker_id"`
	DPRank       uint32  `json:"dp_rank"`
	Endpoint     string  `json:"endpoint"`
	LeaseSeconds float64 `json:"lease_seconds"`
}

// Worker is a worker's record: its registration and its state. Nil is unset.
type Worker struct {
	// What describes the engine is declared by go generate ./api, from the rows of catalog.Fields.

	ID           uint64 `json:"worker_id"`
	Model        string `json:"model_name,omitempty"`
	RoutingGroup string `json:"routing_group,omitempty"`
	// Where clients send requests. Needed to be schedulable.
	Endpoint *string `json:"endpoint,omitempty"`
	// Describe has the engine at Endpoint fill in what is unset: true, or its kind, "vllm" or
	// "sglang"; nil: it is not asked.
	Describe any `json:"describe,omitempty"`

	// The event stream of a worker with one rank.
	KVEventsEndpoint *string `json:"kv_events_endpoint,omitempty"`
	// The event streams of ranks, by data-parallel rank, in decimal.
	KVEventsEndpoints map[uint32]string `json:"kv_events_endpoints,omitzero"`
	// Where the events of ranks that have no replay endpoint of their own are asked for again.
	ReplayEndpoint *string `json:"replay_endpoint,omitempty"`
	// Where the events of ranks are asked for again, by data-parallel rank, in decimal.
	ReplayEndpoints map[uint32]string `json:"replay_endpoints,omitzero"`
	// What a stored event says of a block that the rank has already. `count`: the engine has one more copy, and
	// announces the end of each (vLLM). `set`: nothing new, and one removal ends it (vLLM with
	// `kv_cache_report_mode=full`). Unset is `count`.
	KVEventCopies *string `json:"kv_event_copies,omitempty"`
	// `false`: the engine publishes no KV events (embeddings, or no prefix caching), so that the worker needs no
	// endpoint for them, and has no stream. Unset is `true`.
	KVEvents *bool `json:"kv_events,omitempty"`
	// Whose events those of a rank's stream are. `batch`: of the rank that a batch states, else of the stream's.
	// `stream`: of the rank whose endpoint the stream has, whatever its batches state, as of engines that know
	// nothing of one another and all state rank 0. Unset is `batch`.
	KVEventRank *string `json:"kv_event_rank,omitempty"`
	// Tokens per chunk of a model with chunked local attention, which engines' events do not state. Without it, or
	// with 0, such a model's prefixes are taken as shorter than they may be.
	AttentionChunkSize *uint64 `json:"attention_chunk_size,omitempty"`
	// The context length of the model in tokens, by which a prompt is shortened as the engine shortens it. An engine
	// that describes itself tells it (vLLM and SGLang).
	MaxModelLen *uint32 `json:"max_model_len,omitempty"`

	// The load stream of a worker with one rank; an empty one is none.
	LoadEndpoint *string `json:"load_endpoint,omitempty"`
	// The load streams of ranks that the worker has (SGLang's `--load-publish-endpoint`), by data-parallel rank, in
	// decimal. An empty endpoint is none.
	LoadEndpoints map[uint32]string `json:"load_endpoints,omitzero"`
	// Reads the load of the ranks from the Prometheus metrics of its engine; unset, they are not read. A patch
	// replaces it as a whole.
	LoadMetrics *LoadMetrics `json:"load_metrics,omitempty"`

	// Tokens per block; one figure per model and tenant. Needed to be schedulable.
	BlockSize *uint32 `json:"block_size,omitempty"`
	// First rank; unset is 0.
	StartRank *uint32 `json:"data_parallel_start_rank,omitempty"`
	// Number of ranks; unset is 1. More than 4096 is refused with 400.
	Size *uint32 `json:"data_parallel_size,omitempty"`
	// Tokens that one step of the engine may compute. Needed to be schedulable while queueing is enabled.
	MaxNumBatchedTokens *uint64 `json:"max_num_batched_tokens,omitempty"`
	// Blocks of each rank's cache on its device.
	TotalKVBlocks *uint64 `json:"total_kv_blocks,omitempty"`
	// A name of the worker, which is kept and shown.
	StableRoutingID *string `json:"stable_routing_id,omitempty"`
	// The engine speculates with EAGLE, or with a method like it; unset is false.
	Eagle *bool `json:"is_eagle,omitempty"`

	// What of a request the worker serves behind the gateway where prefill and decode are apart; unset is both.
	// `/select_pair` heeds it as the gateway does, `/select` does not. A worker with `encode` is listed, and chosen
	// for nothing.
	Role *string `json:"role,omitempty"`
	// What the engine's KV caches depend on beside the model, such as the version of its weights. `/select_pair`
	// makes pairs of workers of one revision, or of workers without any.
	Revision *string `json:"revision,omitempty"`
	// Where the gateway sends requests of ranks that have an HTTP server of their own: an http or https URL by rank,
	// of ranks that the worker has. The others are at `endpoint`, and are told their rank.
	RankEndpoints map[uint32]string `json:"rank_endpoints,omitzero"`
	// How the engine's frontend wants a rank in `X-data-parallel-rank`: `local` counts from the worker's first rank,
	// `global` is the `dp_rank` of answers, `none` takes no rank. Unset is `local` if the worker starts above rank
	// 0, has several ranks, and no other record has its endpoint; else `global`.
	RankHeader *string `json:"rank_header,omitempty"`
	// Of a worker that decodes what others prefill: its sidecar obeys `x-prefiller-data-parallel-rank`, and applies
	// `x-data-parallel-rank` to the decode alone. Unset is false.
	PrefillRankHeader *bool `json:"prefill_rank_header,omitempty"`
	// Names of the LoRA adapters that the engine has, at most 1024, for the gateway.
	Adapters []string `json:"adapters,omitzero"`

	// Words by which requests avoid or prefer the worker.
	Taints []string `json:"taints,omitzero"`
	// Where the worker is, by the name of a level such as `zone`. It is kept and shown.
	TopologyDomains map[string]string `json:"topology_domains,omitzero"`
	// The level of topology within which callers pass on KV caches. `/select_pair` makes pairs of workers with one
	// domain and, where both tell it, one place in it; elsewhere it is kept and shown.
	KVTransferDomain *string `json:"kv_transfer_domain,omitempty"`
	// How callers heed that level, and `/select_pair`: with `preferred` on one side a pair may be of two places, and
	// the time of the transfer between them counts.
	KVTransferEnforcement *string `json:"kv_transfer_enforcement,omitempty"`
	// A 32-bit float by which callers weigh a preferred domain. It is kept and shown.
	KVTransferPreferredWeight *float32 `json:"kv_transfer_preferred_weight,omitempty"`
	// The engine takes hints where to fetch KV caches from: from engines of the same type, whatever the word. Unset
	// and empty: it takes none, and is no source.
	RouterHintWorkerType *string `json:"router_hint_worker_type,omitempty"`
	// Where other engines ask for KV caches of this one, by data-parallel rank, in decimal. Ranks without an
	// endpoint are no sources.
	RouterHintSourceControlEndpoints map[uint32]string `json:"router_hint_source_control_endpoints,omitzero"`
	// How the engine publishes KV events. With `state_agent_v2` no hint names it as a source. Other values are kept
	// and shown.
	KVEventSourceMode *string `json:"kv_event_source_mode,omitempty"`
	// `host:port`, by which llm-d's sidecars of other engines fetch KV caches from this one. The gateway and the
	// proxy name it to them in `x-kv-cache-source-host-port`, and name others to the sidecar of this engine. Unset
	// and empty: neither.
	KVPeerEndpoint *string `json:"kv_peer_endpoint,omitempty"`
	// The engine reads hints where to fetch KV caches from in the member `kv_hints` of a request's body (SGLang).
	// The gateway and the proxy then write them there. Unset is false.
	KVHintsInBody *bool `json:"kv_hints_in_body,omitempty"`

	// Set in answers only.
	Lifecycle             string        `json:"lifecycle,omitempty"` // schedulable, draining, incomplete, …
	NotSchedulableReasons []string      `json:"not_schedulable_reasons,omitempty"`
	Source                *WorkerSource `json:"source,omitempty"` // nil: the API
	Drain                 *WorkerDrain  `json:"drain,omitempty"`  // nil: no operator drains it
	// ReplicasBehind names the live replicas of the fleet that did not have a change when it was
	// answered.
	ReplicasBehind []string   `json:"replicas_behind,omitempty"`
	Described      *Described `json:"described,omitempty"` // what its engine has said, nil before it has
	// Further names under which the engine serves the model, as it says. Requests may name the model by them.
	ModelAliases []string `json:"model_aliases,omitempty"`
	// KVEventsBlockSize is the block size of the engine's KV events, in lists, if it is not that of the
	// record; else 0. None of these events can be used then.
	KVEventsBlockSize uint32 `json:"kv_events_block_size,omitempty"`
}

// Described is what a worker's engine says of itself.
type Described struct {
	Engine              string  `json:"engine,omitempty"` // one of those that describe names
	Version             string  `json:"version,omitempty"`
	TotalKVBlocks       *uint64 `json:"total_kv_blocks,omitempty"`
	MaxNumBatchedTokens *uint64 `json:"max_num_batched_tokens,omitempty"`
	// From says where members of the record come from: a path of the engine, "default", or "events": the
	// block size of its KV events, which contradicted what it told.
	From map[string]string `json:"from"`
}

// LoadMetrics says where an engine's metrics are, and how often they are read.
type LoadMetrics struct {
	URL             *string  `json:"url,omitempty"`              // unset is /metrics below the worker's endpoint
	IntervalSeconds *float64 `json:"interval_seconds,omitempty"` // 0.25 to 3600; unset is 2
}

// WorkerSource is where a worker's record comes from. Namespace and what follows is set of
// discovered workers only.
type WorkerSource struct {
	Kind      string `json:"kind"` // file or kubernetes
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	UID       string `json:"uid,omitempty"`
	Pool      string `json:"pool,omitempty"`
}

// WorkerDrain says that an operator drains a worker.
type WorkerDrain struct {
	Deadline time.Time `json:"deadline,omitzero"` // of its removal; zero: once it is empty
}

// LoadReport is what an engine says of one rank. Nil is unknown; numbers are at most 2^48.
type LoadReport struct {
	Running      *uint64 `json:"running,omitempty"` // requests
	Waiting      *uint64 `json:"waiting,omitempty"` // requests
	KVTokensUsed *uint64 `json:"kv_tokens_used,omitempty"`
	// KVTokensTotal is the room of the KV cache in tokens, MaxRunning the most requests that run at
	// a time.
	KVTokensTotal         *uint64 `json:"kv_tokens_total,omitempty"`
	WaitingUncachedTokens *uint64 `json:"waiting_uncached_tokens,omitempty"` // that the waiting requests have to prefill
	MaxRunning            *uint64 `json:"max_running,omitempty"`
}

// Difference is what a reconciliation changed, by worker.
type Difference struct {
	Added     []uint64 `json:"added"`
	Changed   []uint64 `json:"changed"`
	Removed   []uint64 `json:"removed"`
	Unchanged int      `json:"unchanged"`
	// ReplicasBehind is that of Worker.
	ReplicasBehind []string `json:"replicas_behind,omitempty"`
}

// Readiness is the answer of /ready.
type Readiness struct {
	Ready              bool     `json:"ready"`
	SchedulableWorkers int      `json:"schedulable_workers"`
	Workers            []Worker `json:"workers"`
	// Recovery is the progress of the recovery from other replicas, as the OpenAPI
	// document describes it; nil: not configured.
	Recovery json.RawMessage `json:"recovery"`
}

// ScopeLoads are the loads of one model and routing group.
type ScopeLoads struct {
	Model            string     `json:"model_name"`
	RoutingGroup     string     `json:"routing_group"`
	Loads            []RankLoad `json:"loads"`
	PendingCount     int        `json:"pending_count"` // requests that wait
	PendingISLTokens uint64     `json:"pending_isl_tokens"`
}

// RankLoad is the load of one rank, now or with a prompt.
type RankLoad struct {
	Worker         uint64 `json:"worker_id"`
	DPRank         uint32 `json:"dp_rank"`
	PrefillTokens  uint64 `json:"potential_prefill_tokens"`
	DecodeBlocks   uint64 `json:"potential_decode_blocks"`
	ActiveRequests uint64 `json:"active_requests"`
	// Reported is what the rank's engine says of its load; nil: it has no source. Foreign is what
	// counts as its load beside the reservations. Both are of present loads only.
	Reported *ReportedLoad `json:"reported"`
	Foreign  *ForeignLoad  `json:"foreign"`
}

// ReportedLoad is what an engine says of the load of a rank. Numbers that it does not say are nil.
type ReportedLoad struct {
	Source                string  `json:"source"` // push, scrape or told
	AgeSeconds            float64 `json:"age_seconds"`
	Stale                 bool    `json:"stale"` // too old to count
	State                 string  `json:"state"` // by its signs of life: alive, stalled or silent
	Running               *uint64 `json:"running"`
	Waiting               *uint64 `json:"waiting"`
	KVTokensUsed          *uint64 `json:"kv_tokens_used"`
	KVTokensTotal         *uint64 `json:"kv_tokens_total"`
	WaitingUncachedTokens *uint64 `json:"waiting_uncached_tokens"`
	MaxRunning            *uint64 `json:"max_running"`
}

// ForeignLoad is load of a rank that is not booked.
type ForeignLoad struct {
	Requests      uint64 `json:"requests"`
	PrefillTokens uint64 `json:"prefill_tokens"`
	Blocks        uint64 `json:"blocks"`
}

// ProjectRequest is a prompt for PotentialLoads or OverlapScores.
type ProjectRequest struct {
	Model        string `json:"model_name,omitempty"`
	RoutingGroup string `json:"routing_group,omitempty"`
	Prompt
	Override *Override `json:"router_config_override,omitempty"`
}

// DiagnoseRequest is a prompt to explain: tokens, or else hashes.
type DiagnoseRequest struct {
	Model        string   `json:"model_name,omitempty"`
	RoutingGroup string   `json:"routing_group,omitempty"`
	TokenIDs     []uint32 `json:"token_ids,omitzero"`
	BlockHashes  []int64  `json:"block_hashes,omitzero"` // local hashes of the complete blocks; LoRA and salt are in them
	LoRA         string   `json:"lora_name,omitempty"`
	CacheSalt    string   `json:"cache_salt,omitempty"`
	MaxBlocks    uint32   `json:"max_blocks,omitempty"` // how many are listed, at most 4096; 0: 256
}

// OverlapScores is what every rank has cached of a prompt.
type OverlapScores struct {
	BlockSize uint32       `json:"block_size"` // tokens
	NumBlocks int          `json:"num_blocks"`
	Workers   []OverlapRow `json:"workers"`
}

// OverlapRow is what one rank has cached of a prompt, in blocks. Each tier includes those
// above it.
type OverlapRow struct {
	Worker uint64 `json:"worker_id"`
	DPRank uint32 `json:"dp_rank"`
	Device uint32 `json:"device_blocks"`
	Host   uint64 `json:"host_pinned_blocks"`
	Disk   uint64 `json:"disk_blocks"`
	// The number of blocks that a tier adds to those above it.
	HostExtension uint64 `json:"host_pinned_extension_blocks"`
	DiskExtension uint64 `json:"disk_extension_blocks"`
}

// Names of thresholds, for UnsetBusyThreshold.
const (
	DecodeBlocksThreshold    = "active_decode_blocks_threshold"
	PrefillTokensThreshold   = "active_prefill_tokens_threshold"
	PrefillFractionThreshold = "active_prefill_tokens_threshold_frac"
)

// Thresholds are the busy thresholds of a model; nil is none.
type Thresholds struct {
	Model           string   `json:"model"`
	DecodeBlocks    *float64 `json:"active_decode_blocks_threshold,omitempty"`       // share of a rank's blocks, 0 to 1
	PrefillTokens   *uint64  `json:"active_prefill_tokens_threshold,omitempty"`      // prompt tokens to compute
	PrefillFraction *float64 `json:"active_prefill_tokens_threshold_frac,omitempty"` // the same, as a multiple of max_num_batched_tokens
}
