package reservations

import (
	"container/heap"
	"math"
	"time"
)

// lease replaces the lifetime of a reservation: it lives as long as somebody
// renews it. Like the rest of what replicas know of a booking it only grows when
// two of them are joined: the time of the acceptance is the earliest that anyone
// knows, the last renewal the latest. Renewals from elsewhere are kept as the
// time between acceptance and renewal, word for word: counted from when they were
// heard of, two replicas that read each other's snapshots would keep a booking
// alive between them.
//
// The process that accepted the booking ends it at its deadline and says so. The
// others wait longer, as they may not have heard of the last renewal yet, and
// then lose it as they might lose a rank: it comes back with the renewal.
type lease struct {
	length           time.Duration
	accepted         time.Duration // since Ledger.start, as far as known
	renewedElsewhere time.Duration // the latest renewal that a snapshot told of, since accepted
	renewedHere      time.Duration // the latest one made here, or that an event told of, since Ledger.start
	announced        time.Duration // when the observer was told of one last, since Ledger.start
	inPending        int32         // index in scope.untold, or -1
}

func newLease(length, accepted time.Duration) *lease {
	return &lease{length: length, accepted: accepted, renewedHere: math.MinInt64, announced: accepted, inPending: -1}
}

// lastRenewal is the time of the latest renewal, or of the acceptance.
func (x *lease) lastRenewal() time.Duration { return max(x.renewedHere, x.accepted+x.renewedElsewhere) }

// renewedAfter is the same as others are told of it, since the acceptance.
func (x *lease) renewedAfter() time.Duration { return x.lastRenewal() - x.accepted }

// ExpireEvery is how often ExpireDue is to be called where there are leases: a fraction
// of the shortest that make sense.
const ExpireEvery = 50 * time.Millisecond

// announceAt is when the observer may be told of a further renewal. One that waits for
// its quarter is told by an Expire, which for a short lease may be too late: the
// process that accepted the booking would have ended it by then.
func (x *lease) announceAt() time.Duration {
	if x.length/4 < ExpireEvery {
		return x.announced
	}
	return x.announced + x.length/4
}

// slack is how much longer than the process that accepted it others keep a booking.
func slack(length time.Duration) time.Duration { return max(5*time.Second, length/2) }

// Renew prolongs the lease of a reservation: its time begins anew. ErrNotFound if
// no live reservation has the id, ErrNoLease if it has none.
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

// renew notes a step of a caller, and has the others told if that is due. It
// needs s.mu.
func (s *scope) renew(r *entry) {
	x := r.lease
	if x == nil {
		return
	}
	at := s.ledger.at()
	x.renewedHere = max(x.renewedHere, at)
	s.reschedule(r)
	switch {
	case at >= x.announceAt():
		s.announceRenewal(r, at)
	case x.inPending < 0:
		heap.Push(&s.pendingRenewals, r)
		s.ledger.soonest.lower(x.announceAt())
	}
}

// reschedule moves the end of a leased reservation to where its lease has it.
func (s *scope) reschedule(r *entry) { s.postpone(r, s.leaseEnd(r.origin, r.lease)) }

// postpone gives a live reservation another deadline, which may be earlier, too.
func (s *scope) postpone(r *entry, deadline time.Duration) {
	s.deadlines.move(r, deadline)
	s.ledger.soonest.lower(deadline)
}

// leaseEnd is when this ledger ends a leased booking that is not renewed.
func (s *scope) leaseEnd(o Origin, x *lease) time.Duration {
	end := x.lastRenewal() + x.length
	if o.Process != s.ledger.process {
		end += slack(x.length)
	}
	return end
}

// announceRenewal tells the observer of the latest renewal.
func (s *scope) announceRenewal(r *entry, at time.Duration) {
	x := r.lease
	if x.inPending >= 0 {
		heap.Remove(&s.pendingRenewals, int(x.inPending))
	}
	x.announced = at
	s.ledger.obs.Renewed(r.event())
}

// announceDue tells of at most limit renewals for which it was too early before, and
// reports whether there may be more. It needs s.mu.
func (s *scope) announceDue(at time.Duration, limit int) (more bool) {
	for range limit {
		if len(s.pendingRenewals) == 0 || s.pendingRenewals[0].lease.announceAt() > at {
			return false
		}
		s.announceRenewal(s.pendingRenewals[0], at)
	}
	return true
}

// pendingRenewals is a heap of the leased reservations that were renewed after the
// observer was told of a renewal, the next one to tell of first.
type pendingRenewals []*entry

// Len is part of heap.Interface.
func (u pendingRenewals) Len() int { return len(u) }

// Less is part of heap.Interface.
func (u pendingRenewals) Less(i, j int) bool {
	return u[i].lease.announceAt() < u[j].lease.announceAt()
}

// Swap is part of heap.Interface.
func (u pendingRenewals) Swap(i, j int) {
	u[i], u[j] = u[j], u[i]
	u[i].lease.inPending, u[j].lease.inPending = int32(i), int32(j)
}

// Push is part of heap.Interface.
func (u *pendingRenewals) Push(x any) {
	r := x.(*entry)
	r.lease.inPending = int32(len(*u))
	*u = append(*u, r)
}

// Pop is part of heap.Interface.
func (u *pendingRenewals) Pop() any {
	old := *u
	r := old[len(old)-1]
	old[len(old)-1] = nil
	*u = old[:len(old)-1]
	r.lease.inPending = -1
	return r
}
