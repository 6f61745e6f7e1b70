package reservations

import (
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// CallerState is what a caller keeps beside a reservation of this ledger while it
// lives here.
type CallerState interface {
	// ReservationEnded is called once, however the reservation ended: by a free, by age, with
	// its lease or with its rank. It is called under the scope's lock and must not
	// block or call the ledger. A booking that was refused has no end.
	ReservationEnded()
}

// LiveReservation is a live reservation as Find shows it.
type LiveReservation struct {
	Origin      Origin
	Scope       catalog.Scope
	Rank        catalog.Rank
	PerScope    bool          // as in the Request
	Hashes      []uint64      // the distinct prompt blocks; read only
	Remote      bool          // accepted by another process
	Lease       time.Duration // 0: none
	CallerState CallerState   // of the Request
}

// Find returns the live reservation that a call by this id over all scopes means.
func (l *Ledger) Find(id string) (h LiveReservation, ok bool) {
	for {
		r := l.ids.find(id, nil, l.process)
		if r == nil {
			return LiveReservation{}, false
		}
		if h, ok = r.holding(); ok {
			return h, true
		}
		r.isLive() // no: it ended between the two steps, or its time is over
	}
}

// FreeWith is Free for the reservation with this companion only: whoever has the
// id after it keeps it. ErrNotFound if the id is another reservation's or nobody's.
func (l *Ledger) FreeWith(id string, c CallerState) error {
	freed := false
	err := l.withEntry(id, nil, func(r *entry) {
		if freed = r.callerState == c; freed {
			l.free(r)
		}
	})
	if err == nil && !freed {
		return ErrNotFound
	}
	return err
}

// holding returns false if r has ended or ought to have.
func (r *entry) holding() (LiveReservation, bool) {
	r.scope.mu.RLock()
	defer r.scope.mu.RUnlock()
	if r.ended || r.deadline < r.scope.ledger.at() {
		return LiveReservation{}, false
	}
	h := LiveReservation{
		Origin: r.origin, Scope: r.scope.name, Rank: r.rank, PerScope: r.perScope, Hashes: r.hashes,
		Remote: r.origin.Process != r.scope.ledger.process, CallerState: r.callerState,
	}
	if r.lease != nil {
		h.Lease = r.lease.length
	}
	return h, true
}
