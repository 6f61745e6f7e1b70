package reservations

import (
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations/history"
)

// The calls below name a reservation by its id. Several live ones can have the
// same: booked by replicas that did not know of each other, or in several scopes
// with PerScope. A call over all scopes means one whose id is not PerScope before
// one whose id is, then one that this ledger accepted before one of another
// process, then the one it has known longest. A call in one scope means one that
// this ledger accepted, of which there is one at most, then one whose id is
// PerScope, then the one it has known longest. All calls of a life that is booked
// and ended here thus mean the same reservation.

// PrefillComplete takes the reservation's prefill tokens off its rank, and renews
// its lease if it has one. Doing it again is no error. ErrNotFound if no live
// reservation has the id.
func (l *Ledger) PrefillComplete(id string) error { return l.withEntry(id, nil, l.prefillComplete) }

// PrefillCompleteIn is PrefillComplete among the reservations of one scope.
func (l *Ledger) PrefillCompleteIn(sc catalog.Scope, id string) error {
	return l.withEntryIn(sc, id, l.prefillComplete)
}

// OutputBlock adds one generated block to the reservation. With a fraction,
// every block that this reservation alone holds on its rank, the new one
// included, weighs that fraction from now on, until it is freed or the fraction
// is overwritten. A lease is renewed. ErrFraction, or ErrNotFound if no live
// reservation has the id.
func (l *Ledger) OutputBlock(id string, fraction *float64) error {
	if fraction != nil && !(*fraction >= 0 && *fraction <= 1) { // NaN too
		return ErrFraction
	}
	return l.withEntry(id, nil, func(r *entry) {
		r.scope.addOutput(r, fraction)
		r.scope.renew(r)
	})
}

// Free ends the reservation. ErrNotFound if no live reservation has the id.
func (l *Ledger) Free(id string) error {
	err := l.withEntry(id, nil, l.free)
	if err != nil {
		l.notFreed(history.ExpiredID{ID: id})
	}
	return err
}

// FreeIn is Free among the reservations of one scope.
func (l *Ledger) FreeIn(sc catalog.Scope, id string) error {
	err := l.withEntryIn(sc, id, l.free)
	if err != nil {
		l.notFreed(history.ExpiredID{Scope: sc, PerScope: true, ID: id})
	}
	return err
}

// prefillComplete needs the lock of r's scope, and so does free.
func (l *Ledger) prefillComplete(r *entry) {
	r.scope.endPrefill(r)
	l.obs.PrefillCompleted(r.event())
	r.scope.renew(r)
}

func (l *Ledger) free(r *entry) {
	r.scope.end(r, history.Freed)
	l.freed.Add(1)
	l.obs.Freed(r.event())
}

// notFreed counts a free that met no live reservation as late if one of that id
// has expired.
func (l *Ledger) notFreed(id history.ExpiredID) {
	if l.expiredIDs.Take(id, l.at()) {
		l.late.Add(1)
	}
}

// withEntryIn is with for the reservations of one scope.
func (l *Ledger) withEntryIn(sc catalog.Scope, id string, f func(*entry)) error {
	s := l.scope(sc)
	if s == nil {
		return ErrNotFound
	}
	return l.withEntry(id, s, f)
}

// withEntry runs f on the live reservation that a call by id means, under its scope's
// lock. in, if not nil, is where to look.
func (l *Ledger) withEntry(id string, in *scope, f func(*entry)) error {
	for {
		r := l.ids.find(id, in, l.process)
		if r == nil {
			return ErrNotFound
		}
		if r.ifLive(f) {
			return nil
		} // else it ended between the two steps: another one may have the id
	}
}

// isLive tells whether r has not ended. One whose time is over ends here.
func (r *entry) isLive() bool { return r.ifLive(func(*entry) {}) }

// ifLive runs f on r under its scope's lock, unless r has ended. One whose time is
// over ends here at the latest.
func (r *entry) ifLive(f func(*entry)) bool {
	s := r.scope
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := s.ledger.at(); !r.ended && r.deadline < at {
		s.expireOne(r, at)
	}
	if r.ended {
		return false
	}
	f(r)
	return true
}
