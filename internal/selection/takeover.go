package selection

import (
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/reservations"
)

// IsReserved reports whether a reservation has the id, or a pair.
func (a *API) IsReserved(id string) bool {
	_, live := a.ledger.Find(id)
	return live || a.ledger.Sides(id) != reservations.Sides{}
}

// TakeOver books what Select or SelectPair has booked under an id, at any replica, again under a new id and with
// another lease, and ends what was under the old one. One caller succeeds with it; to the others, and where nothing is booked
// any more, the error is of kind NotFound. What of the answer Rebook needs is set.
func (a *API) TakeOver(id string, lease time.Duration) (pair Pair, err error) {
	pair.ID = uuid.NewString()
	answer, prefill, err := a.ledger.TakeOver(id, pair.ID, lease)
	if limit, full := errors.AsType[*reservations.LimitError](err); full {
		return Pair{}, contract.LedgerLimit(limit)
	}
	if err != nil {
		return Pair{}, reservationError(id, err)
	}
	a.recordOf(pair.ID).begun()
	pair.Decode = a.selectionOf(answer, lease)
	if prefill != nil {
		pair.Prefill = new(a.selectionOf(prefill, lease))
	}
	return pair, nil
}

// begun notes that the request has come for which the reservation of r was made ahead. r may be nil: the reservation was made
// elsewhere.
func (r *idempotencyRecord) begun() {
	if r != nil {
		r.promise.Load().begun()
		r.charge.arrived()
	}
}

func (a *API) selectionOf(t *reservations.Taken, lease time.Duration) Selection {
	s := Selection{
		ReservationID: &t.ID, Scope: t.Scope, Rank: t.Rank, Registration: t.Registration, Lease: lease, SequenceHashes: t.Hashes,
		EffectivePrefillTokens: t.PrefillTokens, ISLTokens: t.PrefillTokens, TrackPrefill: t.TrackPrefill,
	}
	if snap := a.catalog.Snapshot(t.Scope); snap != nil {
		s.BlockSize = snap.BlockSize
	}
	return s
}
