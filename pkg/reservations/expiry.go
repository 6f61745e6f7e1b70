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
	// lifetime of a reservation without lease, from its acceptance, unless
	// SetLifetime sets another one; nothing renews it (dynamo-kv-router 1.3.1: 300 s).
	lifetime = 300 * time.Second
	// sweepPerBook is the maximum number of stale reservations that one Book ends; the
	// rest is left to the next calls and to Expire.
	sweepPerBook = 8
	// sweepPerLock is the maximum number that Expire ends under one hold of the lock.
	sweepPerLock = 64
	// trimEvery is the interval at which Expire gives spare memory of a scope back.
	trimEvery = 30 * time.Second
)

// Expire ends all reservations that are older than their lifetime, or whose lease
// has run out, and announces renewals that were postponed. next is the earliest time
// at which a further reservation may end, the zero time if there is none. Expire also
// gives back memory that is no longer needed. It is to be called from a timer, about
// every second. While nothing is due it only looks at each scope.
func (l *Ledger) Expire() (expired int, next time.Time) {
	at := l.at()
	expired, first := l.expire(at, true)
	l.numbered.Forget(at)
	l.named.Forget(at)
	l.unnumbered.Forget(at)
	l.expiredIDs.Forget(at)
	if first != never {
		next = l.start.Add(first + 1) // strictly older
	}
	return expired, next
}

// ExpireDue is Expire without giving memory back. It costs next to nothing before the
// next deadline. It is to be called every ExpireEvery if there are leases: the load of
// a reservation may outlive its deadline by that much, unless a call about the
// reservation ends it before.
func (l *Ledger) ExpireDue() (expired int) {
	if at := l.at(); l.soonest.get() <= at {
		expired, _ = l.expire(at, false)
	}
	return expired
}

// expire ends what is due in all scopes, and trims their memory if trim is set. It
// returns how many reservations have ended, and the earliest deadline of those that
// stay, or never.
func (l *Ledger) expire(at time.Duration, trim bool) (expired int, first time.Duration) {
	l.soonest.reset() // before the scopes are read: whatever is added later lowers it again
	first = never
	for _, s := range l.scopesFrom(0) {
		n, next := s.expireDue(at)
		expired += n
		first = min(first, next)
		l.soonest.lower(s.nextDue())
		if trim {
			s.trim(at)
		}
	}
	return expired, first
}

// earliest is a lower bound of a changing set of times. Its zero value is below all times.
type earliest struct{ at atomic.Int64 }

func (e *earliest) get() time.Duration { return time.Duration(e.at.Load()) }

func (e *earliest) reset() { e.at.Store(int64(never)) }

func (e *earliest) lower(at time.Duration) {
	for old := e.at.Load(); int64(at) < old && !e.at.CompareAndSwap(old, int64(at)); old = e.at.Load() {
	}
}

// ExpireIn ends all reservations of one scope whose time is over, for a caller that
// is about to decide by the loads: Book ends only a few. While nothing is due it only
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

// due reports whether a reservation is stale or a pending renewal can be announced.
// first is the earliest deadline, or never.
func (s *scope) due(at time.Duration) (due bool, first time.Duration) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	first = s.firstDeadline()
	return first < at || len(s.pendingRenewals) > 0 && s.pendingRenewals[0].lease.announceAt() <= at, first
}

// nextDue returns when the next reservation becomes stale or the next renewal can be
// announced, or never.
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

// expireAll ends all stale reservations and announces all renewals that are due, a
// few under each hold of the lock. first is the earliest deadline of those that
// stay, or never.
func (s *scope) expireAll(at time.Duration) (expired int, first time.Duration) {
	for more := true; more; {
		var n int
		var pending bool
		s.mu.Lock()
		n, more = s.expire(at, sweepPerLock)
		pending = s.announceDue(at, sweepPerLock)
		first = s.firstDeadline()
		s.mu.Unlock()
		expired += n
		more = more || pending
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

// expireOne ends a stale reservation. That a lease has run out is decided and announced
// by the process that granted it: another one may merely have missed a renewal.
func (s *scope) expireOne(r *entry, at time.Duration) {
	l := s.ledger
	own, leased := r.origin.Process == l.process, r.lease != nil
	why := history.Freed
	if leased && !own {
		why = history.LeaseExpired
	}
	s.end(r, why)
	l.counts.expired.Add(1)
	if own {
		l.expiredIDs.Add(r.expiredID(), at)
	}
	if own && leased {
		l.counts.leasesExpired.Add(1)
		l.obs.Freed(r.event())
	}
}

// sweep ends a few stale reservations before a new one is added. It needs s.mu.
func (s *scope) sweep(at time.Duration) { s.expire(at, sweepPerBook) }

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
