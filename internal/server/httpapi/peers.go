package httpapi

import (
	"context"
	"io"
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"
	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/replicasync"
)

// peerSet is the set of replicas that share their reservations.
type peerSet interface {
	// Peers lists the endpoints, sorted.
	Peers() []string
	// RegisterPeer reports whether the peer is new.
	RegisterPeer(endpoint string) (bool, error)
	DeregisterPeer(endpoint string) error
}

// snapshotSource writes the live reservations for other replicas.
type snapshotSource interface {
	// WriteSnapshot writes one page as JSON.
	WriteSnapshot(ctx context.Context, w io.Writer, q replicasync.PageRequest) error
}

// replicaService has the use cases behind the routes for replicas.
type replicaService interface {
	peerSet
	snapshotSource
}

type peerRoutes struct{ svc peerSet }

func (r peerRoutes) list(_ request, out []byte) (int, []byte, error) {
	return http.StatusOK, appendList(out, r.svc.Peers(), appendString), nil
}

func (r peerRoutes) register(c request, b *peerBody, out []byte) (int, []byte, error) {
	c.about(*b)
	fresh, err := r.svc.RegisterPeer(b.endpoint)
	return registered(fresh), appendOK(out), err
}

// registered returns the status for an accepted peer.
func registered(fresh bool) int {
	if fresh {
		return http.StatusCreated
	}
	return http.StatusOK
}

func (r peerRoutes) deregister(c request, b *peerBody, out []byte) (int, []byte, error) {
	c.about(*b)
	return http.StatusOK, appendOK(out), r.svc.DeregisterPeer(b.endpoint)
}

type peerBody struct{ endpoint string }

func (b peerBody) describe(e *zerolog.Event) { e.Str("endpoint", catalog.Clip(b.endpoint)) }

var peerShape = newPeerShape("endpoint")

// newPeerShape is the body of a peer under one of the contracts' names for it.
func newPeerShape(member string) *bodyscan.Object[peerBody] {
	return bodyscan.NewObject(required(member, func(b *peerBody) *string { return &b.endpoint }, readText))
}

type snapshotRoutes struct {
	svc snapshotSource
	api api
}

func (r snapshotRoutes) page(c *gin.Context) {
	q, err := snapshotQuery(c.Request)
	if err != nil {
		r.api.fail(c, nil, err)
		return
	}
	r.api.stream(c, r.api.snapshots, bodyscan.JSON, func(ctx context.Context, w io.Writer) error {
		return r.svc.WriteSnapshot(ctx, w, q)
	})
}

func snapshotQuery(r *http.Request) (q replicasync.PageRequest, err error) {
	var cursor, bound, shared *string
	err = readQuery(r, func(key string) **string {
		switch key {
		case "after":
			return &cursor
		case "limit":
			return &bound
		case "shared":
			return &shared
		}
		return nil
	})
	if err != nil {
		return q, err
	}
	if cursor != nil {
		q.After = *cursor
	}
	if bound != nil {
		if q.Limit, err = strconv.Atoi(*bound); err != nil || q.Limit < 1 || q.Limit > replicasync.MaxPage {
			return q, errSnapshotLimit
		}
	}
	if shared != nil {
		if q.Shared = *shared == "true"; !q.Shared && *shared != "false" {
			return q, errSnapshotShared
		}
	}
	return q, nil
}

var errSnapshotShared = badRequest(queryPrefix + "shared: expected true or false")

var errSnapshotLimit = badRequest(queryPrefix + "limit: expected an integer from 1 to " + strconv.Itoa(replicasync.MaxPage))

// addReplicaRoutes registers the routes that replicas call.
func addReplicaRoutes(r router, svc replicaService) {
	a, peers := r.api, peerRoutes{svc}
	r.get(access.Read, "/replica_sync/peers", a.serve(peers.list))
	r.post(access.Operate, "/replica_sync/register_peer", withBody(a, newBody(peerShape, nil, nil), peers.register))
	r.post(access.Operate, "/replica_sync/deregister_peer", withBody(a, newBody(peerShape, nil, nil), peers.deregister))
	r.get(access.Peer, replicasync.SnapshotPath, plain(snapshotRoutes{svc, a}.page))
}
