package reservations

import (
	"cmp"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations/history"
)

// The calls below name a reservation by its id. Several live ones can have the
// same id: replicas that did not know of each other have booked them, or they are
// in several scopes with PerScope. A call over all scopes prefers
//
//  1. one whose id is not PerScope to one whose id is,
//  2. then one that this ledger accepted to one of another process,
//  3. then the one that this ledger has known longest.
//
// A call in one scope prefers the one that this ledger accepted; there is at most one.
// Then it prefers one whose id is PerScope, then the one known longest. All calls about
// a reservation that is booked and freed here thus mean the same one.

// PrefillComplete takes the reservation's prefill tokens off its rank, and renews
// its lease if it has one. Repeating it is not an error. ErrNotFound if no live
// reservation has the id.
func (l *Ledger) PrefillComplete(id string) error { return l.withEntry(id, nil, l.prefillReported) }

// PrefillInferred is PrefillComplete for a caller that infers the end of the prefill
// without a report of it. A PrefillObserver gets Untold.
func (l *Ledger) PrefillInferred(id string) error {
	return l.withEntry(id, nil, func(r *entry) {
		r.scope.observeInferred(r)
		l.prefillComplete(r, false)
	})
}

// PrefillCompleteIn is PrefillComplete among the reservations of one scope.
func (l *Ledger) PrefillCompleteIn(sc catalog.Scope, id string) error {
	return l.withEntryIn(sc, id, l.prefillReported)
}

// SetUncached replaces Placement.Uncached of a live reservation that has this caller state, while its prefill goes on: its rank
// has more to compute than was known when it was booked. then, if not nil, is called under the scope's lock; it must not block
// or call the ledger. SetUncached returns false, and does nothing, if there is no such reservation or its prefill has ended.
func (l *Ledger) SetUncached(id string, c CallerState, tokens uint64, then func()) (set bool) {
	err := l.withEntry(id, nil, func(r *entry) {
		if set = r.callerState == c && !r.prefillDone; !set {
			return
		}
		if q := r.scope.loads[r.slot].queue; q != nil {
			q.set(r.inRank, max(cmp.Or(tokens, r.tokens), 1), l.at())
		}
		if then != nil {
			then()
		}
	})
	return err == nil && set
}

// OutputBlock adds one generated block to the reservation. With a fraction, in [0, 1],
// every block that only this reservation holds on its rank, including the new one, has
// that weight until it is freed or another fraction is given. A lease is renewed.
// Errors are ErrFraction, and ErrNotFound if no live reservation has the id.
func (l *Ledger) OutputBlock(id string, fraction *float64) error {
	if fraction != nil && !(*fraction >= 0 && *fraction <= 1) { // NaN too
		return ErrFraction
	}
	return l.withEntry(id, nil, func(r *entry) {
		r.scope.observeOutput(r)
		r.scope.noteOutput(r)
		r.scope.addOutput(r, fraction)
		r.scope.renew(r)
	})
}

// Renew restarts the lease of a reservation. Errors are ErrNotFound if no live
// reservation has the id, and ErrNoLease if it has no lease.
func (l *Ledger) Renew(id string) error {
	var leased bool
	err := l.withEntry(id, nil, func(r *entry) {
		leased = r.lease != nil
		r.scope.renew(r)
	})
	if err == nil && !leased {
		return ErrNoLease
	}
	return err
}

// Free ends the reservation. ErrNotFound if no live reservation has the id.
func (l *Ledger) Free(id string) error { return l.FreeAfter(id, Answer{}) }

// FreeAfter is Free for a caller that knows something of the answer.
func (l *Ledger) FreeAfter(id string, of Answer) error {
	err := l.withEntry(id, nil, func(r *entry) { l.freeAfter(r, of) })
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

// prefillReported, prefillComplete and free need the lock of r's scope.
func (l *Ledger) prefillReported(r *entry) {
	r.scope.loads[r.slot].signs++
	l.prefillComplete(r, true)
}

func (l *Ledger) prefillComplete(r *entry, reported bool) {
	r.scope.observeCompletion(r)
	r.scope.endPrefill(r)
	if r.callerState != nil {
		r.callerState.PrefillEnded(reported)
	}
	l.obs.PrefillCompleted(r.event())
	r.scope.renew(r)
}

func (l *Ledger) free(r *entry) { l.freeAfter(r, Answer{}) }

func (l *Ledger) freeAfter(r *entry, of Answer) {
	r.scope.observeFree(r, of)
	r.scope.observeGenerated(r, of)
	if r.callerState != nil {
		r.callerState.ReservationFreed()
	}
	r.scope.end(r, history.Freed)
	l.counts.freed.Add(1)
	l.obs.Freed(r.event())
}

// notFreed counts a free for which there is no live reservation as late if one with
// that id has expired.
func (l *Ledger) notFreed(id history.ExpiredID) {
	if l.expiredIDs.Take(id, l.at()) {
		l.counts.late.Add(1)
	}
}

// withEntryIn is withEntry for the reservations of one scope.
func (l *Ledger) withEntryIn(sc catalog.Scope, id string, f func(*entry)) error {
	s := l.scope(sc)
	if s == nil {
		return ErrNotFound
	}
	return l.withEntry(id, s, f)
}

// withEntry runs f, under the scope's lock, on the live reservation that a call by id
// means. in, if not nil, is the only scope to look in. The error is ErrNotFound.
func (l *Ledger) withEntry(id string, in *scope, f func(*entry)) error {
	for {
		r := l.ids.find(id, in, l.process)
		if r == nil {
			return ErrNotFound
		}
		if r.ifLive(f) {
			return nil
		} // else it ended between the two steps, and another one may have the id
	}
}

// endIfOverdue ends r if its time is over, and reports whether r has ended.
func (e *entry) endIfOverdue() bool { return !e.ifLive(func(*entry) {}) }

// ifLive runs f on r under its scope's lock, unless r has ended or its time is over;
// in the latter case it ends r. It reports whether it ran f.
func (e *entry) ifLive(f func(*entry)) bool {
	s := e.scope
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := s.ledger.at(); !e.ended && e.deadline < at {
		s.expireOne(e, at)
	}
	if e.ended {
		return false
	}
	f(e)
	return true
}

// CallerState is what a caller attaches to a reservation of this ledger while it is live. Its methods
// are called under the scope's lock and must not block or call the ledger.
type CallerState interface {
	// PrefillEnded is called when the prefill has ended, perhaps more than once: a caller has reported it, here or
	// at another replica, or has inferred it here.
	PrefillEnded(reported bool)
	// ReservationFreed is called before ReservationEnded if a caller has freed the reservation, here or at another
	// replica.
	ReservationFreed()
	// ReservationEnded is called once, however the reservation ended: by a free, by
	// age, with its lease or with its rank. It is not called if Book fails.
	ReservationEnded()
}

// LiveReservation is a live reservation as Find shows it.
type LiveReservation struct {
	Origin      Origin
	Scope       catalog.Scope
	Rank        catalog.Rank
	PerScope    bool          // as in the Request
	Pair        bool          // a side of a pair: see Ledger.BookPair
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
		if h, ok = r.show(); ok {
			return h, true
		}
		r.endIfOverdue() // or it ended between the two steps
	}
}

// FreeWith is Free, but only if the reservation has this caller state: a later one with
// the same id stays. Otherwise, and if no live reservation has the id, the error is
// ErrNotFound.
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

// show returns r as Find shows it, or false if r has ended or its time is over.
func (e *entry) show() (LiveReservation, bool) {
	e.scope.mu.RLock()
	defer e.scope.mu.RUnlock()
	if e.ended || e.deadline < e.scope.ledger.at() {
		return LiveReservation{}, false
	}
	h := LiveReservation{
		Origin: e.origin, Scope: e.scope.name, Rank: e.rank, PerScope: e.perScope, Pair: e.pair, Hashes: e.scope.hashes(e),
		Remote: e.origin.Process != e.scope.ledger.process, CallerState: e.callerState,
	}
	if e.lease != nil {
		h.Lease = e.lease.length
	}
	return h, true
}
