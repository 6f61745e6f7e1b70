package service

import (
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
)

// Prompt is a prompt in one of the contract's three forms. Precedence: Routing
// (when it has tokens), then TokenIDs, then hashes. Slices are borrowed: the
// service keeps none of them after the call returns.
type Prompt struct {
	TokenIDs    []uint32
	HasTokenIDs bool
	// Routing is mm_routing_info: tokens with per-block objects of their own.
	Routing *Routing
	// MM holds the multimodal object hashes of each block of TokenIDs
	// (block_mm_infos); nil entries have none.
	MM [][]uint64

	BlockHashes       []uint64 // local hashes
	HasBlockHashes    bool
	SequenceHashes    []uint64 // rolling hashes
	HasSequenceHashes bool
	ISLTokens         uint64
	HasISLTokens      bool

	LoRA      string
	CacheSalt string
	// Eagle overrides the pool's own setting.
	Eagle *bool
}

// Routing is the expanded token form of a multimodal prompt.
type Routing struct {
	TokenIDs []uint32
	MM       [][]uint64
}

// SelectRequest is the body of /select and /select_and_reserve.
type SelectRequest struct {
	Scope         catalog.Scope
	SelectionID   *string
	ReservationID *string
	Prompt        Prompt
	Override      selector.Override

	ExpectedOutputTokens *uint32
	PriorityJump         float64
	StrictPriority       uint32
	// PolicyClass is the trimmed x-dynamo-meta-policy-class header; "" is absent.
	PolicyClass string

	Pinned            *catalog.Rank
	AllowedWorkers    []uint64
	HasAllowedWorkers bool // absent: all workers; empty list: none
	RequiredTaints    []string
	PreferredTaints   map[string]float32
}

// Selection is the answer of /select and /select_and_reserve.
type Selection struct {
	SelectionID   *string
	ReservationID *string
	Scope         catalog.Scope
	Rank          catalog.Rank
	Endpoint      string
	BlockSize     uint32
	Overlap       OverlapSummary
	// EffectivePrefillTokens is the prompt's length less what the cache credits.
	EffectivePrefillTokens uint64
}

// OverlapSummary is the chosen worker's overlap in tokens, cumulative by tier.
type OverlapSummary struct {
	LongestMatched, GPU, CPU, Disk uint32
	DP                             []RankTokens // every rank of the worker, by rank
}

// RankTokens is how many tokens one rank holds on its device.
type RankTokens struct {
	DP     uint32
	Tokens uint32
}

// ReserveRequest is the body of /reservations: a booking on a rank that the
// caller chose.
type ReserveRequest struct {
	Scope                  catalog.Scope
	ID                     string
	Rank                   catalog.Rank
	Prompt                 Prompt
	Override               selector.Override
	ExpectedOutputTokens   *uint32
	EffectivePrefillTokens *uint64
}

// Reservation is the answer of /reservations.
type Reservation struct {
	ID       string
	Scope    catalog.Scope
	Rank     catalog.Rank
	Endpoint string
}

// ScopeLoads is one scope of GET /loads.
type ScopeLoads struct {
	Scope            catalog.Scope
	Loads            []RankLoad // by rank
	PendingCount     int
	PendingISLTokens uint64
}

// RankLoad is the load of one rank, now or projected.
type RankLoad struct {
	Rank          catalog.Rank
	PrefillTokens uint64
	DecodeBlocks  uint64
	Requests      uint64
}

// ProjectRequest is the body of /potential_loads and /overlap_scores.
type ProjectRequest struct {
	Scope    catalog.Scope
	Prompt   Prompt
	Override selector.Override
}

// OverlapScores is the answer of /overlap_scores.
type OverlapScores struct {
	BlockSize uint32
	NumBlocks int
	Rows      []OverlapRow // by rank
}

// OverlapRow is one rank's overlap in blocks: Device, then what the host and
// the disk tier add behind it.
type OverlapRow struct {
	Rank               catalog.Rank
	Device, Host, Disk uint32
	// RouterCredit is in blocks, by the weights of the request.
	RouterCredit float64
}
