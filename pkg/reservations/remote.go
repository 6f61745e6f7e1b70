package reservations

import (
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// Origin names a booking over all replicas: the process that accepted it, and
// the sequence number that this process gave to the event of its acceptance.
// Numbers begin with 1 and are never used again. Processes that do not number
// their events (Dynamo's) have Sequence 0; their bookings are told apart by
// scope and id.
type Origin struct{ Process, Sequence uint64 }

// counts reports whether the process numbers its bookings.
func (o Origin) counts() bool { return o.Sequence != 0 }

// Reservation is a live booking as replicas tell each other of it.
//
// What a replica knows is a set of bookings, by identity, and the set of those
// that have ended by a free or by age. Two replicas are joined by uniting both
// sets and taking the ended ones out of the first; a prefill once complete stays
// complete. Messages may therefore be lost, repeated, late and in any order:
// after the next exchange of Bookings and Ended the replicas agree. A booking
// that went with its rank here is never taken again by this ledger. It is
// reported as ended only by the process that accepted it, whose callers cannot
// end it any more; another process may have lost the rank by itself. Replicas
// agree on prompt blocks, prefill tokens and requests; output blocks stay local.
type Reservation struct {
	Origin         Origin
	Scope          catalog.Scope
	ID             string
	Rank           catalog.Rank
	PerScope       bool     // as in the Request
	Hashes         []uint64 // the ledger keeps the slice: it must not be changed
	PrefillTokens  uint64
	TrackPrefill   bool
	PrefillDone    bool
	ExpectedOutput *uint32 // tokens
	// Age is the time since the acceptance, as far as known. A booking of 300 s
	// or more is refused; the others live for the rest of the 300 s. Of several
	// ages the greatest is right.
	Age time.Duration
	// Lease, if positive, replaces the 300 s: the booking lives for this time after
	// its last renewal, and here a little longer (see slack).
	Lease time.Duration
	// Renewed is the last renewal, as the time since the acceptance.
	Renewed time.Duration
}

// Ref names the booking that an event is about.
type Ref struct {
	// Origin is the booking's, or the sender's process and Sequence 0 if the
	// sender does not say: then Rank decides, and among several the sender's own.
	Origin Origin
	Scope  catalog.Scope
	ID     string
	Rank   catalog.Rank
	// Event is the sender's process and its number of this event, zero if it does
	// not number its events. No booking has this number; to note it keeps Ended
	// short and has no other effect.
	Event Origin
}

// ApplyResult says what became of a message.
type ApplyResult uint8

// The verdicts. A message that is refused because scope or rank is unknown, as
// Stale, or as Full leaves no trace; except that the end and the completed
// prefill of a booking with a sequence number are always noted.
const (
	// Applied: the ledger has changed as the message says.
	Applied ApplyResult = iota
	// Updated: the booking is live already; its prefill is complete now.
	Updated
	// Known: nothing is new. Also for an event of a process that does not number
	// its bookings if the id is live in the scope (dynamo-kv-router 1.6.1).
	Known
	// Ended: the booking has ended, or went with its rank here, and will never be
	// live again.
	Ended
	// Stale: the booking is 300 s old or older, or its lease has run out.
	Stale
	// UnknownScope: the scope has no rank here.
	UnknownScope
	// UnknownRank: the rank is not in the ledger.
	UnknownRank
	// WrongRank: the id is live in the scope, but not on that rank.
	WrongRank
	// UnknownID: no such booking is live. If it comes later it will count as
	// ended, or its prefill as complete, where this can be remembered.
	UnknownID
	// Full: as many other processes as can be remembered have live bookings.
	Full
)

var applyResults = [...]string{
	"applied", "updated", "known", "ended", "stale",
	"unknown_scope", "unknown_rank", "wrong_rank", "unknown_id", "full",
}

// String returns the name in snake case.
func (v ApplyResult) String() string {
	if int(v) < len(applyResults) {
		return applyResults[v]
	}
	return "invalid"
}

// ApplyBooked applies the event that a process has accepted a booking. One
// without sequence number is refused as Ended if its end came within the 10 s
// before, and its prefill is complete if that came (dynamo-kv-router 1.3.1 sends
// its events in any order).
func (l *Ledger) ApplyBooked(b Reservation) ApplyResult { return l.apply(&b, false) }

// MergeReservation joins a booking of another replica's Bookings. One without sequence
// number is refused as Ended also if it was live here within the last 300 s.
func (l *Ledger) MergeReservation(b Reservation) ApplyResult {
	v := l.apply(&b, true)
	if v == Applied {
		l.adopted.Add(1)
	}
	return v
}

// ApplyPrefillCompleted applies the event that a prefill is complete. If nothing
// is there this is remembered as ApplyFreed remembers an end.
func (l *Ledger) ApplyPrefillCompleted(ref Ref) ApplyResult {
	at := l.at()
	ended := l.pasts.complete(ref.Origin, ref.Event, at) // first: see Ledger
	early := func() { l.foreign.completedEarly(ref.Origin.Process, ref.Scope, ref.ID, at) }
	return l.applyStep(ref, ended, early, func(s *scope, r *entry) ApplyResult {
		if r.done {
			return Known
		}
		s.endPrefill(r)
		return Applied
	})
}

// ApplyFreed applies the event that a booking was freed. If nothing is there the
// end is remembered: for good if the booking has a sequence number, else for the
// next event of the same sender, scope and id within 10 s.
func (l *Ledger) ApplyFreed(ref Ref) ApplyResult {
	at := l.at()
	ended := l.pasts.end(ref.Origin, ref.Event, at) // first: see Ledger
	early := func() { l.foreign.freedEarly(ref.Origin.Process, ref.Scope, ref.ID, at) }
	return l.applyStep(ref, ended, early, func(s *scope, r *entry) ApplyResult {
		s.end(r, freed)
		l.freed.Add(1)
		return Applied
	})
}

// applyStep runs apply on the live reservation that ref means. If there is none it
// has ended, or early notes the step of a process that does not number its events:
// the booking may follow.
func (l *Ledger) applyStep(ref Ref, ended bool, early func(), apply func(*scope, *entry) ApplyResult) ApplyResult {
	return l.find(ref, func(s *scope, r *entry, why ApplyResult) ApplyResult {
		switch {
		case r != nil:
			return apply(s, r)
		case ended:
			return Ended
		case why == UnknownID && !ref.Origin.counts():
			early()
		}
		return why
	})
}

// find runs f under the lock of the scope, on the live reservation that ref
// means, or on nil and why there is none.
func (l *Ledger) find(ref Ref, f func(*scope, *entry, ApplyResult) ApplyResult) ApplyResult {
	s := l.scope(ref.Scope)
	if s == nil {
		return UnknownScope
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ref.Origin.counts() {
		r, _ := l.ids.identified(ref.Origin, s, ref.ID)
		return f(s, r, UnknownID)
	}
	r, any := l.ids.onRank(s, ref.ID, ref.Rank, ref.Origin.Process)
	if any {
		return f(s, r, WrongRank)
	}
	return f(s, r, UnknownID)
}

// apply is ApplyBooked and, for a booking of a snapshot, Adopt.
func (l *Ledger) apply(b *Reservation, snapshot bool) ApplyResult {
	s := l.scope(b.Scope)
	if s == nil {
		return UnknownScope
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := l.at()
	s.sweep(at)

	numbered := b.Origin.counts()
	unnumberedEvent := !numbered && !snapshot
	completed, ended := false, false
	if !numbered {
		completed, ended = l.foreign.past(b, snapshot, at)
	}
	live, any := l.ids.identified(b.Origin, s, b.ID)
	if live != nil {
		if unnumberedEvent {
			l.foreign.came(b, at)
		}
		return s.join(live, b, at)
	}
	if b.Origin.Process == l.process { // what this process accepted, it knows
		return Ended
	}
	leased, deadline := s.terms(b, at)
	if deadline <= at {
		return Stale
	}
	slot, ok := s.slots[b.Rank]
	if !ok {
		return UnknownRank
	}
	if numbered {
		var v ApplyResult
		if v, completed = l.pasts.admit(b.Origin, at, snapshot && leased != nil); v != Applied {
			return v
		}
	}
	if unnumberedEvent {
		l.foreign.came(b, at)
	}
	switch {
	case ended:
		return Ended
	case unnumberedEvent && any:
		return Known
	}
	r := &entry{
		id:       b.ID,
		scope:    s,
		slot:     slot,
		rank:     b.Rank,
		hashes:   b.Hashes,
		tokens:   b.PrefillTokens,
		output:   b.ExpectedOutput,
		origin:   b.Origin,
		perScope: b.PerScope,
		track:    b.TrackPrefill,
		done:     b.PrefillDone || completed,
		deadline: deadline,
		lease:    leased,
	}
	l.ids.enter(r)
	s.add(r)
	l.booked.Add(1)
	l.remote.Add(1)
	return Applied
}

// terms returns the lease of a booking of another process, or nil, and when it
// ends here.
func (s *scope) terms(b *Reservation, at time.Duration) (x *lease, deadline time.Duration) {
	accepted := at - max(b.Age, 0)
	if b.Lease <= 0 || !b.Origin.counts() {
		return nil, accepted + s.ledger.lifetime
	}
	x = newLease(b.Lease, accepted)
	x.heard = b.renewed()
	return x, s.leaseEnd(b.Origin, x)
}

// renewed is the last renewal, which was not in the future.
func (b *Reservation) renewed() time.Duration { return max(0, min(b.Renewed, b.Age)) }

// join adds to a live reservation what another replica knows of it. The greater
// age is the right one: each replica counts from when it heard of the booking.
func (s *scope) join(r *entry, b *Reservation, at time.Duration) ApplyResult {
	accepted := at - max(b.Age, 0)
	own := r.origin.Process == s.ledger.process
	switch x := r.lease; {
	case x != nil:
		x.accepted = min(x.accepted, accepted)
		x.heard = max(x.heard, b.renewed())
		s.reschedule(r)
	case accepted+s.ledger.lifetime < r.deadline:
		s.postpone(r, accepted+s.ledger.lifetime)
	}
	if r.lease == nil && !own { // who told of it may know of no leases
		s.grant(r, b, at)
	}
	if b.PrefillDone && !r.done {
		s.endPrefill(r)
		return Updated
	}
	return Known
}

// grant gives a reservation the lease that another replica tells of, unless that
// has run out.
func (s *scope) grant(r *entry, b *Reservation, at time.Duration) {
	x, _ := s.terms(b, at)
	if x == nil {
		return
	}
	x.accepted = r.accepted()
	if end := s.leaseEnd(r.origin, x); end > at {
		r.lease = x
		s.postpone(r, end)
	}
}

// ApplyRenewed applies the event that a booking was renewed, which Ref.Event does
// not number. It counts from now on: the sender may count from later than this
// ledger, and a lease must not end early. UnknownID says that the sender has a
// booking which could live here, too.
func (l *Ledger) ApplyRenewed(ref Ref) ApplyResult {
	return l.find(ref, func(s *scope, r *entry, _ ApplyResult) ApplyResult {
		switch _, rank := s.slots[ref.Rank]; {
		case r != nil && r.lease != nil:
			r.lease.touched = max(r.lease.touched, l.at())
			s.reschedule(r)
			return Applied
		case r != nil:
			return Known
		case !rank:
			return UnknownRank
		}
		return l.pasts.missing(ref.Origin)
	})
}

// remember notes that a booking is live no more. Of its own ones the ledger
// needs no note: what it accepted and is not live has ended.
func (l *Ledger) remember(r *entry, how endReason) {
	switch {
	case r.origin.Process == l.process:
	case r.origin.counts() && r.lease != nil:
		l.pasts.leaveLease(r, how, l.at())
	case r.origin.counts():
		l.pasts.leave(r.origin, how)
	default:
		l.foreign.leave(r.origin.Process, r.scope.name, r.id, l.at())
	}
}
