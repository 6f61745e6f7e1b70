package reservations

// Restore enters a reservation that was accepted before a restart of this program,
// which must be the only replica, as one of this ledger's own, with its age and its
// lease. b.Age must include the time that has passed meanwhile. Origin is ignored.
// Output blocks and the CallerState are not restored.
//
// The result is Applied, Stale if its time is over, UnknownScope, UnknownRank, Known
// if its id is live, or Full.
func (l *Ledger) Restore(b Reservation) ApplyResult {
	s := l.scope(b.Scope)
	if s == nil {
		return UnknownScope
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := l.at()
	accepted := at - max(b.Age, 0)
	r := &entry{
		id:          b.ID,
		scope:       s,
		rank:        b.Rank,
		tokens:      b.PrefillTokens,
		output:      b.ExpectedOutput,
		origin:      Origin{Process: l.process},
		perScope:    b.PerScope,
		pair:        b.Pair,
		track:       b.TrackPrefill,
		prefillDone: b.PrefillDone,
		deadline:    accepted + l.lifetime,
	}
	if b.Lease > 0 {
		r.lease = newLease(b.Lease, accepted)
		r.lease.renewedElsewhere = b.renewed()
		r.deadline = s.leaseEnd(r.origin, r.lease)
	}
	if r.deadline <= at {
		return Stale
	}
	var ok bool
	if r.slot, ok = s.ranks.Slot(b.Rank); !ok {
		return UnknownRank
	}
	if l.ids.claim(r) != nil {
		return Known
	}
	m := s.blocks.walk(match{}, b.Hashes)
	prompt := s.blocks.prepare(m, b.Hashes[m.n:])
	r.fresh = prompt.fresh
	if l.room.take(r) != nil {
		s.blocks.drop(prompt)
		r.ended = true // for calls that have already found it by its id
		l.ids.release(r)
		return Full
	}
	r.origin.Sequence = l.assignSequence(0)
	s.add(r, prompt, 0, b.Prompt)
	l.counts.booked.Add(1)
	return Applied
}
