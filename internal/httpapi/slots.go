package httpapi

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/select-service/select-service/internal/service"
	"github.com/select-service/select-service/pkg/catalog"
)

// maxSlotsBody is the longest request body of the slot tracker in bytes,
// inclusive: axum's default limit, which the tracker of 1.3.1 does not change.
const maxSlotsBody = 2 << 20

// slotTracker is the slot tracker's share of the service; nil filters take all
// names.
type slotTracker interface {
	SlotsRegister(w service.SlotsWorker) error
	SlotsUnregister(scope catalog.Scope, worker uint64) error
	// SlotsWorkers lists by model, tenant and id.
	SlotsWorkers(model, tenant *string) []service.SlotsWorker
	// SlotsAdd keeps the hashes of the request.
	SlotsAdd(req *service.SlotsBooking) error
	SlotsPrefillComplete(scope catalog.Scope, id string) error
	SlotsFree(scope catalog.Scope, id string) error
	// SlotsLoads lists by model, tenant, worker and rank.
	SlotsLoads(model, tenant *string) []service.SlotsLoad
	// SlotsPotentialLoads borrows the hashes of the request.
	SlotsPotentialLoads(req *service.SlotsProjection) ([]service.RankLoad, error)
	// SlotsRegisterPeer is RegisterPeer, but this replica itself is refused.
	SlotsRegisterPeer(endpoint string) (bool, error)
}

type slotsRoutes struct {
	svc SlotsService
	d   dialect
}

// addTo registers the routes, all of them relative to r.
func (s slotsRoutes) addTo(r gin.IRoutes, a api) {
	r.POST("/register", withBody(a, newSlotsBody(newSlotsRegisterShape(a.dialect), resetSlotsWorker, nil), s.register))
	r.POST("/unregister", withBody(a, newSlotsBody(newSlotsUnregisterShape(a.dialect), resetSlotsWorker, nil), s.unregister))
	get(r, "/workers", a.serve(s.workers))
	r.POST("/add", withBody(a, newSlotsBody(newSlotsAddShape(a.dialect), resetSlotsBooking, nil), s.add))
	r.POST("/prefill_complete", withBody(a, newSlotsBody(newSlotsRequestShape(a.dialect), resetSlotsRequest, nil), s.prefillComplete))
	r.POST("/free", withBody(a, newSlotsBody(newSlotsRequestShape(a.dialect), resetSlotsRequest, nil), s.free))
	get(r, "/loads", a.serve(s.loads))
	r.POST("/potential_loads", withBody(a, newSlotsBody(newSlotsProjectShape(a.dialect), resetSlotsProjection, slotsProjectionSize), s.potentialLoads))
	get(r, "/health", slotsHealth)

	peers := peerRoutes{s.svc}
	get(r, "/peers", a.serve(peers.list))
	r.POST("/register_peer", withBody(a, newSlotsBody(slotsPeerShape, nil, nil), s.registerPeer))
	r.POST("/deregister_peer", withBody(a, newSlotsBody(slotsPeerShape, nil, nil), peers.deregister))
}

// slotsHealth says that the process lives, by its status alone.
func slotsHealth(c *gin.Context) {
	c.Status(http.StatusOK)
	c.Writer.WriteHeaderNow()
}

func (s slotsRoutes) register(_ *gin.Context, w *service.SlotsWorker, out []byte) (int, []byte, error) {
	return http.StatusCreated, appendOK(out), s.svc.SlotsRegister(*w)
}

func (s slotsRoutes) unregister(_ *gin.Context, w *service.SlotsWorker, out []byte) (int, []byte, error) {
	return http.StatusOK, appendOK(out), s.svc.SlotsUnregister(w.Scope, w.Worker)
}

func (s slotsRoutes) workers(c *gin.Context, out []byte) (int, []byte, error) {
	f, err := filterOf(c.Request)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, appendList(out, s.svc.SlotsWorkers(f.model, f.tenant), s.d.appendSlotsWorker), nil
}

func (s slotsRoutes) add(_ *gin.Context, b *service.SlotsBooking, out []byte) (int, []byte, error) {
	return http.StatusCreated, appendOK(out), s.svc.SlotsAdd(b)
}

func (s slotsRoutes) prefillComplete(_ *gin.Context, r *slotsRequest, out []byte) (int, []byte, error) {
	return http.StatusOK, appendOK(out), s.svc.SlotsPrefillComplete(r.scope, r.id)
}

func (s slotsRoutes) free(_ *gin.Context, r *slotsRequest, out []byte) (int, []byte, error) {
	return http.StatusOK, appendOK(out), s.svc.SlotsFree(r.scope, r.id)
}

func (s slotsRoutes) loads(c *gin.Context, out []byte) (int, []byte, error) {
	f, err := filterOf(c.Request)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, appendList(out, s.svc.SlotsLoads(f.model, f.tenant), s.d.appendSlotsLoad), nil
}

func (s slotsRoutes) potentialLoads(_ *gin.Context, p *service.SlotsProjection, out []byte) (int, []byte, error) {
	loads, err := s.svc.SlotsPotentialLoads(p)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, appendList(out, loads, appendRankLoad), nil
}

func (s slotsRoutes) registerPeer(_ *gin.Context, b *peerBody, out []byte) (int, []byte, error) {
	fresh, err := s.svc.SlotsRegisterPeer(b.endpoint)
	return registered(fresh), appendOK(out), err
}

func (d dialect) appendSlotsWorker(out []byte, w service.SlotsWorker) []byte {
	out = append(out, '{')
	out = appendUintField(out, "worker_id", w.Worker)
	out = d.appendScope(out, w.Scope)
	out = appendUintField(out, "block_size", w.BlockSize)
	out = appendUintField(out, "dp_start", w.DPStart)
	out = appendUintField(out, "dp_size", w.DPSize)
	return append(out, '}')
}

func (d dialect) appendSlotsLoad(out []byte, l service.SlotsLoad) []byte {
	out = append(out, '{')
	out = d.appendScope(out, l.Scope)
	out = appendUintField(out, "worker_id", l.Load.Rank.Worker)
	out = appendUintField(out, "dp_rank", l.Load.Rank.DP)
	out = appendUintField(out, "active_prefill_tokens", l.Load.PrefillTokens)
	out = appendUintField(out, "active_decode_blocks", l.Load.DecodeBlocks)
	return append(out, '}')
}
