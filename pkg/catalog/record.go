package catalog

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// MaxRanks is the largest data_parallel_size of a worker (dynamo-kv-router
// 1.6.1, decision D12). It also bounds the maps from rank to endpoint.
const MaxRanks = 4096

// Record is one worker as it was registered. Nil means unset; no defaults are
// filled in, so that a record is returned as it was given. Nobody may
// change what a Record points to after it was passed to the catalog or returned by it.
type Record struct {
	ID     uint64
	Scope  Scope
	Source Source `json:",omitzero"`
	// Draining is why the worker's source wants no new work for it, "" if it does.
	Draining string `json:",omitempty"`
	// Faults says what the worker's source finds wrong with it. With any it is incomplete.
	Faults []string `json:",omitempty"`
	// Drain is set while an operator drains the worker: see Catalog.Drain. It stays when the
	// record of the worker is replaced.
	Drain *Drain `json:",omitempty"`
	// Registration tells apart, in sets that are copied from other catalogs, a worker and one that was registered
	// after its removal with the same id. 0: not known.
	Registration uint64 `json:",omitempty"`

	// Describe, if set, asks the engine for what the record leaves out.
	Describe *Describe `json:",omitempty"`

	Endpoint          *string // where requests go; opaque to this service unless Describe is set
	KVEventsEndpoint  *string // event stream of a worker with a single rank
	KVEventsEndpoints map[uint32]string
	ReplayEndpoint    *string // of every rank that is not in ReplayEndpoints
	ReplayEndpoints   map[uint32]string
	// KVEventsServerKey is a CURVE key of an engine. It is set only in a record that an earlier
	// release saved. Such a worker is incomplete: its streams must not be followed in plain.
	KVEventsServerKey *string
	KVEventCopies     *string // CountCopies or SetCopies; unset is CountCopies
	KVEvents          *bool   `json:",omitempty"` // false: the engine publishes none, so that its endpoints are not used
	KVEventRank       *string `json:",omitempty"` // RankOfBatch or RankOfStream; unset is RankOfBatch

	// LoadEndpoint is the load stream of a worker with a single rank; an empty endpoint is none.
	LoadEndpoint  *string           `json:",omitzero"`
	LoadEndpoints map[uint32]string `json:",omitzero"` // by rank; takes precedence
	LoadMetrics   *LoadMetrics      `json:",omitzero"` // unset: the engine's metrics are not read

	BlockSize           *uint32 // tokens
	StartRank           *uint32 // data_parallel_start_rank; unset is 0
	Size                *uint32 // data_parallel_size; unset is 1
	MaxNumBatchedTokens *uint64 // tokens that one step of the engine may compute
	TotalKVBlocks       *uint64 // capacity of each rank's device, in blocks
	MaxModelLen         *uint32 `json:",omitempty"` // context length of the model, in tokens
	AttentionChunkSize  *uint64 // of chunked local attention, in tokens; 0 is unknown
	StableRoutingID     *string
	IsEagle             *bool // unset is false

	// Role is RolePrefill, RoleDecode or RoleEncode; unset is the first two. The gateway and the choice of pairs use it.
	Role *string
	// RankEndpoints has the http or https URLs of the ranks that have an HTTP server of
	// their own.
	RankEndpoints map[uint32]string
	// RankHeader says how the frontend at Endpoint wants to be told a rank: RankLocal,
	// RankGlobal or RankNone. Catalog.RankHeader has the meaning of unset.
	RankHeader *string
	// PrefillRankHeader, of a worker that decodes what others prefill: its sidecar is told
	// which rank prefills, and obeys. Unset is false.
	PrefillRankHeader *bool
	Adapters          []string // the LoRA adapters that the engine has; a set like Taints
	// Aliases are further names under which the engine serves the model, as it says itself: see
	// Catalog.Alias. A set like Taints.
	Aliases []string `json:",omitempty"`

	Taints           []string // a set: the catalog sorts it and drops repetitions
	TopologyDomains  map[string]string
	KVTransferDomain *string
	// Revision names what the engine's KV caches depend on beside the model, such as the version of the weights or of
	// the engine. Only engines of one revision, or of none, pass on caches to one another.
	Revision                  *string
	KVTransferEnforcement     *string // required or preferred
	KVTransferPreferredWeight *float32

	// RouterHintWorkerType says that the engine takes hints where to fetch KV caches from, those of engines of the same
	// type; unset and empty: it takes none. RouterHintSourceControlEndpoints has, by rank, where engines ask for
	// caches of this one. KVEventSourceMode is how the engine publishes KV events (dynamo-kv-router 1.6.1).
	RouterHintWorkerType             *string           `json:",omitempty"`
	RouterHintSourceControlEndpoints map[uint32]string `json:",omitempty"`
	KVEventSourceMode                *string           `json:",omitempty"`
	// KVPeerEndpoint, host:port, is the name by which llm-d's sidecars fetch caches from the engine; unset: they do
	// not, and the engine's sidecar fetches from no other.
	KVPeerEndpoint *string `json:",omitempty"`
	// KVHintsInBody: the engine reads hints in the member kv_hints of a request's body. Unset is false.
	KVHintsInBody *bool `json:",omitempty"`
}

// Values of Record.KVEventCopies: what a "stored" event means for a block that the rank
// already has (decision N3).
const (
	// CountCopies: the engine has one more copy of the block, and will announce the
	// removal of each copy.
	CountCopies = "count"
	// SetCopies: the event repeats what is known. One removal ends the block.
	SetCopies = "set"
)

// Values of Record.KVEventRank.
const (
	// RankOfBatch: a batch that states a rank is of that rank of the worker.
	RankOfBatch = "batch"
	// RankOfStream: all events of a stream are of the rank whose endpoint it has. Engines that
	// know nothing of one another all state rank 0.
	RankOfStream = "stream"
)

// StateAgentEvents is the KVEventSourceMode of an engine whose caches nobody is told to fetch: its events are those of an
// agent beside it (dynamo-kv-router 1.6.1).
const StateAgentEvents = "state_agent_v2"

// Values of Record.Role: the phase of a request that the worker serves where prefill and
// decode run on different workers.
const (
	RolePrefill = "prefill"
	RoleDecode  = "decode"
	// RoleEncode is that of workers that turn images and other media into embeddings. They compute no prompts and are never
	// chosen.
	RoleEncode = "encode"
)

// OnlyEncodes reports whether the worker takes no prompts.
func (r *Record) OnlyEncodes() bool { return r.Role != nil && *r.Role == RoleEncode }

// Patch changes the fields of a Record that are registered: nil leaves a field as it is. A list, a
// map or LoadMetrics that is not nil replaces the old one as a whole, also when it is empty. All else
// of a Patch, such as ID and Scope, is ignored.
type Patch Record

// apply returns r with the patch applied.
func (p *Patch) apply(r Record) Record {
	for i := range fields {
		if f := &fields[i]; !f.EngineOnly {
			f.Of.replace(&r, (*Record)(p))
		}
	}
	return r
}

// InvalidError says that a registration can never be accepted, whatever else
// changes.
type InvalidError struct{ Reason string }

// Error returns the reason.
func (e *InvalidError) Error() string { return e.Reason }

// Errors of the catalog's methods.
var (
	ErrNotFound     = errors.New("worker not found")
	ErrShuttingDown = errors.New("selection service is shutting down")
)

// notFoundError is ErrNotFound with the text of the contract.
type notFoundError uint64

func (e notFoundError) Error() string { return fmt.Sprintf("worker %d not found", uint64(e)) }
func (notFoundError) Unwrap() error   { return ErrNotFound }

// check returns an error for a record that can never be attached (decision
// D12).
func (r *Record) check() error {
	size := r.RankCount()
	if size > MaxRanks {
		return &InvalidError{fmt.Sprintf("data_parallel_size %d exceeds the maximum %d", size, MaxRanks)}
	}
	if start := r.FirstRank(); uint64(start)+uint64(size) > 1<<32 {
		return &InvalidError{fmt.Sprintf("data_parallel range overflows u32: start=%d size=%d", start, size)}
	}
	if err := r.checkFields(); err != nil {
		return err
	}
	if err := r.Describe.check(r.Endpoint); err != nil {
		return err
	}
	if err := r.Scope.check(); err != nil {
		return err
	}
	return r.checkTexts()
}

func (r *Record) checkAdapters() error {
	if slices.Contains(r.Adapters, "") {
		return &InvalidError{"adapters has an empty name"}
	}
	return nil
}

func (r *Record) checkRankEndpoints() error {
	ranks := make(map[string]uint32, len(r.RankEndpoints))
	for _, dp := range slices.Sorted(maps.Keys(r.RankEndpoints)) {
		endpoint := r.RankEndpoints[dp]
		if _, follows := r.KVEventsEndpoints[dp]; !follows && !r.HasRank(dp) {
			return &InvalidError{fmt.Sprintf("rank_endpoints names rank %d, which the worker does not have", dp)}
		}
		if why := badURL(endpoint); why != "" {
			return &InvalidError{fmt.Sprintf("rank_endpoints of rank %d: `%s` %s", dp, Clip(endpoint), why)}
		}
		if other, taken := ranks[endpoint]; taken {
			return &InvalidError{fmt.Sprintf("rank_endpoints has `%s` for the ranks %d and %d: leave ranks out that share the worker's endpoint", Clip(endpoint), other, dp)}
		}
		ranks[endpoint] = dp
	}
	return nil
}

// checkPeer refuses a name that cannot be the value of a header that names a host and a port.
func (r *Record) checkPeer() error {
	if r.KVPeerEndpoint == nil || *r.KVPeerEndpoint == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(*r.KVPeerEndpoint)
	number, bad := strconv.ParseUint(port, 10, 16)
	if err != nil || bad != nil || number == 0 || host == "" || strings.ContainsFunc(host, func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune(`,;"/@`, c) }) {
		return &InvalidError{fmt.Sprintf("kv_peer_endpoint %q is not host:port", Clip(*r.KVPeerEndpoint))}
	}
	return nil
}

// badURL returns why a text cannot be the URL of an engine's HTTP server, "" if it can.
func badURL(text string) string {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https":
		return "is not an http:// or https:// URL"
	case u.Hostname() == "":
		return "has no host"
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return "may have no more than a scheme, a host, a port and a path"
	}
	return ""
}

// normalize sorts the sets and removes duplicates.
func (r *Record) normalize() {
	for i := range fields {
		if of, is := fields[i].Of.(List); is && len(*of(r)) > 0 {
			set := slices.Clone(*of(r))
			slices.Sort(set)
			*of(r) = slices.Compact(set)
		}
	}
}

// equal reports whether two normalized records are the same, apart from their
// sources and from Drain. An empty list or map is the same as none.
func (r *Record) equal(o *Record) bool {
	if r.ID != o.ID || r.Scope != o.Scope || r.Draining != o.Draining || !slices.Equal(r.Faults, o.Faults) ||
		!r.Describe.sameWish(o.Describe) || r.Describe != nil && r.Describe.Turn != o.Describe.Turn || !equalPointers(r.KVEventsServerKey, o.KVEventsServerKey) {
		return false
	}
	for i := range fields {
		if !fields[i].Of.equal(r, o) {
			return false
		}
	}
	return true
}

func equalPointers[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

// A member of earlier releases' records that is refused wherever a worker or publisher is
// registered, and why.
const (
	ServerKeyField = "kv_events_server_key"
	NoServerKey    = "CURVE towards engines has been removed, register without this key"
)

// missing returns the reasons why the record is incomplete, in the order and with
// the texts of the contract (dynamo-kv-router 1.3.1).
func (r *Record) missing(s Settings) []string {
	why := slices.Clone(r.Faults)
	if r.Describe != nil {
		why = append(why, r.Describe.reasons(r, &s)...)
	}
	if r.Address() == "" {
		why = append(why, "endpoint is required")
	}
	if r.blockSize() == 0 {
		why = append(why, "block_size must be greater than 0")
	}
	if r.RankCount() == 0 {
		why = append(why, "data_parallel_size must be greater than 0")
	}
	if s.Queueing && r.MaxNumBatchedTokens == nil {
		why = append(why, "max_num_batched_tokens is required while queueing is enabled")
	}
	if s.KVEvents && r.Publishes() {
		for dp := range r.ranks() {
			if r.eventEndpoint(dp) == "" {
				why = append(why, fmt.Sprintf("kv_events endpoint is required for dp_rank %d", dp))
			}
		}
	}
	if r.LoadEndpoint != nil && *r.LoadEndpoint != "" && len(r.LoadEndpoints) == 0 && r.RankCount() > 1 {
		why = append(why, "load_endpoint is for a worker with one rank: load_endpoints is required")
	}
	if key := r.KVEventsServerKey; key != nil && *key != "" {
		why = append(why, ServerKeyField+": "+NoServerKey)
	}
	return why
}

// FirstRank returns the first data-parallel rank of the worker's own range.
func (r *Record) FirstRank() uint32 {
	if r.StartRank == nil {
		return 0
	}
	return *r.StartRank
}

// RankCount returns the number of ranks in the worker's own range.
func (r *Record) RankCount() uint32 {
	if r.Size == nil {
		return 1
	}
	return *r.Size
}

// HasRank reports whether dp is in the worker's own range.
func (r *Record) HasRank(dp uint32) bool {
	return dp >= r.FirstRank() && uint64(dp) < uint64(r.FirstRank())+uint64(r.RankCount())
}

// ranks yields the worker's own range in order.
func (r *Record) ranks() func(yield func(uint32) bool) {
	return func(yield func(uint32) bool) {
		for i := range r.RankCount() {
			if !yield(r.FirstRank() + i) {
				return
			}
		}
	}
}

// attachable lists the ranks that the complete record attaches: its own range
// and, with KV events, every other rank that has an event endpoint.
func (r *Record) attachable(kvEvents bool) []uint32 {
	all := slices.AppendSeq(make([]uint32, 0, r.RankCount()), r.ranks())
	if !kvEvents {
		return all
	}
	all = slices.AppendSeq(all, maps.Keys(r.KVEventsEndpoints))
	slices.Sort(all)
	return slices.Compact(all)
}

// Publishes reports whether the engine publishes KV events, as far as the record says.
func (r *Record) Publishes() bool { return r.KVEvents == nil || *r.KVEvents }

// eventEndpoint returns the endpoint of the rank's event stream, "" if there is
// none. A map, if it is set, takes precedence over the single endpoint, which
// is for workers with one rank only.
func (r *Record) eventEndpoint(dp uint32) string {
	if !r.Publishes() {
		return ""
	}
	if len(r.KVEventsEndpoints) > 0 {
		return r.KVEventsEndpoints[dp]
	}
	if r.KVEventsEndpoint != nil && r.RankCount() == 1 && dp == r.FirstRank() {
		return *r.KVEventsEndpoint
	}
	return ""
}

// replayEndpoint returns the endpoint that resends lost events of the rank.
func (r *Record) replayEndpoint(dp uint32) (endpoint string, given bool) {
	if e, ok := r.ReplayEndpoints[dp]; ok {
		return e, true
	}
	if r.ReplayEndpoint != nil {
		return *r.ReplayEndpoint, true
	}
	return "", false
}

// stream returns the checked event stream of a rank; the slot stays 0.
func (r *Record) stream(dp uint32, policy EndpointPolicy) (Stream, error) {
	s := Stream{DP: dp, Endpoint: r.eventEndpoint(dp), CountCopies: r.countsCopies(), OwnRank: r.KVEventRank != nil && *r.KVEventRank == RankOfStream}
	if r.TotalKVBlocks != nil {
		s.TotalKVBlocks = *r.TotalKVBlocks
	}
	if r.AttentionChunkSize != nil {
		s.AttentionChunkSize = *r.AttentionChunkSize
	}
	_, err := policy.Check(s.Endpoint)
	if err != nil {
		return s, fmt.Errorf("invalid kv_events endpoint for worker %d dp_rank %d: %w", r.ID, dp, err)
	}
	replay, given := r.replayEndpoint(dp)
	if !given {
		return s, nil
	}
	s.Replay = replay
	if err := policy.CheckReplay(replay); err != nil {
		return s, fmt.Errorf("invalid replay endpoint for worker %d dp_rank %d: %w", r.ID, dp, err)
	}
	return s, nil
}

// Address returns the worker's endpoint, "" if it has none.
func (r *Record) Address() string {
	if r.Endpoint == nil {
		return ""
	}
	return *r.Endpoint
}

// countsCopies reports whether the engine announces each copy of a block.
func (r *Record) countsCopies() bool { return r.KVEventCopies == nil || *r.KVEventCopies != SetCopies }

func (r *Record) blockSize() uint32 {
	if r.BlockSize == nil {
		return 0
	}
	return *r.BlockSize
}

func (r *Record) eagle() bool { return r.IsEagle != nil && *r.IsEagle }

// Lifecycle says whether a worker may be chosen. The values are those of the
// wire contract.
type Lifecycle = string

// The states of a worker.
const (
	Incomplete    Lifecycle = "incomplete"    // something is missing or in conflict: see Reasons
	Schedulable   Lifecycle = "schedulable"   // its ranks are candidates
	Draining      Lifecycle = "draining"      // it gets no new work: see Reasons; without any, its ranks are being taken away
	Unschedulable Lifecycle = "unschedulable" // deleted
)

// Worker is a registered worker at one moment. It never changes: every change
// of the catalog makes a new one.
type Worker struct {
	Record
	Lifecycle Lifecycle
	// Reasons says why the worker drains, or is incomplete although its record is complete.
	// Use Explain for all reasons.
	Reasons []string
	// incompleteUnder is set if the record is incomplete under these settings. Explain
	// computes the reasons from it; they are not stored, because there may be one for
	// each of thousands of ranks.
	incompleteUnder *Settings
	// conflict says in what the record, although complete, contradicts its scope.
	conflict Conflict
	// Behind names the replicas of a fleet that did not know of the change whose answer this is
	// when it was given; the catalog itself never sets it.
	Behind []string
	// Tracked: registered through the slot tracker. Such a worker is always
	// incomplete, with a reason that says so.
	Tracked bool
}

// Explain returns the reasons why the worker is not schedulable: why it is incomplete, then why
// it drains.
func (w *Worker) Explain() []string {
	if w.incompleteUnder != nil {
		return append(w.missing(*w.incompleteUnder), w.drainReasons()...)
	}
	return w.Reasons
}

// incompleteWorker returns an incomplete worker: its record could not be attached because of err,
// or, if err is nil, lacks something.
func (c *Catalog) incompleteWorker(r Record, err error) *Worker {
	if err == nil {
		return &Worker{Record: r, Lifecycle: Incomplete, incompleteUnder: &c.settings}
	}
	w := &Worker{Record: r, Lifecycle: Incomplete, Reasons: append([]string{reconcileFailed(err)}, r.drainReasons()...)}
	if other, ok := errors.AsType[*conflictError](err); ok {
		w.conflict = other.in
	}
	return w
}

// HasTaint reports whether the worker has the taint. It searches a sorted list
// and does not allocate.
func (w *Worker) HasTaint(taint string) bool {
	_, ok := slices.BinarySearch(w.Taints, taint)
	return ok
}

// withLifecycle returns the worker in another state, without reasons.
func (w *Worker) withLifecycle(l Lifecycle) *Worker {
	return &Worker{Record: w.Record, Lifecycle: l}
}
