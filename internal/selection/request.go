package selection

import (
	"fmt"
	"time"

	"github.com/select-service/select-service/internal/engines/reports"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
)

// Prompt is a prompt in one of the contract's three forms. If several are given, Routing with
// tokens takes precedence, then TokenIDs, then hashes. Slices are borrowed until the call returns.
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
	ISLTokens         uint64 // length of the prompt in tokens
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

// Eligible returns which ranks of a snapshot may be chosen, nil for all.
type Eligible func(*catalog.Snapshot) func(catalog.Entry) bool

// of returns the filter for a snapshot, nil if it has none. No request may use a rank that only encodes.
func (e Eligible) of(snap *catalog.Snapshot) func(catalog.Entry) bool {
	var may func(catalog.Entry) bool
	if e != nil {
		may = e(snap)
	}
	if !snap.Encoders {
		return may
	}
	return func(x catalog.Entry) bool { return !x.Worker.OnlyEncodes() && (may == nil || may(x)) }
}

// and returns the ranks of e for which also is true.
func (e Eligible) and(also func(catalog.Entry) bool) Eligible {
	return func(snap *catalog.Snapshot) func(catalog.Entry) bool {
		first := e.of(snap)
		if first == nil {
			return also
		}
		return func(e catalog.Entry) bool { return also(e) && first(e) }
	}
}

// TextReleaser has the memory of the text that a request was read from.
type TextReleaser interface {
	// ReleaseText releases the memory. It may be called more than once.
	ReleaseText()
}

// SelectRequest is the body of /select and /select_and_reserve.
type SelectRequest struct {
	Scope catalog.Scope
	// Trace is the span of the request; nil: it is not traced.
	Trace *tracing.Span `json:"-"`
	// Text has the text that the request was read from; nil: none. If the request has to
	// wait, Text is released, and Prompt loses its tokens.
	Text TextReleaser
	// SelectionID is echoed. In the 1.6 dialect it is also the reservation's id (decision E1),
	// so both fields are set there.
	SelectionID   *string
	ReservationID *string // nil: a new one is generated
	Prompt        Prompt
	Override      selector.Override

	ExpectedOutputTokens *uint32 // nil: unknown
	PriorityJump         float64 // in the wait queue, see admission.Order; at least 0
	StrictPriority       uint32  // in the wait queue; higher goes first
	// PolicyClass is the trimmed x-dynamo-meta-policy-class header; "" is absent.
	PolicyClass string

	// FairnessID names the program that pays for the request in a class that is fair, FairTenant its tenant; see
	// package fairness. "": the program is the session, or the one that has started it; the tenant is that of the scope.
	FairnessID, FairTenant string

	// TTFTTarget is how soon after the call the request wants its first token, see TTFTTargetOf; 0: it does not say.
	TTFTTarget time.Duration
	// Deadline is when it wants its whole answer, see DeadlineOf; zero: it does not say.
	Deadline time.Time
	// OddTarget: it says of its times what cannot be wanted. This is only set where targets have no effect, see IgnoresTargets.
	OddTarget bool
	// Ahead, if not zero, is when the call came that reserves for a request that follows and takes the reservation over, see
	// TakeOver. What that is to want runs from then on, and nothing comes of it if none follows.
	Ahead time.Time
	// RefuseOnMiss: the request is refused if it is predicted to miss one of them, instead of being placed all the same.
	RefuseOnMiss bool

	// Eligible, if not nil, returns which ranks of a snapshot the request may use, nil for all.
	// It is asked again when the workers have changed while the request waits, and must not
	// block. EligibleKey tells apart the requests that may use different ranks: those with
	// equal keys wait in one line.
	Eligible    Eligible `json:"-"`
	EligibleKey string   `json:"-"`
	// SharesFrontend, if not nil, reports whether the frontend of a rank's worker picks the rank
	// itself among those for which it is true. Of these the least loaded one is chosen, and the
	// overlap of each is that of the worker's rank with the most left to compute.
	SharesFrontend func(catalog.Entry) bool `json:"-"`
	// Fallbacks is how many ranks of other workers the answer names besides the chosen
	// one, cheapest first.
	Fallbacks int
	// Stored, with a reservation, is for callers that cannot observe the end of the prefill. It
	// is called, at most once, when events say that the chosen rank has stored the prompt's
	// last complete block, if the lookup did not find it there; perhaps before Select returns.
	// It must not block. The answer then has PredictedTTFT and StopWatch.
	Stored func() `json:"-"`

	Constraints
	// Target restricts the request to its ranks if one of them is eligible; otherwise it has no
	// effect. It takes precedence over the session, which is neither followed nor bound (1.6.1).
	Target *AffinityTarget

	// Lease replaces the 300 s rule for the reservation; 0: no lease.
	Lease time.Duration
	// IfExists says how to treat an id that a reservation already has.
	IfExists IfExists

	// Pending, on /select with a SelectionID, keeps the choice so that ReservePending can book it by
	// this id alone (dynamo-kv-router 1.6.1).
	Pending bool
	// Advisory, on /select, asks what would be chosen. The request neither waits nor is refused
	// for load, and the answer has a WorkerLoad (1.6.1).
	Advisory bool
	// Session is the name of a session, whose requests go to one rank; "": none (1.6.1).
	Session string
	// SessionTenant is whose session it is: tenants' sessions of one name are different ones. "": the session has no tenant but
	// that of the scope (1.6.1).
	SessionTenant string
	// Parent is the name of the session that has started this one, as an agent starts its sub-agents; "": none, or it is not
	// said. It is another name than Session, of the same tenant, and has no fault (see package identity) but that it may be
	// reserved, which is refused.
	Parent string
	// Final: the request is the session's last one, which ends with the reservation.
	Final bool
	// OfAgent: the session is that of a program which calls tools, so its pauses are shorter than those of people.
	OfAgent bool
	// SessionMode says how firmly the requests of the session stay together.
	SessionMode SessionMode
	// Groups: the sessions that Parent has started are kept together. Hard sessions are so also with
	// Config.SessionGroups.
	Groups bool
	// FilterBeforeSession: if the request's filter excludes the session's rank, the session has no
	// effect, instead of being an error.
	FilterBeforeSession bool
	// Hint, with a reservation: the answer says where the engine can fetch KV caches from, see Fetch.
	Hint Hint
	// ByLoad: the prompt is unknown, and empty here. The choice is that of PlaceByLoad among the
	// ranks that may take the request, whatever the scope's policy, and so is what is booked.
	ByLoad bool
	// Explain asks for the Explanation of the choice.
	Explain bool
	// ExplainOnly: nothing is chosen, only explained. API.Explain sets it.
	ExplainOnly bool
	// Dialect is the caller's. As in 1.6.1, an id that exists, or that another request is booking,
	// is refused before anything else is checked.
	Dialect contract.Version
}

// SessionMode says how firmly the requests of a session stay together.
type SessionMode uint8

// The modes.
const (
	// HardSessions are bound to one rank while Config.SessionTTL lasts (dynamo-kv-router 1.6.1).
	HardSessions SessionMode = iota
	// SoftSessions go where they went last, until the best other rank costs less by more than a move does.
	SoftSessions
	// LooseSessions go where a request without a session would go. Where they went is kept for groups.
	LooseSessions
)

// Constraints restrict the ranks that may take a request, or a side of a pair.
type Constraints struct {
	Pinned            *catalog.Rank
	AllowedWorkers    []uint64
	HasAllowedWorkers bool // absent: all workers; empty list: none
	RequiredTaints    []string
	PreferredTaints   map[string]float32
}

// filter returns their filter, which keeps and sorts their lists.
func (c *Constraints) filter() selector.Filter {
	if !c.HasAllowedWorkers {
		return selector.NewFilter(nil, c.RequiredTaints)
	}
	allowed := c.AllowedWorkers
	if allowed == nil {
		allowed = []uint64{}
	}
	return selector.NewFilter(allowed, c.RequiredTaints)
}

// AffinityTarget is the rank that a caller prefers, or all ranks of a worker.
type AffinityTarget struct {
	Worker uint64
	DP     *uint32 // nil: any
}

func (t *AffinityTarget) matches(r catalog.Rank) bool {
	return r.Worker == t.Worker && (t.DP == nil || *t.DP == r.DP)
}

// key distinguishes targets that leave different ranks.
func (t *AffinityTarget) key() string {
	if t.DP == nil {
		return fmt.Sprintf("target %d", t.Worker)
	}
	return fmt.Sprintf("target %d %d", t.Worker, *t.DP)
}

// IfExists says how to treat an id that a reservation already has (decision E4).
type IfExists uint8

// Refuse returns a conflict. ReturnFirst returns the first answer again if the request is the
// same.
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
	BlockSize     uint32 // tokens
	Overlap       OverlapSummary
	// EffectivePrefillTokens is the prompt's length in tokens less the credit for cached blocks.
	EffectivePrefillTokens uint64

	// SequenceHashes, ISLTokens (the prompt's length) and TrackPrefill are what was booked, set
	// only if something was: another ledger can book the same from them (1.6.1).
	SequenceHashes []uint64
	ISLTokens      uint64
	// PotentialDecodeBlocks is the number of the rank's active blocks including this prompt,
	// with its last incomplete block (1.6.1).
	PotentialDecodeBlocks uint64
	// DecodeBusy reports whether these exceed Config.DecodeBusy of the rank's blocks; nil
	// without that setting or if the number of blocks is unknown.
	DecodeBusy *bool
	WorkerLoad *WorkerLoad // for an advisory selection, else nil

	Fallbacks []catalog.Rank // as asked for
	// PredictedTTFT is the time to first token that the policy predicts, if it predicts one and
	// has learned enough; else 0.
	PredictedTTFT time.Duration
	// StopWatch, if not nil, ends the watch for SelectRequest.Stored.
	StopWatch func()

	// Registration is the rank's when it was booked, see reservations.View.Registration; 0 if
	// nothing was, or without a lease.
	Registration uint64

	// Fetch says where the engine can fetch from; nil: it was not asked for, there is no better source, or this is
	// the answer of an earlier request.
	Fetch *Fetch

	Lease       time.Duration // as asked for
	Explanation *Explanation  // if asked for, of a choice that was made now
	// Repeated: this is the answer of an earlier request with the same id. If PlacementOnly, it
	// is reconstructed from the reservation, and of the fields above only ReservationID,
	// SelectionID, Scope, Rank, Endpoint and Lease are set.
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

// OverlapSummary is the chosen worker's overlap in tokens. Each tier's number includes
// the tiers before it.
type OverlapSummary struct {
	LongestMatched, GPU, CPU, Disk uint32
	DP                             []RankTokens // every rank of the worker, by rank
}

// RankTokens is how many tokens of the prompt one rank has on its device.
type RankTokens struct {
	DP     uint32
	Tokens uint32
}

// ReserveRequest is the body of /reservations: a reservation on a rank that the caller chose.
type ReserveRequest struct {
	Scope                  catalog.Scope
	ID                     string
	Rank                   catalog.Rank
	Prompt                 Prompt
	Override               selector.Override
	ExpectedOutputTokens   *uint32
	EffectivePrefillTokens *uint64
	// TrackPrefill overrides the rule that effective_prefill_tokens, if given, count as
	// prefill load (1.6.1).
	TrackPrefill *bool

	Lease    time.Duration // as in SelectRequest
	IfExists IfExists
	Dialect  contract.Version
}

// PendingRequest is the body of /reservations for a pending selection (1.6.1).
type PendingRequest struct {
	Scope catalog.Scope
	ID    string
	// Text has the text that the request was read from; nil: none. It is released if the
	// request has to wait.
	Text TextReleaser

	Lease    time.Duration // as in SelectRequest
	IfExists IfExists
	Dialect  contract.Version
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

// Rebooking books a request again that Select, SelectPair or PlaceByLoad has booked.
type Rebooking struct {
	ID        string       // the id of a side of a pair books that side again
	Selection *Selection   // their answer
	Rank      catalog.Rank // where it is booked now
	// Former is the id of the reservation whose place this one takes; "": that has ended. What was promised to it is
	// promised to this one.
	Former string
	// After is the registration of Rank under which the request was booked last; 0: it was not
	// booked on this rank.
	After       uint64
	PrefillDone bool

	ExpectedOutputTokens *uint32
	Lease                time.Duration
}

// RankLoad is the load of one rank, now or projected.
type RankLoad struct {
	Rank          catalog.Rank
	PrefillTokens uint64 // tokens of unfinished prefill
	DecodeBlocks  uint64 // active KV blocks
	Requests      uint64 // active requests
	// Reported is what the engine says, nil if it has no source. Foreign is what counts as its
	// load beyond the reservations, which may be taken from other ranks; nil: none, and no source.
	// Both are of present loads only.
	Reported *reports.Status
	Foreign  *reservations.Foreign
}

// ProjectRequest is the body of /potential_loads and /overlap_scores.
type ProjectRequest struct {
	Scope    catalog.Scope
	Prompt   Prompt
	Override selector.Override
}

// OverlapScores is the answer of /overlap_scores.
type OverlapScores struct {
	BlockSize uint32       // tokens
	NumBlocks int          // complete blocks of the prompt
	Rows      []OverlapRow // by rank
}

// OverlapRow is one rank's overlap in blocks: those on its device, then the further ones on the
// host tier and on the disk tier.
type OverlapRow struct {
	Rank               catalog.Rank
	Device, Host, Disk uint32
	// RouterCredit is the credit for the overlap in blocks, by the weights of the request.
	RouterCredit float64
}
