package httpapi

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/select-service/select-service/internal/jsonscan"
)

// peerSet is the set of replicas that bookings are shared with.
type peerSet interface {
	// Peers lists the endpoints, sorted.
	Peers() []string
	// RegisterPeer says whether the peer is new.
	RegisterPeer(endpoint string) (bool, error)
	DeregisterPeer(endpoint string) error
}

type peerRoutes struct{ svc peerSet }

func (r peerRoutes) list(_ *gin.Context, out []byte) (int, []byte, error) {
	return http.StatusOK, appendList(out, r.svc.Peers(), appendString), nil
}

func (r peerRoutes) register(_ *gin.Context, b *peerBody, out []byte) (int, []byte, error) {
	fresh, err := r.svc.RegisterPeer(b.endpoint)
	if fresh {
		return http.StatusCreated, appendOK(out), err
	}
	return http.StatusOK, appendOK(out), err
}

func (r peerRoutes) deregister(_ *gin.Context, b *peerBody, out []byte) (int, []byte, error) {
	return http.StatusOK, appendOK(out), r.svc.DeregisterPeer(b.endpoint)
}

type peerBody struct{ endpoint string }

var peerShape = jsonscan.NewObject(
	jsonscan.Field[peerBody]{Name: "endpoint", Required: true, Read: jsonscan.Set(
		func(b *peerBody) *string { return &b.endpoint }, (*jsonscan.Scanner).String)},
)
