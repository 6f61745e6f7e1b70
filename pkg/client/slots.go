package client

import (
	"context"
	"net/http"
)

// Slots calls the slot tracker, for callers that choose workers themselves and only
// want the load of their requests counted. Its errors and retries are those of the
// Client, but its calls are not kept in order, and a request that was added ends only by
// Free, with its worker, or by the service's age limit.
type Slots struct {
	client *Client
}

// Slots returns the calls of the slot tracker.
func (c *Client) Slots() Slots { return Slots{client: c} }

// SlotsScope names a tracker: a model, which is required, in a routing group; an empty
// one stands for "default".
type SlotsScope struct {
	Model        string `json:"model_name"`
	RoutingGroup string `json:"routing_group,omitempty"`
}

// SlotsWorker is a worker whose load is counted and that is never chosen.
type SlotsWorker struct {
	SlotsScope
	ID        uint64 `json:"worker_id"`
	BlockSize uint32 `json:"block_size"` // tokens, above 0
	StartRank uint32 `json:"dp_start"`
	Size      uint32 `json:"dp_size"` // ranks, 1 to 4096
}

// SlotsRequest is a request on a rank.
type SlotsRequest struct {
	SlotsScope
	ID             string  `json:"request_id"` // unique in its tracker
	Worker         uint64  `json:"worker_id"`
	DPRank         uint32  `json:"dp_rank"`
	SequenceHashes []int64 `json:"sequence_hashes"`          // rolling hashes of the complete blocks
	NewISLTokens   uint64  `json:"new_isl_tokens,omitempty"` // tokens to compute
}

// SlotsProjection is a prompt whose load is only projected.
type SlotsProjection struct {
	SlotsScope
	SequenceHashes []int64 `json:"sequence_hashes"`          // rolling hashes of the complete blocks
	NewISLTokens   uint64  `json:"new_isl_tokens,omitempty"` // tokens to compute
}

// SlotsLoad is the load of one rank.
type SlotsLoad struct {
	SlotsScope
	Worker        uint64 `json:"worker_id"`
	DPRank        uint32 `json:"dp_rank"`
	PrefillTokens uint64 `json:"active_prefill_tokens"`
	DecodeBlocks  uint64 `json:"active_decode_blocks"`
}

// slotsWorkerKey and slotsRequestKey name the worker or request that a call is about.
type slotsWorkerKey struct {
	SlotsScope
	Worker uint64 `json:"worker_id"`
}

type slotsRequestKey struct {
	SlotsScope
	ID string `json:"request_id"`
}

// Register adds a worker with its ranks. ErrConflict: it exists already, or the
// tracker has another block size. It is not retried when its answer is lost, because
// the retry would find the worker already there.
func (s Slots) Register(ctx context.Context, w SlotsWorker) error {
	return s.client.do(ctx, call{method: http.MethodPost, path: "/slots/register", body: w}, nil)
}

// Unregister removes a worker with its requests. ErrNotFound: there is no such worker.
func (s Slots) Unregister(ctx context.Context, scope SlotsScope, worker uint64) error {
	body := slotsWorkerKey{scope, worker}
	return s.client.do(ctx, call{method: http.MethodPost, path: "/slots/unregister", body: body, repeatable: true, goneIsDone: true}, nil)
}

// Workers lists the workers of a scope: those of the tracker and those that can be
// chosen.
func (s Slots) Workers(ctx context.Context, scope Scope) ([]SlotsWorker, error) {
	var list []SlotsWorker
	err := s.client.do(ctx, call{method: http.MethodGet, path: "/slots/workers" + scope.query(), repeatable: true}, &list)
	return list, err
}

// Add books a request on a rank. ErrConflict: its tracker has a request with this ID.
// ErrNotFound: there is no such tracker or rank. It is not retried when its answer is
// lost: after an ErrMaybeDone the caller has to free the request, too.
func (s Slots) Add(ctx context.Context, r SlotsRequest) error {
	if r.SequenceHashes == nil {
		r.SequenceHashes = []int64{} // null is refused
	}
	return s.client.do(ctx, call{method: http.MethodPost, path: "/slots/add", body: r}, nil)
}

// PrefillComplete takes the request's prefill tokens off its rank. Calling it again is
// not an error. ErrNotFound: there is no such request.
func (s Slots) PrefillComplete(ctx context.Context, scope SlotsScope, id string) error {
	return s.about(ctx, "/slots/prefill_complete", scope, id)
}

// Free ends a request. It does nothing if there is no such request. ErrNotFound: there
// is no such tracker.
func (s Slots) Free(ctx context.Context, scope SlotsScope, id string) error {
	return s.about(ctx, "/slots/free", scope, id)
}

func (s Slots) about(ctx context.Context, path string, scope SlotsScope, id string) error {
	return s.client.do(ctx, call{method: http.MethodPost, path: path, body: slotsRequestKey{scope, id}, repeatable: true}, nil)
}

// Loads lists the load of every rank of a scope.
func (s Slots) Loads(ctx context.Context, scope Scope) ([]SlotsLoad, error) {
	var list []SlotsLoad
	err := s.client.do(ctx, call{method: http.MethodGet, path: "/slots/loads" + scope.query(), repeatable: true}, &list)
	return list, err
}

// PotentialLoads lists the load that every rank of a tracker would have with the prompt.
// ErrNotFound: there is no such tracker.
func (s Slots) PotentialLoads(ctx context.Context, p SlotsProjection) ([]RankLoad, error) {
	if p.SequenceHashes == nil {
		p.SequenceHashes = []int64{}
	}
	var list []RankLoad
	err := s.client.do(ctx, call{method: http.MethodPost, path: "/slots/potential_loads", body: p, repeatable: true}, &list)
	return list, err
}

// Health returns nil if the service answers.
func (s Slots) Health(ctx context.Context) error {
	return s.client.do(ctx, call{method: http.MethodGet, path: "/slots/health", repeatable: true}, nil)
}

// slotsPeer is peer with the name that the slot tracker has for the member.
type slotsPeer struct {
	URL string `json:"url"`
}

// RegisterPeer makes the service follow another replica's reservations at a ZMQ
// endpoint, which must not be its own. ErrConflict: the service does not share
// reservations.
func (s Slots) RegisterPeer(ctx context.Context, endpoint string) error {
	return s.client.do(ctx, call{method: http.MethodPost, path: "/slots/register_peer", body: slotsPeer{endpoint}, repeatable: true}, nil)
}

// DeregisterPeer stops following a replica.
func (s Slots) DeregisterPeer(ctx context.Context, endpoint string) error {
	return s.client.do(ctx, call{method: http.MethodPost, path: "/slots/deregister_peer", body: slotsPeer{endpoint}, repeatable: true, goneIsDone: true}, nil)
}

// Peers lists the endpoints that are followed, sorted.
func (s Slots) Peers(ctx context.Context) ([]string, error) {
	var list []string
	err := s.client.do(ctx, call{method: http.MethodGet, path: "/slots/peers", repeatable: true}, &list)
	return list, err
}
