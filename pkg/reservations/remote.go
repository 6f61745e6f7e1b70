package reservations

import (
	"slices"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations/history"
)

// Origin names a reservation over all replicas: see history.Origin.
type Origin = history.Origin

// Authority says who makes a statement about a numbered reservation. It decides how much of the
// statement is believed.
//
// A process is believed everything about the reservations that it has accepted, single
// or by ranges of numbers. Other processes are believed two things: single steps of a
// reservation that they can name in full, because a caller may complete, renew and free it at any
// replica; and the live reservations of a process that is gone. Nothing else that they
// say ends, changes or shortens a reservation.
type Authority uint8

// The authorities.
const (
	// ByOwner: the sender is known to be the process that accepted the reservation.
	ByOwner Authority = iota
	// Relayed: the sender is another process, or it is not known to be the one that it
	// says it is. The reservation may become live; its own process may replace it.
	Relayed
	// Supplementary: the sender is another process, while the reservation's own process speaks
	// for itself. The message can add to a live reservation, but not make one live.
	Supplementary
)

// Reservation is a live reservation as replicas describe it to each other.
//
// A replica's knowledge is a set of live reservations, by origin, and the set of those
// that have ended by a free or by age. Two replicas are joined by uniting both sets
// and removing the ended ones from the first; a prefill that is complete stays
// complete. Messages may therefore be lost, repeated, late and in any order: after
// the next exchange of Reservations, of Ended and of the names that were freed the
// replicas agree. A reservation that was lost with its rank here is never taken again
// by this ledger, unless another process renews its lease. Only the process that accepted
// it reports it as ended, because its callers can no longer end it; at another process the
// rank may be missing for a reason of its own. Replicas agree on prompt blocks, prefill tokens and requests;
// output blocks stay local.
type Reservation struct {
	Authority Authority
	// Peer is the endpoint that reported it, "" if it does not matter. The room that
	// reservations take is counted per Peer and OfOthers; see Limits.
	Peer string
	// OfOthers: Peer reports it as another process's, not as its own, whether or not
	// Peer is believed to be its own process.
	OfOthers       bool
	Origin         Origin
	Scope          catalog.Scope
	ID             string
	Rank           catalog.Rank
	PerScope       bool     // as in the Request
	Pair           bool     // a side of a pair: see Ledger.BookPair
	Prefix         Prefix   // how the prompt begins; input only
	Hashes         []uint64 // its distinct prompt blocks after Prefix; the ledger copies what is new
	PrefillTokens  uint64
	Prompt         uint64 // as in the Request; input only: Ledger.Reservations leaves it 0
	TrackPrefill   bool
	PrefillDone    bool
	ExpectedOutput *uint32 // tokens
	// Age is the time since the acceptance, as far as is known. A reservation that is
	// as old as the lifetime (300 s) is refused; a younger one lives for the rest of
	// it. Of several ages the greatest is right.
	Age time.Duration
	// Lease, if positive, replaces the lifetime: the reservation lives for this time
	// after its last renewal, and a little longer if another process accepted it (see
	// slack).
	Lease time.Duration
	// Renewed is the time of the last renewal, since the acceptance.
	Renewed time.Duration
}

// key names a reservation without sequence number.
func (r *Reservation) key() history.Key {
	return history.Key{Process: r.Origin.Process, Scope: r.Scope, ID: r.ID}
}

// name is the full name of a reservation that has a number.
func (r *Reservation) name() history.Name {
	return history.Name{Origin: r.Origin, Hash: history.NameHash(r.Scope, r.ID, r.Rank)}
}

// renewed returns the time of the last renewal, since the acceptance, limited to the past.
func (r *Reservation) renewed() time.Duration { return max(0, min(r.Renewed, r.Age)) }

// Ref names the reservation that an event is about.
type Ref struct {
	// Origin is the reservation's. If the sender does not state it, it is the sender's
	// process and Sequence 0: then Scope, ID and Rank find the reservation, and of
	// several the sender's own is meant.
	Origin Origin
	Scope  catalog.Scope
	ID     string
	Rank   catalog.Rank
	// Event is the sender's process and its number of this event, or zero if the sender
	// does not number its events or is not known to be who it says. No reservation has
	// this number; recording it keeps Ended short and has no other effect.
	Event Origin
	// Authority is the sender's about the reservation; Sender is its process. For a numbered
	// reservation that is not the sender's own, scope, id and rank must be right too,
	// else the event has no effect.
	Authority Authority
	Sender    uint64
}

func (r *Ref) name() history.Name {
	return history.Name{Origin: r.Origin, Hash: history.NameHash(r.Scope, r.ID, r.Rank)}
}

func (r *Ref) key() history.Key {
	return history.Key{Process: r.Origin.Process, Scope: r.Scope, ID: r.ID}
}

// ApplyResult says what effect a message had.
type ApplyResult uint8

// The results. A message that is refused because its scope or rank is unknown, or as
// Stale or Full, leaves no trace, except that the end and the completed prefill of a
// numbered reservation are always recorded.
const (
	// Applied: the ledger has changed as the message says.
	Applied ApplyResult = iota
	// Updated: the reservation is live already; its prefill is complete now.
	Updated
	// Known: the message says nothing new. Also for the acceptance of an unnumbered
	// reservation if the id is live in the scope (dynamo-kv-router 1.6.1).
	Known
	// Ended: the reservation has ended, or was lost with its rank here, and will never
	// be live again.
	Ended
	// Stale: the reservation is as old as the lifetime or older, or its lease has
	// run out.
	Stale
	// UnknownScope: the scope has no rank here.
	UnknownScope
	// UnknownRank: the rank is not in the ledger.
	UnknownRank
	// WrongRank: the id is live in the scope, but not on that rank.
	WrongRank
	// UnknownID: no such reservation is live. If it comes later, it will count as ended,
	// or its prefill as complete, as far as that could be recorded.
	UnknownID
	// Full: history.MaxProcesses other processes have live reservations already, or
	// the ledger's limits leave no room (see Limits) and no peer has a larger share
	// than this one. Once there is room, the next snapshot brings the reservation.
	Full
	// UnknownPrefix: the reservation that Prefix names is not live here, or has other
	// blocks. It is as if the message had been lost.
	UnknownPrefix
)

var applyResults = [...]string{
	"applied", "updated", "known", "ended", "stale",
	"unknown_scope", "unknown_rank", "wrong_rank", "unknown_id", "full", "unknown_prefix",
}

// String returns the name in snake case.
func (a ApplyResult) String() string {
	if int(a) < len(applyResults) {
		return applyResults[a]
	}
	return "invalid"
}

// resultOf returns the result for a reservation that is not live, by the verdict on it.
func resultOf(s history.Verdict) ApplyResult {
	switch s {
	case history.HasEnded:
		return Ended
	case history.NoRoom:
		return Full
	}
	return UnknownID
}

// ApplyBooked applies the event that a process has accepted a reservation. If it has
// no sequence number, an end that came up to 10 s earlier makes the result Ended, and
// a completed prefill that came so early counts (dynamo-kv-router 1.3.1 sends its
// events in any order).
func (l *Ledger) ApplyBooked(b Reservation) ApplyResult { return l.apply(&b, false) }

// MergeReservation joins a reservation from another replica's Reservations. If it has
// no sequence number, the result is Ended also if it was live here within the last
// lifetime.
func (l *Ledger) MergeReservation(b Reservation) ApplyResult { return l.apply(&b, true) }

// ApplyPrefillCompleted applies the event that a prefill is complete. If the
// reservation is not live, this is remembered for as long as ApplyFreed remembers an
// end.
func (l *Ledger) ApplyPrefillCompleted(ref Ref) ApplyResult {
	at := l.at()
	ended := l.noteStep(&ref, history.NoteCompleted, at) // first: see Ledger
	early := func() { l.unnumbered.CompletedEarly(ref.key(), at) }
	return l.applyStep(ref, ended, early, func(s *scope, r *entry) ApplyResult {
		if r.prefillDone {
			return Known
		}
		s.endPrefill(r)
		if r.callerState != nil {
			r.callerState.PrefillEnded(true)
		}
		return Applied
	})
}

// ApplyFreed applies the event that a reservation was freed. If it is not live, the
// end is remembered: for good if it has a sequence number, else for an ApplyBooked with
// the same process, scope and id within 10 s.
func (l *Ledger) ApplyFreed(ref Ref) ApplyResult {
	at := l.at()
	ended := l.noteStep(&ref, history.NoteFreed, at) // first: see Ledger
	early := func() { l.unnumbered.FreedEarly(ref.key(), at) }
	return l.applyStep(ref, ended, early, func(s *scope, r *entry) ApplyResult {
		if r.callerState != nil {
			r.callerState.ReservationFreed()
		}
		s.end(r, history.Freed)
		l.counts.freed.Add(1)
		return Applied
	})
}

// noteStep records the end or the completed prefill of a numbered reservation, before
// the caller looks for it. ended reports that the reservation, if it is not live, has
// ended.
func (l *Ledger) noteStep(ref *Ref, what history.Note, at time.Duration) (ended bool) {
	switch {
	case !ref.Origin.Numbered():
		l.numbered.Skip(ref.Event, at)
		return false
	case ref.Authority == ByOwner && what == history.NoteFreed:
		return l.numbered.End(ref.Origin, ref.Event, at)
	case ref.Authority == ByOwner:
		return l.numbered.Complete(ref.Origin, ref.Event, at)
	}
	l.numbered.Skip(ref.Event, at)
	if verdict, _ := l.numbered.Verdict(ref.Origin, false); verdict == history.HasEnded {
		return true
	}
	name := ref.name()
	before := l.named.Of(name)
	l.named.Add(ref.Sender, name, what, at+l.keepNotes())
	return before&history.NoteFreed != 0
}

// keepNotes returns how long a note about a reservation without lease is kept.
func (l *Ledger) keepNotes() time.Duration { return 2 * l.lifetime }

// ApplyRenewed applies the event that a reservation was renewed; Ref.Event is not used.
// The lease restarts now, not when the renewal was sent: a lease must not end early.
// UnknownID means that the sender has a reservation that could be live here, too.
func (l *Ledger) ApplyRenewed(ref Ref) ApplyResult {
	return l.find(ref, func(s *scope, r *entry, _ ApplyResult) ApplyResult {
		switch _, known := s.ranks.Slot(ref.Rank); {
		case r != nil && r.lease != nil:
			r.lease.renewedHere = max(r.lease.renewedHere, l.at())
			s.reschedule(r)
			return Applied
		case r != nil:
			return Known
		case !known:
			return UnknownRank
		}
		return resultOf(l.numbered.Missing(ref.Origin))
	})
}

// applyStep runs apply on the live reservation that ref names. If there is none, either
// it has ended, or, for an unnumbered one, early records the step because the
// reservation may follow.
func (l *Ledger) applyStep(ref Ref, ended bool, early func(), apply func(*scope, *entry) ApplyResult) ApplyResult {
	return l.find(ref, func(s *scope, r *entry, why ApplyResult) ApplyResult {
		switch {
		case r != nil:
			return apply(s, r)
		case ended:
			return Ended
		case why == UnknownID && !ref.Origin.Numbered():
			early()
		}
		return why
	})
}

// find runs f under the lock of the scope, with the live reservation that ref names, or
// with nil and the reason why there is none, and returns f's result.
func (l *Ledger) find(ref Ref, f func(*scope, *entry, ApplyResult) ApplyResult) ApplyResult {
	s := l.scope(ref.Scope)
	if s == nil {
		return UnknownScope
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ref.Origin.Numbered() {
		r, _ := l.ids.byOrigin(ref.Origin, s, ref.ID)
		if r != nil && ref.Authority != ByOwner && r.rank != ref.Rank {
			return f(s, nil, WrongRank)
		}
		return f(s, r, UnknownID)
	}
	r, any := l.ids.onRank(s, ref.ID, ref.Rank, ref.Origin.Process)
	if any {
		return f(s, r, WrongRank)
	}
	return f(s, r, UnknownID)
}

// apply is ApplyBooked and, for a reservation of a snapshot, MergeReservation.
func (l *Ledger) apply(b *Reservation, snapshot bool) ApplyResult {
	s := l.scope(b.Scope)
	if s == nil {
		return UnknownScope
	}
	v, displaced := s.apply(b, snapshot)
	for left := int64(0); len(displaced) > 0; {
		for _, r := range displaced { // of any scope, so without the lock of this one
			left += r.scope.endDisplaced(r)
		}
		displaced = nil
		if left > 0 {
			displaced = l.room.takeMore(source{b.Peer, b.OfOthers})
			left -= chargesOf(displaced)
		}
	}
	return v
}

// apply is Ledger.apply within the scope. The caller must end the displaced reservations,
// which no longer count.
func (s *scope) apply(b *Reservation, snapshot bool) (v ApplyResult, displaced []*entry) {
	l := s.ledger
	s.mu.Lock()
	defer s.mu.Unlock()
	at := l.at()
	s.sweep(at)

	numbered := b.Origin.Numbered()
	unnumberedEvent := !numbered && !snapshot
	completed, ended := false, false
	if !numbered {
		completed, ended = l.unnumbered.Before(b.key(), snapshot, at)
	}
	live, any := l.ids.byOrigin(b.Origin, s, b.ID)
	switch {
	case live != nil && live.relayed && b.Authority == ByOwner:
		start, ok := s.locate(b)
		if !ok {
			return UnknownPrefix, nil
		}
		if v, same := s.confirm(live, b, start, at); same {
			return v, nil
		}
		s.end(live, history.Replaced)
		l.counts.freed.Add(1)
	case live != nil:
		if unnumberedEvent {
			l.unnumbered.Booked(b.key(), at)
		}
		return s.join(live, b, at), nil
	}
	switch {
	case b.Origin.Process == l.process: // it is not live, so it has ended
		return Ended, nil
	case b.Authority == Supplementary:
		return UnknownID, nil
	}
	lease, deadline := s.terms(b, at)
	if deadline <= at {
		return Stale, nil
	}
	slot, ok := s.ranks.Slot(b.Rank)
	if !ok {
		return UnknownRank, nil
	}
	start, ok := s.locate(b)
	if !ok {
		return s.withoutPrefix(b), nil
	}
	r := b.entry(s, slot, lease, deadline)
	if numbered {
		var verdict history.Verdict
		verdict, completed = l.admit(b, at, snapshot && lease != nil)
		if verdict != history.MayLive {
			return resultOf(verdict), nil
		}
	}
	known := unnumberedEvent && any
	var prompt preparedPrompt
	if !ended && !known {
		m := s.blocks.walk(start, b.Hashes)
		prompt = s.blocks.prepare(m, b.Hashes[m.n-start.n:])
		r.fresh = prompt.fresh
		if displaced, ok = l.room.takeFrom(r, source{b.Peer, b.OfOthers}); !ok {
			s.blocks.drop(prompt)
			if numbered && !r.relayed {
				l.numbered.Leave(b.Origin, history.Displaced)
			}
			return Full, nil
		}
	}
	if unnumberedEvent {
		l.unnumbered.Booked(b.key(), at)
	}
	switch {
	case ended:
		return Ended, nil
	case known:
		return Known, nil
	}
	r.prefillDone = b.PrefillDone || completed
	s.enterRemote(r, prompt, b.Prompt)
	if !snapshot {
		s.observeBooked(r, 0, false)
	}
	return Applied, displaced
}

// withoutPrefix returns the result for a reservation that could be live but for its prefix, which
// is not known here.
func (s *scope) withoutPrefix(b *Reservation) ApplyResult {
	l := s.ledger
	verdict, _ := l.numbered.Verdict(b.Origin, false)
	switch {
	case verdict == history.HasEnded, l.named.Of(b.name())&(history.NoteFreed|history.NoteRankRemoved) != 0:
		return Ended
	case l.room.usedUp(): // perhaps for want of room
		return Full
	}
	return UnknownPrefix
}

// endDisplaced ends a reservation whose room was given to another one, unless it has ended. It
// returns how many bytes less than r's charge were freed, because others hold the same blocks.
func (s *scope) endDisplaced(r *entry) (left int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.ended {
		return 0
	}
	before := s.settled
	s.end(r, history.Displaced)
	s.ledger.counts.displaced.Add(1)
	return s.ledger.room.chargedBlocks(r) - (before - s.settled)
}

// confirm updates a live reservation that so far only other processes had reported: its own
// process reports it now. start is where its prefix ends. Nothing changes, and same is false, if
// the two reports differ or the reservation may not be live.
func (s *scope) confirm(r *entry, b *Reservation, start match, at time.Duration) (v ApplyResult, same bool) {
	if r.rank != b.Rank || r.tokens != b.PrefillTokens || r.track != b.TrackPrefill || r.perScope != b.PerScope ||
		(r.lease != nil) != (b.Lease > 0) || !slices.Equal(s.hashes(r), distinct(append(s.blocks.list(start), b.Hashes...))) {
		return 0, false
	}
	verdict, completed := s.ledger.admit(b, at, r.lease != nil)
	if verdict != history.MayLive {
		return 0, false
	}
	r.relayed = false
	s.ledger.relayed.Add(-1)
	s.ledger.room.peers.moveToOwn(r, b.Peer)
	if completed && !r.prefillDone {
		s.endPrefill(r)
	}
	return s.join(r, b, at), true
}

// admit decides whether a numbered reservation may become live, and whether its prefill
// is known to be complete. renewed: its lease is known to run. If b is its own process's
// word and may live, the history counts it as live.
func (l *Ledger) admit(b *Reservation, at time.Duration, renewed bool) (s history.Verdict, completed bool) {
	notes := l.named.Of(b.name())
	switch {
	case notes&(history.NoteFreed|history.NoteRankRemoved) != 0:
		return history.HasEnded, false
	case notes&history.NoteLeaseExpired != 0 && !renewed:
		return history.HasEnded, false
	case b.Authority == ByOwner:
		s, completed = l.numbered.Admit(b.Origin, at, renewed)
	default:
		s, completed = l.numbered.Verdict(b.Origin, renewed)
	}
	return s, completed || notes&history.NoteCompleted != 0
}

// entry returns the entry of a reservation of another process.
func (r *Reservation) entry(s *scope, slot uint32, x *lease, deadline time.Duration) *entry {
	return &entry{
		id:       r.ID,
		scope:    s,
		slot:     slot,
		rank:     r.Rank,
		tokens:   r.PrefillTokens,
		output:   r.ExpectedOutput,
		origin:   r.Origin,
		perScope: r.PerScope,
		pair:     r.Pair,
		track:    r.TrackPrefill,
		relayed:  r.Origin.Numbered() && r.Authority != ByOwner,
		deadline: deadline,
		lease:    x,
	}
}

// enterRemote enters a reservation of another process. Room must have been taken for it,
// and admit must have been called if it has a number.
func (s *scope) enterRemote(r *entry, prompt preparedPrompt, tokens uint64) {
	s.ledger.ids.enter(r)
	s.add(r, prompt, 0, tokens)
	if r.relayed {
		s.ledger.relayed.Add(1)
	}
	s.ledger.counts.booked.Add(1)
	s.ledger.counts.remote.Add(1)
}

// terms returns the lease of a reservation of another process, or nil, and when it
// ends here.
func (s *scope) terms(b *Reservation, at time.Duration) (x *lease, deadline time.Duration) {
	accepted := at - max(b.Age, 0)
	if b.Lease <= 0 || !b.Origin.Numbered() {
		return nil, accepted + s.ledger.lifetime
	}
	x = newLease(b.Lease, accepted)
	x.renewedElsewhere = b.renewed()
	return x, s.leaseEnd(b.Origin, x)
}

// join adds to a live reservation what another replica knows of it. The greater age is
// the right one, because each replica counts from when it heard of the reservation. But
// only the reservation's own process is believed that it is older than known here.
func (s *scope) join(r *entry, b *Reservation, at time.Duration) ApplyResult {
	accepted := at - max(b.Age, 0)
	own := r.origin.Process == s.ledger.process
	trusted := b.Authority == ByOwner
	switch x := r.lease; {
	case b.Authority != ByOwner && r.rank != b.Rank: // b names another reservation
		return Known
	case !trusted && x != nil: // its age is not believed, so a renewal counts up to now at the latest
		x.renewedElsewhere = max(x.renewedElsewhere, min(b.renewed(), at-x.accepted))
		s.reschedule(r)
	case !trusted:
	case x != nil:
		x.accepted = min(x.accepted, accepted)
		x.renewedElsewhere = max(x.renewedElsewhere, b.renewed())
		s.reschedule(r)
	case accepted+s.ledger.lifetime < r.deadline:
		s.setDeadline(r, accepted+s.ledger.lifetime)
	}
	if r.lease == nil && !own && trusted { // it may have come first from a replica that knows no leases
		s.grant(r, b, at)
	}
	if b.PrefillDone && !r.prefillDone {
		s.endPrefill(r)
		return Updated
	}
	return Known
}

// grant gives a live reservation the lease that another replica reports, unless that
// has run out.
func (s *scope) grant(r *entry, b *Reservation, at time.Duration) {
	x, _ := s.terms(b, at)
	if x == nil {
		return
	}
	x.accepted = r.accepted()
	if end := s.leaseEnd(r.origin, x); end > at {
		r.lease = x
		s.setDeadline(r, end)
	}
}

// remember records in the history that a reservation is no longer live. The ledger's own
// reservations need no record: those that it accepted and that are not live have ended.
func (l *Ledger) remember(r *entry, why history.EndReason) {
	if r.relayed {
		l.relayed.Add(-1)
	}
	switch {
	case r.origin.Process == l.process, why == history.Replaced:
	case why == history.Displaced:
		if r.origin.Numbered() && !r.relayed {
			l.numbered.Leave(r.origin, why)
		}
	case r.relayed:
		l.rememberName(r, why)
	case r.origin.Numbered() && r.lease != nil:
		l.numbered.LeaveLeased(r.origin, why, history.Lease{
			Accepted:    r.lease.accepted,
			Longest:     r.lease.length + slack(r.lease.length),
			PrefillDone: r.prefillDone,
		}, l.at())
	case r.origin.Numbered():
		l.numbered.Leave(r.origin, why)
	default:
		l.unnumbered.Leave(history.Key{Process: r.origin.Process, Scope: r.scope.name, ID: r.id}, l.at())
	}
}

// rememberName is remember for a relayed reservation.
func (l *Ledger) rememberName(r *entry, why history.EndReason) {
	note := history.NoteFreed
	keep := l.keepNotes()
	if r.lease != nil {
		keep = max(keep, r.lease.length+2*slack(r.lease.length))
	}
	switch why {
	case history.RankRemoved:
		note = history.NoteRankRemoved
	case history.LeaseExpired:
		note = history.NoteLeaseExpired
	case history.Freed, history.Replaced, history.Displaced:
	}
	at := l.at()
	if r.prefillDone {
		l.named.Add(l.process, r.name(), history.NoteCompleted, at+keep)
	}
	l.named.Add(l.process, r.name(), note, at+keep)
}

// Bind records which peer, an endpoint, speaks for a process from now on. The memory of
// the histories of one peer's processes is counted together.
func (l *Ledger) Bind(process uint64, peer string) { l.numbered.Bind(process, peer, l.at()) }

// Unbind is called when it is no longer known which of several endpoints speaks for
// another process. Its live reservations stay, as Relayed ones, and the history of its
// numbers is dropped.
func (l *Ledger) Unbind(process uint64) {
	if process == l.process {
		return
	}
	l.eachListed(func(s *scope, some []listed) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, x := range some {
			if x.origin.Process == process && x.origin.Numbered() && !x.ended && !x.relayed {
				x.relayed = true
				l.relayed.Add(1)
			}
		}
	})
	l.numbered.Unbind(process)
}

// MergeFreed ends those of the named reservations that are live, and remembers the
// ends of the others. reporter is the process that reported them. It returns how many
// reservations ended, and the names whose end was not known before.
func (l *Ledger) MergeFreed(reporter uint64, names []history.Name) (freed int, fresh []history.Name) {
	at := l.at()
	ends := make(map[Origin][]uint64, len(names)) // name hashes; of one origin's at most one is right
	for _, name := range names {
		if name.Origin.Process != l.process {
			verdict, _ := l.numbered.Verdict(name.Origin, false)
			if verdict == history.HasEnded || !l.named.Add(reporter, name, history.NoteFreed, at+l.keepNotes()) {
				continue
			}
			fresh = append(fresh, name)
		}
		ends[name.Origin] = append(ends[name.Origin], name.Hash)
	}
	if len(ends) == 0 {
		return 0, nil
	}
	l.eachListed(func(s *scope, some []listed) {
		due := some[:0]
		for _, x := range some {
			if hashes, named := ends[x.origin]; named && slices.Contains(hashes, x.name().Hash) {
				due = append(due, x)
			}
		}
		freed += s.endListed(due, false)
	})
	l.counts.freed.Add(uint64(freed))
	return freed, fresh
}

// Ended returns what has ended, for every process that numbers its reservations and
// that the ledger has heard of. For other processes, all numbers below the last 2^23
// (history.Window) and all that are older than two lifetimes (at least 600 s) are
// assumed to have ended. Reservations lost with their rank here are included only if
// this process accepted them.
func (l *Ledger) Ended() map[uint64]history.EndedSet {
	out := l.numbered.Ended()
	// Own reservations with numbers up to last are entered, or their scope is locked
	// until they are: eachListed finds each of them unless it has ended.
	last := l.lastSequence.Load()
	if last == 0 {
		return out
	}
	var open []uint64
	l.eachListed(func(_ *scope, some []listed) {
		for _, x := range some {
			if x.origin.Process == l.process {
				open = append(open, x.origin.Sequence)
			}
		}
	})
	if own := history.AllBut(last, open); len(own) > 0 {
		out[l.process] = history.EndedSet{Ranges: own}
	}
	return out
}

// MergeEnded joins what a process reports of its own reservations in its Ended: those
// with these numbers end now, if they are live, and never become live again. It returns
// how many ended. Ranges may overlap and come in any order.
func (l *Ledger) MergeEnded(process uint64, ended history.EndedSet) (freed int) {
	ended = ended.Normalized()
	l.numbered.Merge(process, ended, l.at())
	if process != l.process && l.numbered.Live(process) == 0 && l.relayed.Load() == 0 {
		return 0
	}
	l.eachListed(func(s *scope, some []listed) {
		due := some[:0]
		for _, x := range some {
			if x.origin.Process == process && x.origin.Numbered() && ended.Has(x.origin.Sequence, x.lease > 0) {
				due = append(due, x)
			}
		}
		freed += s.endListed(due, true)
	})
	l.counts.freed.Add(uint64(freed))
	return freed
}

// endListed ends those reservations that are still live, a few under each hold of the
// lock. byNumber: the ends were reported by number, and the history has them already.
func (s *scope) endListed(due []listed, byNumber bool) (ended int) {
	for part := range slices.Chunk(due, sweepPerLock) {
		s.mu.Lock()
		for _, x := range part {
			if x.ended {
				continue
			}
			why := history.Freed
			if byNumber && x.relayed {
				why = history.Replaced
			}
			s.end(x.entry, why)
			ended++
		}
		s.mu.Unlock()
	}
	return ended
}
