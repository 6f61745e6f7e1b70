package selection

import (
	"github.com/select-service/select-service/internal/selection/approximate"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// retry is what an attempt has to do with other requests of the same id: it may be a retry of an
// earlier one, and a later one may be a retry of it.
type retry struct {
	*request
	id       string             // of the reservation
	record   *idempotencyRecord // of the reservation; nil: it needs none
	begun    bool               // begin has marked the id as in flight
	repeated bool               // the result is the answer of an earlier request
}

// possible reports whether the request may be a retry of an earlier one.
func (r *retry) possible() bool {
	return r.reserve && r.ReservationID != nil && r.IfExists == ReturnFirst
}

// find returns the reservation that the request repeats, nil if there is none. It reads the prompt
// to compare it. It is an error if the id is another request's.
func (r *retry) find(p *prompt) (*existingReservation, error) {
	first, err := r.api.idempotency.findExisting(&idRequest{
		id: *r.ReservationID, scope: r.Scope, rank: r.Pinned, filter: &r.filter, pair: r.pair != nil,
		prompt: func(snap *catalog.Snapshot) (promptIdentity, []uint64, error) {
			err := p.read(&r.Prompt, snap)
			return p.identity(&r.Prompt), p.sequence, err
		},
	})
	return first, asConflict(err, bookingFailed)
}

// answerOf returns the answer of the reservation that the request repeats.
func (r *retry) answerOf(first *existingReservation) (s Selection) {
	r.repeated = true
	if first.selection != nil {
		s = *first.selection
	} else {
		s = Selection{
			SelectionID: r.SelectionID, ReservationID: r.ReservationID, Scope: first.Scope, Rank: first.Rank,
			Endpoint: first.endpoint, Lease: first.Lease, PlacementOnly: true,
		}
	}
	s.Repeated = true
	return s
}

// begin marks the request's id as in flight until end, and fails if the id is in use.
// dynamo-kv-router 1.6.1 does that before it checks the rest of a request, 1.3.1 when it books.
// A retry is not refused, but while it waits others are.
func (r *retry) begin() error {
	if !r.reserve || r.ReservationID == nil || r.Dialect != contract.V16 {
		return nil
	}
	id, shared := *r.ReservationID, r.IfExists == ReturnFirst
	if !r.begun {
		if r.begun = r.api.idempotency.inFlight.begin(id, shared); !r.begun {
			return errIDInFlight(id)
		}
	}
	if exists := r.api.idempotency.conflict(id, r.Scope); exists != nil && !shared {
		return errIDExists(bookingFailed(exists), Refuse, exists)
	}
	return nil
}

// end undoes begin.
func (r *retry) end() {
	if r.begun {
		r.api.idempotency.inFlight.end(*r.ReservationID)
	}
}

// newRecord returns the idempotency record for the reservation, with the use that the request makes of its session and the
// lease of its blocks (nil: none); nil if it needs no record. followed: its engine time is charged, or something is promised.
func (r *retry) newRecord(s *session, lease *approximate.Lease, p *prompt, followed bool) *idempotencyRecord {
	r.record = nil
	claim, last := s.claim, s.last()
	switch answers := &r.api.idempotency.answers; {
	case r.ReservationID != nil:
		r.record = &idempotencyRecord{
			answers: answers, claim: claim, lease: lease, id: r.id, selected: true, last: last, prompt: p.identity(&r.Prompt),
		}
	case claim != nil || lease != nil || followed || last != nil: // the id was generated here, so no retry can have it
		r.record = &idempotencyRecord{answers: answers, claim: claim, lease: lease, id: r.id, last: last, state: recordEvicted}
	}
	return r.record
}

// bookedAs returns the id of the reservation that has the record.
func (r *retry) bookedAs() string {
	if r.pair != nil {
		return reservations.DecodeID(r.id)
	}
	return r.id
}

// cancel ends the reservation of a caller that has gone, unless a retry has got its answer: then
// it belongs to the retry.
func (r *retry) cancel() {
	switch a := r.api; {
	case r.record == nil || !r.record.selected: // the id is known to this call only
		a.Abandon(r.id)
		_ = a.Free(r.id) // ErrNotFound: its worker has left, and the reservation with it
	case !a.idempotency.answers.cancel(r.record):
	case r.record.prefill != nil:
		r.record.promise.Load().ended(false)
		_ = a.ledger.FreeWith(reservations.PrefillID(r.id), r.record.prefill)
		_ = a.ledger.FreeWith(reservations.DecodeID(r.id), r.record)
		a.scopes.LoadChanged()
	default:
		r.record.promise.Load().ended(false)
		if a.ledger.FreeWith(r.bookedAs(), r.record) == nil {
			a.scopes.LoadChanged()
		}
	}
}
