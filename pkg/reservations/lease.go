package reservations

import (
	"container/heap"
	"math"
	"time"
)

// lease replaces the lifetime of a reservation: it lives as long as its caller
// renews it. When two replicas join what they know of it, the earliest time of
// acceptance and the latest renewal count. A renewal from a snapshot is kept as the
// time between acceptance and renewal, unchanged: if it counted from its arrival,
// two replicas that read each other's snapshots would keep a reservation alive
// between them.
//
// The process that accepted the reservation ends it at its deadline and publishes
// the end. The others wait longer, because a renewal may still be on its way to
// them, and then end it for themselves only: a later renewal brings it back.
type lease struct {
	length   time.Duration
	accepted time.Duration // since Ledger.start, as far as is known
	// renewedElsewhere is the latest renewal in a snapshot, since accepted.
	renewedElsewhere time.Duration
	// renewedHere is the latest renewal by a caller or an event, since Ledger.start.
	renewedHere time.Duration
	// announced is when the observer was last told of a renewal, since Ledger.start.
	announced time.Duration
	inPending int32 // index in scope.pendingRenewals, or -1
}

func newLease(length, accepted time.Duration) *lease {
	return &lease{length: length, accepted: accepted, renewedHere: math.MinInt64, announced: accepted, inPending: -1}
}

// lastRenewal returns the time of the latest renewal or, without one, of the acceptance.
func (l *lease) lastRenewal() time.Duration { return max(l.renewedHere, l.accepted+l.renewedElsewhere) }

// renewedAfter returns lastRenewal as the time since the acceptance, which is what other
// replicas are told.
func (l *lease) renewedAfter() time.Duration { return l.lastRenewal() - l.accepted }

// ExpireEvery is the interval at which ExpireDue is to be called if there are leases: a
// fraction of the shortest lease that makes sense.
const ExpireEvery = 50 * time.Millisecond

// announceAt returns when the observer may be told of a further renewal: a quarter of
// the lease after the last one. A renewal that waits for that is announced by Expire or
// ExpireDue. A renewal of a short lease is announced at once: by then the process that
// accepted the reservation might have ended it.
func (l *lease) announceAt() time.Duration {
	if l.length/4 < ExpireEvery {
		return l.announced
	}
	return l.announced + l.length/4
}

// slack returns how much longer other processes keep a reservation with a lease than the
// one that accepted it.
func slack(length time.Duration) time.Duration { return max(5*time.Second, length/2) }

// renew restarts the lease of r, if it has one, because of a step of its caller, and
// announces the renewal if that is due. It needs s.mu.
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

// reschedule moves the deadline of a leased reservation to where its lease ends.
func (s *scope) reschedule(r *entry) { s.setDeadline(r, s.leaseEnd(r.origin, r.lease)) }

// setDeadline gives a live reservation another deadline, later or earlier.
func (s *scope) setDeadline(r *entry, deadline time.Duration) {
	s.deadlines.move(r, deadline)
	s.ledger.soonest.lower(deadline)
}

// leaseEnd returns when this ledger ends a leased reservation that is not renewed again.
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

// announceDue announces at most limit pending renewals that are due, and reports
// whether there may be more. It needs s.mu.
func (s *scope) announceDue(at time.Duration, limit int) (more bool) {
	for range limit {
		if len(s.pendingRenewals) == 0 || s.pendingRenewals[0].lease.announceAt() > at {
			return false
		}
		s.announceRenewal(s.pendingRenewals[0], at)
	}
	return true
}

// pendingRenewals is a heap of the leased reservations whose latest renewal has not been
// announced yet, the next one to announce first.
type pendingRenewals []*entry

// Len is part of heap.Interface.
func (p pendingRenewals) Len() int { return len(p) }

// Less is part of heap.Interface.
func (p pendingRenewals) Less(i, j int) bool {
	return p[i].lease.announceAt() < p[j].lease.announceAt()
}

// Swap is part of heap.Interface.
func (p pendingRenewals) Swap(i, j int) {
	p[i], p[j] = p[j], p[i]
	p[i].lease.inPending, p[j].lease.inPending = int32(i), int32(j)
}

// Push is part of heap.Interface.
func (p *pendingRenewals) Push(x any) {
	r := x.(*entry)
	r.lease.inPending = int32(len(*p))
	*p = append(*p, r)
}

// Pop is part of heap.Interface.
func (p *pendingRenewals) Pop() any {
	old := *p
	r := old[len(old)-1]
	old[len(old)-1] = nil
	*p = old[:len(old)-1]
	r.lease.inPending = -1
	return r
}
