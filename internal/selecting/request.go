package selecting

import (
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
)

// Prompt is a prompt in one of the contract's three forms. Precedence: Routing
// (when it has tokens), then TokenIDs, then hashes. Slices are borrowed: none of
// them is kept after the call returns.
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
	// Eagle overrides the setting of the scope's workers.
	Eagle *bool
}

// Routing is the expanded token form of a multimodal prompt.
type Routing struct {
	TokenIDs []uint32
	MM       [][]uint64
}

// TextHolder is the memory that a request came in.
type TextHolder interface {
	// ReleaseText gives it back. It may be called more than once.
	ReleaseText()
}

// SelectRequest is the body of /select and /select_and_reserve.
type SelectRequest struct {
	Scope catalog.Scope
	// Text is what the request was read from; nil: none. Once the request has to
	// wait, Text is released, and the Prompt has no tokens any more.
	Text TextHolder
	// SelectionID is echoed. In the 1.6 dialect it is the reservation's id too
	// (decision E1), so that both are set there.
	SelectionID   *string
	ReservationID *string // nil: one is made up
	Prompt        Prompt
	Override      selector.Override

	ExpectedOutputTokens *uint32
	PriorityJump         float64
	StrictPriority       uint32
	// PolicyClass is the trimmed x-dynamo-meta-policy-class header; "" is absent.
	PolicyClass string

	// Eligible, if not nil, leaves the ranks that it reports true for. Requests with the same
	// AllowedWorkers should have the same: they wait in one line.
	Eligible func(catalog.Entry) bool `json:"-"`
	// Fallbacks is how many ranks of other workers the answer names, the next cheapest.
	Fallbacks int
	// Stored, with a reservation, asks when the prefill is complete on behalf of a caller who
	// cannot tell: it is called, once at most, when events say that the chosen rank has stored
	// the prompt's last complete block, which it had not when it was looked up; perhaps before
	// Select returns. It must not block. The answer has PredictedTTFT and StopWatch then.
	Stored func() `json:"-"`

	Pinned *catalog.Rank
	// Target, if one of its ranks is eligible, leaves no others; else it has no effect.
	// It goes before the session, which is neither followed nor bound (1.6.1).
	Target            *AffinityTarget
	AllowedWorkers    []uint64
	HasAllowedWorkers bool // absent: all workers; empty list: none
	RequiredTaints    []string
	PreferredTaints   map[string]float32

	// Lease replaces the 300 s rule for the reservation; 0 is no lease.
	Lease time.Duration
	// IfExists says what becomes of a reservation whose id exists.
	IfExists IfExists

	// Pending, on /select with a SelectionID, keeps the choice so that Reserve can
	// book it by this id alone (dynamo-kv-router 1.6.1).
	Pending bool
	// Advisory, on /select, asks what would be chosen: the request neither waits
	// nor is refused for load, and the answer has a WorkerLoad (1.6.1).
	Advisory bool
	// Session: requests of one session go to one rank; "" is none (1.6.1).
	Session string
	// SoftSession: a session whose rank the request's filter excludes has no effect,
	// instead of being an error.
	SoftSession bool
	// Explain asks for the Explanation of the choice.
	Explain bool
	// ExplainOnly: the choice is not one. API.Explain sets it.
	ExplainOnly bool
	// Detailed: the caller reads the fields of 1.6.1, and as there an id that exists,
	// or that another request is booking, is refused before anything else.
	Detailed bool
}

// AffinityTarget is the rank that a caller would like, or all ranks of a worker.
type AffinityTarget struct {
	Worker uint64
	DP     *uint32 // nil: any
}

func (t *AffinityTarget) matches(r catalog.Rank) bool {
	return r.Worker == t.Worker && (t.DP == nil || *t.DP == r.DP)
}

// IfExists says what becomes of a reservation whose id exists (decision E4).
type IfExists uint8

// Refuse answers a conflict. ReturnFirst gives the first answer again if the
// request is the same.
const (
	Refuse IfExists = iota
	ReturnFirst
)

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

	// SequenceHashes, ISLTokens (L) and TrackPrefill are what was booked, set if
	// something was: another ledger can book the same from them (1.6.1).
	SequenceHashes []uint64
	ISLTokens      uint64
	// PotentialDecodeBlocks are the rank's active blocks with this prompt, a last
	// incomplete block included (1.6.1).
	PotentialDecodeBlocks uint64
	// DecodeBusy compares them with the worker's blocks; nil without a threshold
	// or without known blocks.
	DecodeBusy *bool
	WorkerLoad *WorkerLoad // of an advisory selection, else nil

	Fallbacks []catalog.Rank // as asked for
	// PredictedTTFT is what a policy that predicts it expects, if it has learned enough; else 0.
	PredictedTTFT time.Duration
	// StopWatch, if not nil, ends the wait for SelectRequest.Stored.
	StopWatch func()

	Lease       time.Duration // as asked for
	Explanation *Explanation  // if asked for, of a choice that was made now
	// Repeated: this is the answer of an earlier request with the same id. If
	// PlacementOnly it comes from the reservation itself, and of the fields above only
	// ReservationID, SelectionID, Scope, Rank, Endpoint and Lease are set.
	Repeated, PlacementOnly bool
	TrackPrefill            bool // see SequenceHashes
}

// WorkerLoad is what the chosen rank carries now (1.6.1).
type WorkerLoad struct {
	ActivePrefillTokens  uint64
	PrefillTokenCapacity uint64  // the worker's max_num_batched_tokens, or 10,000,000
	TotalKVBlocks        *uint64 // nil: unknown
	PrefillBusy          *bool   // nil: no threshold is configured
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

// ReserveRequest is the body of /reservations: a reservation on a rank that the
// caller chose, or of a pending selection.
type ReserveRequest struct {
	Scope                  catalog.Scope
	ID                     string
	Rank                   catalog.Rank
	Prompt                 Prompt
	Override               selector.Override
	ExpectedOutputTokens   *uint32
	EffectivePrefillTokens *uint64
	// TrackPrefill overrides the rule that effective_prefill_tokens, if given,
	// count (1.6.1).
	TrackPrefill *bool
	// Pending books the selection that Select kept under ID; all fields above but
	// Scope and ID are ignored (1.6.1).
	Pending bool

	Lease    time.Duration // as in SelectRequest
	IfExists IfExists
	Detailed bool
}

// Reservation is the answer of /reservations.
type Reservation struct {
	ID       string
	Scope    catalog.Scope
	Rank     catalog.Rank
	Endpoint string
	Lease    time.Duration // as asked for
	Repeated bool          // the id was booked before, by the same request
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
