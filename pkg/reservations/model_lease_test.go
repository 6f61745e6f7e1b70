package reservations

import "time"

// modelLease is how the model counts a lease, with all times since its start.
type modelLease struct {
	length time.Duration // 0: none
	// The last renewal: as a snapshot told of it, since the acceptance, and as it
	// was made or heard of here.
	told    time.Duration
	here    time.Duration
	wasHere bool
}

// deadline is after when the reservation ends.
func (m *modelEntry) deadline() time.Duration {
	if m.lease.length == 0 {
		return m.at + 300*time.Second
	}
	end := m.renewed() + m.lease.length
	if m.origin.Process != 1 {
		end += max(5*time.Second, m.lease.length/2)
	}
	return end
}

// renewed is the time of the last renewal.
func (m *modelEntry) renewed() time.Duration {
	last := m.at + m.lease.told
	if m.lease.wasHere {
		last = max(last, m.lease.here)
	}
	return last
}

func (m *model) touch(b *modelEntry) {
	if b.lease.length > 0 {
		b.lease.here, b.lease.wasHere = m.now, true
	}
}

func (m *model) renew(id string) error {
	b := m.find(id, nil)
	switch {
	case b == nil:
		return ErrNotFound
	case b.lease.length == 0:
		return ErrNoLease
	}
	m.touch(b)
	return nil
}

// hear is what a reservation of a replica tells of a live one.
func (m *modelEntry) hear(from Reservation, now time.Duration) {
	m.at = min(m.at, now-from.Age)
	renewed := min(from.Renewed, from.Age)
	if m.lease.length > 0 {
		m.lease.told = max(m.lease.told, renewed)
		return
	}
	if from.Lease > 0 && m.origin.Sequence != 0 && m.origin.Process != 1 {
		m.lease = modelLease{length: from.Lease, told: renewed}
		if m.deadline() <= now { // it has run out: no reason to end what is live
			m.lease = modelLease{}
		}
	}
}

func (m *model) applyRenewed(ref Ref) ApplyResult {
	if _, scope, _ := m.rankPlace(ref.Scope, ref.Rank); !scope {
		return UnknownScope
	}
	b, _ := m.named(ref)
	_, _, rank := m.rankPlace(ref.Scope, ref.Rank)
	switch {
	case b != nil && b.lease.length > 0:
		m.touch(b)
		return Applied
	case b != nil:
		return Known
	case !rank:
		return UnknownRank
	case ref.Origin.Process == 1 || m.past.ended[ref.Origin] || m.past.dropped[ref.Origin] || m.past.closed[ref.Origin]:
		return Ended
	}
	return UnknownID
}

// holding is what Find must say.
func (m *model) holding(id string) (h LiveReservation, ok bool) {
	b := m.find(id, nil)
	if b == nil {
		return LiveReservation{}, false
	}
	return LiveReservation{
		Origin: b.origin, Scope: b.scope, Rank: b.rank, PerScope: b.perScope, Hashes: b.chain,
		Remote: b.origin.Process != 1, Lease: b.lease.length,
	}, true
}
