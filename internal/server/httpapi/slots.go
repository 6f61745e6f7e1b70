package httpapi

import (
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/pkg/catalog"
)

// maxSlotsBody is the longest request body of the slot tracker in bytes,
// inclusive: axum's default limit, which the tracker of 1.3.1 does not change.
const maxSlotsBody = 2 << 20

// slotTracker has the use cases of the slot tracker; nil filters match all names.
type slotTracker interface {
	SlotsRegister(w node.SlotsWorker) error
	SlotsUnregister(scope catalog.Scope, worker uint64) error
	// SlotsWorkers lists the workers by model, tenant and id.
	SlotsWorkers(model, tenant *string) []node.SlotsWorker
	// SlotsAdd books a request. It keeps the request's hashes.
	SlotsAdd(req *node.SlotsReservation) error
	SlotsPrefillComplete(scope catalog.Scope, id string) error
	SlotsFree(scope catalog.Scope, id string) error
	// SlotsLoads lists the loads by model, tenant, worker and rank.
	SlotsLoads(model, tenant *string) []node.SlotsLoad
	// SlotsPotentialLoads borrows the hashes of the request.
	SlotsPotentialLoads(req *node.SlotsProjection) ([]selection.RankLoad, error)
	// SlotsRegisterPeer is RegisterPeer that refuses this replica itself.
	SlotsRegisterPeer(endpoint string) (bool, error)
}

type slotsRoutes struct {
	svc SlotsService
	d   dialect
}

// addTo registers the routes, all of them relative to r.
func (s slotsRoutes) addTo(r router) {
	a := r.api
	d := a.dialect
	r.post(access.Operate, "/register", withBody(a, newSlotsBody(newSlotsRegisterShape(d), resetSlotsWorker, nil, slotsWorkerScope), s.register))
	r.post(access.Operate, "/unregister", withBody(a, newSlotsBody(newSlotsUnregisterShape(d), resetSlotsWorker, nil, slotsWorkerScope), s.unregister))
	r.get(access.Read, "/workers", a.listing(s.workers))
	r.post(access.Call, "/add", withBody(a, newSlotsBody(newSlotsAddShape(d), resetSlotsBooking, nil, slotsReservationScope), s.add))
	r.post(access.Call, "/prefill_complete", withBody(a, newSlotsBody(newSlotsRequestShape(d), resetSlotsRequest, nil, slotsRequestScope), s.prefillComplete))
	r.post(access.Call, "/free", withBody(a, newSlotsBody(newSlotsRequestShape(d), resetSlotsRequest, nil, slotsRequestScope), s.free))
	r.get(access.Read, "/loads", a.listing(s.loads))
	r.post(access.Read, "/potential_loads",
		withBody(a, newSlotsBody(newSlotsProjectShape(d), resetSlotsProjection, slotsProjectionSize, slotsProjectionScope).perRank(), s.potentialLoads))
	r.get(access.Public, "/health", plain(slotsHealth))

	peers := peerRoutes{s.svc}
	r.get(access.Read, "/peers", a.serve(peers.list))
	r.post(access.Operate, "/register_peer", withBody(a, newSlotsBody(slotsPeerShape, nil, nil, nil), s.registerPeer))
	r.post(access.Operate, "/deregister_peer", withBody(a, newSlotsBody(slotsPeerShape, nil, nil, nil), peers.deregister))
}

// slotsHealth answers with a status and no body.
func slotsHealth(c *gin.Context) {
	c.Status(http.StatusOK)
	c.Writer.WriteHeaderNow()
}

func (s slotsRoutes) register(c request, w *node.SlotsWorker, out []byte) (int, []byte, error) {
	c.about(slotsWorker(*w))
	return http.StatusCreated, appendOK(out), s.svc.SlotsRegister(*w)
}

func (s slotsRoutes) unregister(c request, w *node.SlotsWorker, out []byte) (int, []byte, error) {
	c.about(slotsWorker(*w))
	return http.StatusOK, appendOK(out), s.svc.SlotsUnregister(w.Scope, w.Worker)
}

func (s slotsRoutes) workers(f catalog.ScopeFilter, out []byte) []byte {
	return appendList(out, s.svc.SlotsWorkers(f.Model, f.Tenant), s.d.appendSlotsWorker)
}

func (s slotsRoutes) add(_ request, b *node.SlotsReservation, out []byte) (int, []byte, error) {
	return http.StatusCreated, appendOK(out), s.svc.SlotsAdd(b)
}

func (s slotsRoutes) prefillComplete(_ request, r *slotsRequest, out []byte) (int, []byte, error) {
	return http.StatusOK, appendOK(out), s.svc.SlotsPrefillComplete(r.scope, r.id)
}

func (s slotsRoutes) free(_ request, r *slotsRequest, out []byte) (int, []byte, error) {
	return http.StatusOK, appendOK(out), s.svc.SlotsFree(r.scope, r.id)
}

func (s slotsRoutes) loads(f catalog.ScopeFilter, out []byte) []byte {
	return appendList(out, s.svc.SlotsLoads(f.Model, f.Tenant), s.d.appendSlotsLoad)
}

func (s slotsRoutes) potentialLoads(_ request, p *node.SlotsProjection, out []byte) (int, []byte, error) {
	loads, err := s.svc.SlotsPotentialLoads(p)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, appendList(out, loads, appendRankLoad), nil
}

func (s slotsRoutes) registerPeer(c request, b *peerBody, out []byte) (int, []byte, error) {
	c.about(*b)
	fresh, err := s.svc.SlotsRegisterPeer(b.endpoint)
	return registered(fresh), appendOK(out), err
}

func (d dialect) appendSlotsWorker(out []byte, w node.SlotsWorker) []byte {
	out = append(out, '{')
	out = appendUintField(out, "worker_id", w.Worker)
	out = d.appendScope(out, w.Scope)
	out = appendUintField(out, "block_size", w.BlockSize)
	out = appendUintField(out, "dp_start", w.DPStart)
	out = appendUintField(out, "dp_size", w.DPSize)
	return append(out, '}')
}

func (d dialect) appendSlotsLoad(out []byte, l node.SlotsLoad) []byte {
	out = append(out, '{')
	out = d.appendScope(out, l.Scope)
	out = appendRank(out, l.Load.Rank)
	out = appendUintField(out, "active_prefill_tokens", l.Load.PrefillTokens)
	out = appendUintField(out, "active_decode_blocks", l.Load.DecodeBlocks)
	return append(out, '}')
}

// The shapes list their members in the order of the slot tracker's structs: if several are
// missing, the error names the first.

// newSlotsBody is newBody with the slot tracker's limit. scope returns the scope that the body
// names; nil: it names none.
func newSlotsBody[T any](shape *bodyscan.Object[T], reset func(*T), size func(*T) int, scope func(*T) *catalog.Scope) *body[T] {
	b := newBody(shape, reset, size)
	b.limit = maxSlotsBody
	if scope != nil {
		b.within = inScope(scope)
	}
	return b
}

// slotsWorker is a worker of the slot tracker in an audit line.
type slotsWorker node.SlotsWorker

func (w slotsWorker) describe(e *zerolog.Event) { describeWorker(e, w.Worker, w.Scope, nil) }

// slotsScope is the scope of a body that does not name a tenant.
var slotsScope = catalog.Scope{Tenant: catalog.DefaultName}

func slotsModel[T any](scope func(*T) *catalog.Scope) bodyscan.Field[T] {
	return required("model_name", func(t *T) *string { return &scope(t).Model }, readText)
}

func slotsWorkerScope(w *node.SlotsWorker) *catalog.Scope { return &w.Scope }

func resetSlotsWorker(w *node.SlotsWorker) { *w = node.SlotsWorker{Scope: slotsScope} }

var slotsWorkerID = required("worker_id", func(w *node.SlotsWorker) *uint64 { return &w.Worker }, (*bodyscan.Scanner).Uint64)

func newSlotsRegisterShape(d dialect) *bodyscan.Object[node.SlotsWorker] {
	return bodyscan.NewObject(
		slotsWorkerID,
		slotsModel(slotsWorkerScope),
		tenantField(d, slotsWorkerScope),
		required("block_size", func(w *node.SlotsWorker) *uint32 { return &w.BlockSize }, (*bodyscan.Scanner).Uint32),
		required("dp_start", func(w *node.SlotsWorker) *uint32 { return &w.DPStart }, (*bodyscan.Scanner).Uint32),
		required("dp_size", func(w *node.SlotsWorker) *uint32 { return &w.DPSize }, (*bodyscan.Scanner).Uint32),
	)
}

func newSlotsUnregisterShape(d dialect) *bodyscan.Object[node.SlotsWorker] {
	return bodyscan.NewObject(slotsWorkerID, slotsModel(slotsWorkerScope), tenantField(d, slotsWorkerScope))
}

func slotsReservationScope(b *node.SlotsReservation) *catalog.Scope { return &b.Scope }

// resetSlotsBooking does not reuse the hashes: the service keeps them.
func resetSlotsBooking(b *node.SlotsReservation) { *b = node.SlotsReservation{Scope: slotsScope} }

func newSlotsAddShape(d dialect) *bodyscan.Object[node.SlotsReservation] {
	return bodyscan.NewObject(
		slotsModel(slotsReservationScope),
		tenantField(d, slotsReservationScope),
		required("request_id", func(b *node.SlotsReservation) *string { return &b.ID }, readText),
		required("worker_id", func(b *node.SlotsReservation) *uint64 { return &b.Rank.Worker }, (*bodyscan.Scanner).Uint64),
		required("dp_rank", func(b *node.SlotsReservation) *uint32 { return &b.Rank.DP }, (*bodyscan.Scanner).Uint32),
		bodyscan.Field[node.SlotsReservation]{Name: "sequence_hashes", Required: true, Read: func(s *bodyscan.Scanner, b *node.SlotsReservation) {
			b.SequenceHashes = s.AppendHash64s(b.SequenceHashes)
		}},
		bodyscan.Field[node.SlotsReservation]{Name: "new_isl_tokens", Read: bodyscan.Set(
			func(b *node.SlotsReservation) *uint64 { return &b.NewISLTokens }, (*bodyscan.Scanner).Uint64)},
	)
}

// slotsRequest names a reservation.
type slotsRequest struct {
	scope catalog.Scope
	id    string
}

func slotsRequestScope(r *slotsRequest) *catalog.Scope { return &r.scope }

func resetSlotsRequest(r *slotsRequest) { *r = slotsRequest{scope: slotsScope} }

func newSlotsRequestShape(d dialect) *bodyscan.Object[slotsRequest] {
	return bodyscan.NewObject(
		slotsModel(slotsRequestScope),
		tenantField(d, slotsRequestScope),
		required("request_id", func(r *slotsRequest) *string { return &r.id }, readText),
	)
}

func slotsProjectionScope(p *node.SlotsProjection) *catalog.Scope { return &p.Scope }

func resetSlotsProjection(p *node.SlotsProjection) {
	*p = node.SlotsProjection{Scope: slotsScope, SequenceHashes: p.SequenceHashes[:0]}
}

func slotsProjectionSize(p *node.SlotsProjection) int { return 8 * cap(p.SequenceHashes) }

func newSlotsProjectShape(d dialect) *bodyscan.Object[node.SlotsProjection] {
	return bodyscan.NewObject(
		slotsModel(slotsProjectionScope),
		tenantField(d, slotsProjectionScope),
		bodyscan.Field[node.SlotsProjection]{Name: "sequence_hashes", Required: true, Read: func(s *bodyscan.Scanner, p *node.SlotsProjection) {
			p.SequenceHashes = s.AppendHash64s(p.SequenceHashes)
		}},
		bodyscan.Field[node.SlotsProjection]{Name: "new_isl_tokens", Read: bodyscan.Set(
			func(p *node.SlotsProjection) *uint64 { return &p.NewISLTokens }, (*bodyscan.Scanner).Uint64)},
	)
}

// slotsPeerShape is peerShape under the slot tracker's name of the member.
var slotsPeerShape = newPeerShape("url")
