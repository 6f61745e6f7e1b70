package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
)

// peer is the body of the peer routes.
type peer struct {
	Endpoint string `json:"endpoint"`
}

// RegisterPeer makes the service follow another replica's reservations at a ZMQ
// endpoint. ErrConflict: the service does not share reservations.
func (c *Client) RegisterPeer(ctx context.Context, endpoint string) error {
	return c.do(ctx, call{method: http.MethodPost, path: "/replica_sync/register_peer", body: peer{endpoint}, repeatable: true}, nil)
}

// DeregisterPeer stops following a replica.
func (c *Client) DeregisterPeer(ctx context.Context, endpoint string) error {
	return c.do(ctx, call{method: http.MethodPost, path: "/replica_sync/deregister_peer", body: peer{endpoint}, repeatable: true, goneIsDone: true}, nil)
}

// Peers lists the endpoints that are followed, sorted.
func (c *Client) Peers(ctx context.Context) ([]string, error) {
	var list []string
	err := c.do(ctx, call{method: http.MethodGet, path: "/replica_sync/peers", repeatable: true}, &list)
	return list, err
}

// Snapshot reads one page of the live reservations that the replica knows. after is
// Next of the page before, empty for the first page; limit is the maximum number of
// reservations on the page, at most 10,000; 0 stands for 1,000. ErrConflict: the service
// does not share reservations.
func (c *Client) Snapshot(ctx context.Context, after string, limit int) (Snapshot, error) {
	q := url.Values{}
	if after != "" {
		q.Set("after", after)
	}
	if limit != 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	path := "/replica_sync/snapshot"
	if len(q) > 0 {
		path += "?" + q.Encode()
	}
	var s Snapshot
	err := c.do(ctx, call{method: http.MethodGet, path: path, repeatable: true}, &s)
	return s, err
}

// Snapshot is one page of a replica's live reservations. Maps are by process id;
// docs/how-it-works/replica-sync.md explains the numbers.
type Snapshot struct {
	Process  uint64            `json:"process_id"`
	Sequence uint64            `json:"sequence"` // last event of the process that the page covers
	Renewals uint64            `json:"renewals"` // last renewal of a lease that the page covers
	Seen     map[uint64]uint64 `json:"seen"`     // number up to which events of other processes are known

	// On the first page only: numbers of reservations that must not be taken again, as
	// inclusive ranges.
	Assumed     map[uint64]uint64      `json:"assumed"`
	Ended       map[uint64][][2]uint64 `json:"ended"`
	LeasesEnded map[uint64][][2]uint64 `json:"leases_ended"`

	Reservations []SharedReservation `json:"bookings"`
	Next         string              `json:"next"` // after, for the next page; empty on the last one
}

// SharedReservation is a reservation in the form that replicas exchange.
type SharedReservation struct {
	OriginProcess  uint64  `json:"origin_process"`
	OriginSequence uint64  `json:"origin_sequence"`
	Model          string  `json:"model_name"`
	RoutingGroup   string  `json:"tenant_id"`
	BlockSize      uint32  `json:"block_size"` // tokens
	ID             string  `json:"request_id"`
	PerScope       bool    `json:"per_scope"` // the ID is one of the slot tracker
	Worker         uint64  `json:"worker_id"`
	DPRank         uint32  `json:"dp_rank"`
	AgeMS          uint64  `json:"age_ms"`
	LeaseMS        uint64  `json:"lease_ms"`   // 0: no lease
	RenewedMS      *uint64 `json:"renewed_ms"` // the age at the last renewal; nil: there was none
	PrefillTokens  uint64  `json:"prefill_tokens"`
	TrackPrefill   bool    `json:"track_prefill_tokens"`
	Prefilled      bool    `json:"prefill_completed"`

	ExpectedOutputTokens *uint32  `json:"expected_output_tokens"`
	SequenceHashes       []uint64 `json:"sequence_hashes"`
}
