package httpapi

import (
	"github.com/select-service/select-service/internal/jsonscan"
	"github.com/select-service/select-service/internal/service"
	"github.com/select-service/select-service/pkg/catalog"
)

// The shapes list their members in the order of the slot tracker's structs: of
// several that are missing, the error names the first.

// newSlotsBody is newBody with the slot tracker's limit.
func newSlotsBody[T any](shape *jsonscan.Object[T], reset func(*T), size func(*T) int) *body[T] {
	b := newBody(shape, reset, size)
	b.limit = maxSlotsBody
	return b
}

// slotsScope is the scope of a body that does not name a tenant.
var slotsScope = catalog.Scope{Tenant: catalog.DefaultName}

func slotsModel[T any](scope func(*T) *catalog.Scope) jsonscan.Field[T] {
	return jsonscan.Field[T]{Name: "model_name", Required: true, Read: jsonscan.Set(
		func(t *T) *string { return &scope(t).Model }, (*jsonscan.Scanner).String)}
}

func slotsWorkerScope(w *service.SlotsWorker) *catalog.Scope { return &w.Scope }

func resetSlotsWorker(w *service.SlotsWorker) { *w = service.SlotsWorker{Scope: slotsScope} }

var slotsWorkerID = jsonscan.Field[service.SlotsWorker]{Name: "worker_id", Required: true, Read: jsonscan.Set(
	func(w *service.SlotsWorker) *uint64 { return &w.Worker }, (*jsonscan.Scanner).Uint64)}

func slotsWorkerUint32(name string, field func(*service.SlotsWorker) *uint32) jsonscan.Field[service.SlotsWorker] {
	return jsonscan.Field[service.SlotsWorker]{Name: name, Required: true, Read: jsonscan.Set(field, (*jsonscan.Scanner).Uint32)}
}

func newSlotsRegisterShape(d dialect) *jsonscan.Object[service.SlotsWorker] {
	return jsonscan.NewObject(
		slotsWorkerID,
		slotsModel(slotsWorkerScope),
		groupField(d, slotsWorkerScope),
		slotsWorkerUint32("block_size", func(w *service.SlotsWorker) *uint32 { return &w.BlockSize }),
		slotsWorkerUint32("dp_start", func(w *service.SlotsWorker) *uint32 { return &w.DPStart }),
		slotsWorkerUint32("dp_size", func(w *service.SlotsWorker) *uint32 { return &w.DPSize }),
	)
}

func newSlotsUnregisterShape(d dialect) *jsonscan.Object[service.SlotsWorker] {
	return jsonscan.NewObject(slotsWorkerID, slotsModel(slotsWorkerScope), groupField(d, slotsWorkerScope))
}

func slotsBookingScope(b *service.SlotsBooking) *catalog.Scope { return &b.Scope }

// resetSlotsBooking gives the hashes up: the service has kept them.
func resetSlotsBooking(b *service.SlotsBooking) { *b = service.SlotsBooking{Scope: slotsScope} }

func newSlotsAddShape(d dialect) *jsonscan.Object[service.SlotsBooking] {
	return jsonscan.NewObject(
		slotsModel(slotsBookingScope),
		groupField(d, slotsBookingScope),
		jsonscan.Field[service.SlotsBooking]{Name: "request_id", Required: true, Read: jsonscan.Set(
			func(b *service.SlotsBooking) *string { return &b.ID }, (*jsonscan.Scanner).String)},
		jsonscan.Field[service.SlotsBooking]{Name: "worker_id", Required: true, Read: jsonscan.Set(
			func(b *service.SlotsBooking) *uint64 { return &b.Rank.Worker }, (*jsonscan.Scanner).Uint64)},
		jsonscan.Field[service.SlotsBooking]{Name: "dp_rank", Required: true, Read: jsonscan.Set(
			func(b *service.SlotsBooking) *uint32 { return &b.Rank.DP }, (*jsonscan.Scanner).Uint32)},
		jsonscan.Field[service.SlotsBooking]{Name: "sequence_hashes", Required: true, Read: func(s *jsonscan.Scanner, b *service.SlotsBooking) {
			b.SequenceHashes = s.AppendHash64s(b.SequenceHashes)
		}},
		jsonscan.Field[service.SlotsBooking]{Name: "new_isl_tokens", Read: jsonscan.Set(
			func(b *service.SlotsBooking) *uint64 { return &b.NewISLTokens }, (*jsonscan.Scanner).Uint64)},
	)
}

// slotsRequest names a booking.
type slotsRequest struct {
	scope catalog.Scope
	id    string
}

func slotsRequestScope(r *slotsRequest) *catalog.Scope { return &r.scope }

func resetSlotsRequest(r *slotsRequest) { *r = slotsRequest{scope: slotsScope} }

func newSlotsRequestShape(d dialect) *jsonscan.Object[slotsRequest] {
	return jsonscan.NewObject(
		slotsModel(slotsRequestScope),
		groupField(d, slotsRequestScope),
		jsonscan.Field[slotsRequest]{Name: "request_id", Required: true, Read: jsonscan.Set(
			func(r *slotsRequest) *string { return &r.id }, (*jsonscan.Scanner).String)},
	)
}

func slotsProjectionScope(p *service.SlotsProjection) *catalog.Scope { return &p.Scope }

func resetSlotsProjection(p *service.SlotsProjection) {
	*p = service.SlotsProjection{Scope: slotsScope, SequenceHashes: p.SequenceHashes[:0]}
}

func slotsProjectionSize(p *service.SlotsProjection) int { return 8 * cap(p.SequenceHashes) }

func newSlotsProjectShape(d dialect) *jsonscan.Object[service.SlotsProjection] {
	return jsonscan.NewObject(
		slotsModel(slotsProjectionScope),
		groupField(d, slotsProjectionScope),
		jsonscan.Field[service.SlotsProjection]{Name: "sequence_hashes", Required: true, Read: func(s *jsonscan.Scanner, p *service.SlotsProjection) {
			p.SequenceHashes = s.AppendHash64s(p.SequenceHashes)
		}},
		jsonscan.Field[service.SlotsProjection]{Name: "new_isl_tokens", Read: jsonscan.Set(
			func(p *service.SlotsProjection) *uint64 { return &p.NewISLTokens }, (*jsonscan.Scanner).Uint64)},
	)
}

// slotsPeerShape is peerShape under the slot tracker's name of the member.
var slotsPeerShape = newPeerShape("url")
