package reservations

import (
	"container/heap"
	"slices"
	"sync/atomic"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations/history"
)

const (
	// lifetime of a reservation without lease from its booking, unless SetLifetime
	// says otherwise; nothing refreshes it (dynamo-kv-router 1.3.1: 300 s).
	lifetime = 300 * time.Second
	// sweepPerBooking is how many stale reservations one booking clears away
	// at most; the rest is left to the next ones and to Expire.
	sweepPerBooking = 8
	// sweepPerLock is how many Expire ends before it lets others have the lock.
	sweepPerLock = 64
	// trimEvery is how often Expire gives spare memory of a scope back.
	trimEvery = 30 * time.Second
)

// Expire ends all reservations that are older than their lifetime, or whose lease
// has run out, and tells the observer of renewals for which it was too early. next
// is when a further one may end, the zero time if there is none now. It also gives
// memory back that bookings no longer need. To be called from a timer, about each
// second. While nothing is due it only looks at each scope.
func (l *Ledger) Expire() (expired int, next time.Time) {
	at := l.at()
	expired, first := l.expire(at)
	for _, s := range l.scopesFrom(0) {
		s.trim(at)
	}
	l.numbered.Forget(at)
	l.unnumbered.Forget(at)
	l.expiredIDs.Forget(at)
	if first != never {
		next = l.start.Add(first + 1) // strictly older
	}
	return expired, next
}

// ExpireDue is Expire without the care for memory, and next to nothing before the
// next deadline. To be called each ExpireEvery where there are leases: the load of a
// reservation may outlive its time by that much, unless somebody asks for the
// reservation before.
func (l *Ledger) ExpireDue() (expired int) {
	if at := l.at(); l.soonest.get() <= at {
		expired, _ = l.expire(at)
	}
	return expired
}

// expire returns how many have ended, and the earliest deadline of those that stay,
// or never.
func (l *Ledger) expire(at time.Duration) (expired int, first time.Duration) {
	l.soonest.reset() // before the scopes are read: who comes from now on lowers it again
	first = never
	for _, s := range l.scopesFrom(0) {
		n, next := s.expireDue(at)
		expired += n
		first = min(first, next)
		l.soonest.lower(s.nextDue())
	}
	return expired, first
}

// earliest is a lower bound of times that come and go. Its zero value bounds all.
type earliest struct{ at atomic.Int64 }

func (e *earliest) get() time.Duration { return time.Duration(e.at.Load()) }

func (e *earliest) reset() { e.at.Store(int64(never)) }

func (e *earliest) lower(at time.Duration) {
	for old := e.at.Load(); int64(at) < old && !e.at.CompareAndSwap(old, int64(at)); old = e.at.Load() {
	}
}

// ExpireIn ends all reservations of one scope whose time is over, for a caller
// about to judge its loads: Book ends only a few. While nothing is due it only
// reads.
func (l *Ledger) ExpireIn(sc catalog.Scope) {
	s := l.scope(sc)
	if s == nil {
		return
	}
	at := l.at()
	s.expireDue(at)
}

// expireDue is expireAll, but only reads while nothing is due.
func (s *scope) expireDue(at time.Duration) (expired int, first time.Duration) {
	if due, first := s.due(at); !due {
		return 0, first
	}
	return s.expireAll(at)
}

// due reports whether a reservation is stale or a renewal is to be told of. first
// is the earliest deadline, or never.
func (s *scope) due(at time.Duration) (due bool, first time.Duration) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	first = s.firstDeadline()
	return first < at || len(s.pendingRenewals) > 0 && s.pendingRenewals[0].lease.announceAt() <= at, first
}

// nextDue is when something is due next, or never.
func (s *scope) nextDue() time.Duration {
	s.mu.RLock()
	defer s.mu.RUnlock()
	next := s.firstDeadline()
	if len(s.pendingRenewals) > 0 {
		next = min(next, s.pendingRenewals[0].lease.announceAt())
	}
	return next
}

func (s *scope) firstDeadline() time.Duration {
	if len(s.deadlines) == 0 {
		return never
	}
	return s.deadlines[0].deadline
}

// expireAll ends all stale reservations and tells of all renewals that are due, a
// few under each hold of the lock. first is the earliest deadline of those that
// stay, or never.
func (s *scope) expireAll(at time.Duration) (expired int, first time.Duration) {
	for more := true; more; {
		var n int
		var untold bool
		s.mu.Lock()
		n, more = s.expire(at, sweepPerLock)
		untold = s.announceDue(at, sweepPerLock)
		first = s.firstDeadline()
		s.mu.Unlock()
		expired += n
		more = more || untold
	}
	return expired, first
}

// expire ends at most limit stale reservations and reports whether there may be
// more. It needs s.mu.
func (s *scope) expire(at time.Duration, limit int) (n int, more bool) {
	for len(s.deadlines) > 0 && s.deadlines[0].deadline < at {
		if n == limit {
			return n, true
		}
		s.expireOne(s.deadlines[0], at)
		n++
	}
	return n, false
}

// expireOne ends a stale reservation. That a lease has run out is decided, and
// told, where it was granted: who else has the booking may only not have heard of
// the renewal.
func (s *scope) expireOne(r *entry, at time.Duration) {
	l := s.ledger
	own, leased := r.origin.Process == l.process, r.lease != nil
	why := history.Freed
	if leased && !own {
		why = history.LeaseExpired
	}
	s.end(r, why)
	l.expired.Add(1)
	if own {
		l.expiredIDs.Add(r.expiredID(), at)
	}
	if own && leased {
		l.leasesExpired.Add(1)
		l.obs.Freed(r.event())
	}
}

// sweep ends a few stale reservations before a new one comes. It needs s.mu.
func (s *scope) sweep(at time.Duration) { s.expire(at, sweepPerBooking) }

// trim gives spare memory back, in steps that hold the lock for a moment each.
func (s *scope) trim(at time.Duration) {
	s.mu.RLock()
	due := at-s.trimmed >= trimEvery
	s.mu.RUnlock()
	if !due {
		return
	}
	s.mu.Lock()
	due = at-s.trimmed >= trimEvery
	if due {
		s.trimmed = at
		if 4*len(s.deadlines) < cap(s.deadlines) {
			s.deadlines = slices.Clone(s.deadlines)
		}
		s.entries.trim()
		if s.blocks.idle() {
			s.blocks.reset()
			due = false
		}
	}
	s.mu.Unlock()
	if !due {
		return
	}
	for i := range segments {
		s.mu.Lock()
		s.blocks.trim(i)
		s.mu.Unlock()
	}
}

// deadlines is a heap, the next to expire first.
type deadlines []*entry

func (d *deadlines) push(r *entry)   { heap.Push(d, r) }
func (d *deadlines) remove(r *entry) { heap.Remove(d, int(r.inHeap)) }

// move gives r, which is in the heap, another deadline.
func (d *deadlines) move(r *entry, deadline time.Duration) {
	r.deadline = deadline
	heap.Fix(d, int(r.inHeap))
}

// Len is part of heap.Interface.
func (d deadlines) Len() int { return len(d) }

// Less is part of heap.Interface.
func (d deadlines) Less(i, j int) bool { return d[i].deadline < d[j].deadline }

// Swap is part of heap.Interface.
func (d deadlines) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].inHeap, d[j].inHeap = int32(i), int32(j)
}

// Push is part of heap.Interface.
func (d *deadlines) Push(x any) {
	r := x.(*entry)
	r.inHeap = int32(len(*d))
	*d = append(*d, r)
}

// Pop is part of heap.Interface.
func (d *deadlines) Pop() any {
	old := *d
	r := old[len(old)-1]
	old[len(old)-1] = nil
	*d = old[:len(old)-1]
	return r
}
