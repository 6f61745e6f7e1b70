package reservations

import (
	"math"
	"slices"
	"sync"
	"time"
)

const (
	// pastWindow is how many of a process's latest sequence numbers are told
	// apart; what is below counts as ended. 300 s at 20,000 events/s fit.
	pastWindow = 1 << 23
	// maxPasts bounds the processes, besides the own one, that are remembered.
	maxPasts = 256
	// pastTurn: a number that was seen so long ago counts as ended, for bookings
	// without lease. Twice the lifetime, as an event may have been under way for
	// long.
	pastTurn = 2 * lifetime
	// closedMargin is how much longer than a lease its end is remembered.
	closedMargin = time.Minute
)

// pasts is what a ledger remembers of the bookings with sequence numbers that
// are not live, by the process that accepted them. Of the own process it needs
// no memory.
type pasts struct {
	own uint64
	// turnEvery is pastTurn, or more for a longer lifetime; constant once in use.
	turnEvery time.Duration

	// mu guards the fields below. It is an innermost lock.
	mu sync.Mutex
	of map[uint64]*past // at most maxPasts, the own process not among them
}

// past is what is remembered of one process's numbers.
type past struct {
	floor uint64 // all numbers up to it count as ended
	// Of those up to assumed only by age: a booking with a lease may live.
	assumed uint64
	high    uint64 // highest number seen
	// Of numbers above floor: ended, or naming no booking; dropped with their
	// rank; prefill complete; lapsed, or said to have ended by one who may know of
	// no leases, so that a snapshot may bring a leased booking. A number may be in
	// several.
	ended, dropped, completed, lapsed bitmap
	closed                            closed

	live  int           // bookings in the ledger
	heard time.Duration // when something came from it last
	// At turned, turn was the highest number seen.
	turn   uint64
	turned time.Duration
	shed   time.Duration // when closed was looked through
}

func newPast(at time.Duration) *past {
	return &past{
		ended: make(bitmap), dropped: make(bitmap), completed: make(bitmap), lapsed: make(bitmap),
		closed: make(closed), turned: at, shed: at,
	}
}

func newPasts(own uint64) *pasts {
	return &pasts{own: own, turnEvery: pastTurn, of: make(map[uint64]*past)}
}

// admit decides whether a booking of another process may come to life, and
// counts it as live if so (Applied). renewed says that its lease is known to run.
// completed says that its prefill is known to be complete.
func (p *pasts) admit(o Origin, at time.Duration, renewed bool) (v ApplyResult, completed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.get(o.Process, at)
	switch {
	case x == nil:
		return Full, false
	case renewed && x.isClosed(o.Sequence):
		return Ended, false
	case !renewed && (x.hasEnded(o.Sequence) || x.dropped.has(o.Sequence) || x.lapsed.has(o.Sequence)):
		return Ended, false
	}
	x.see(o.Sequence)
	x.live++
	return Applied, x.completed.has(o.Sequence)
}

// leave notes that a live booking is live no more.
func (p *pasts) leave(o Origin, how endReason) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leaveLocked(o, how)
}

func (p *pasts) leaveLocked(o Origin, how endReason) *past {
	x := p.of[o.Process] // is there, as live bookings keep it
	x.live--
	x.see(o.Sequence)
	switch {
	case how == freed:
		x.end(o.Sequence)
	case o.Sequence <= x.floor:
	case how == rankRemoved:
		x.dropped.set(o.Sequence)
	case how == leaseExpired:
		x.lapsed.set(o.Sequence)
	}
	return x
}

// leaveLease is leave for a booking with a lease. If others may have it live when
// its number is too old for the window, its end is remembered by itself.
func (p *pasts) leaveLease(r *entry, how endReason, at time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x, n := p.leaveLocked(r.origin, how), r.origin.Sequence // under one lock: without live bookings it may be evicted
	if how == leaseExpired {
		if r.done && n > x.floor { // it may come back from one who has not heard of that
			x.completed.set(n)
		}
		return
	}
	keep := r.lease.length + slack(r.lease.length) + closedMargin
	if at-r.lease.accepted+keep > p.turnEvery-closedMargin {
		x.closed.put(n, closedLease{at + keep, how == freed})
	}
}

// missing is the verdict on a renewal of a booking that is not live.
func (p *pasts) missing(o Origin) ApplyResult {
	if o.Process == p.own {
		return Ended
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch x := p.of[o.Process]; {
	case x == nil && len(p.of) >= maxPasts:
		return Full
	case x != nil && x.isClosed(o.Sequence):
		return Ended
	}
	return UnknownID
}

// end notes the end of a booking, and that event is none. It reports whether the
// booking has ended before, unless it is live.
func (p *pasts) end(o, event Origin, at time.Duration) (before bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.skip(event, at)
	x := p.numbered(o, at)
	if x == nil {
		return o.Process == p.own
	}
	before = x.hasEnded(o.Sequence)
	x.end(o.Sequence)
	return before
}

// complete notes the completed prefill of a booking, and that event is none. It
// reports whether the booking has ended, unless it is live.
func (p *pasts) complete(o, event Origin, at time.Duration) (ended bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.skip(event, at)
	x := p.numbered(o, at)
	switch {
	case x == nil:
		return o.Process == p.own
	case x.hasEnded(o.Sequence):
		return true
	}
	x.see(o.Sequence)
	x.completed.set(o.Sequence)
	return false
}

// skip notes that a number names no booking.
func (p *pasts) skip(event Origin, at time.Duration) {
	if x := p.numbered(event, at); x != nil {
		x.end(event.Sequence)
	}
}

// merge notes ends of bookings of a process, in ascending ranges, and returns how
// many of its bookings are live, for the own process at least one.
func (p *pasts) merge(process uint64, e EndedSet, at time.Duration) (live int) {
	if process == p.own {
		return 1
	}
	const perLock = 1024
	for part := range slices.Chunk(e.Ranges, perLock) {
		live = p.mergeSome(process, at, func(x *past) {
			for _, r := range part {
				x.mergeRange(r, e.Assumed)
			}
		})
	}
	for part := range slices.Chunk(firstOf(e.Leases, maxClosed), perLock) {
		live = p.mergeSome(process, at, func(x *past) {
			for _, n := range part {
				x.close(n, at+p.turnEvery)
			}
		})
	}
	return live
}

func (p *pasts) mergeSome(process uint64, at time.Duration, f func(*past)) (live int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.get(process, at)
	if x == nil {
		return 0
	}
	f(x)
	return x.live
}

// ends returns the ended numbers of the other processes.
func (p *pasts) ends() map[uint64]EndedSet {
	p.mu.Lock()
	processes := make([]uint64, 0, len(p.of))
	for process := range p.of {
		processes = append(processes, process)
	}
	p.mu.Unlock()
	out := make(map[uint64]EndedSet, len(processes))
	for _, process := range processes {
		e, floor, ended := p.copyEnded(process)
		e.Ranges = ended.appendRanges(appendRange(nil, Range{1, floor}), floor)
		if len(e.Ranges) > 0 || len(e.Leases) > 0 {
			out[process] = e
		}
	}
	return out
}

// copyEnded leaves the ranges to the caller, who makes them without the lock.
func (p *pasts) copyEnded(process uint64) (e EndedSet, floor uint64, ended bitmap) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.of[process]
	if x == nil {
		return EndedSet{}, 0, nil
	}
	return EndedSet{Assumed: x.assumed, Leases: x.closed.ranges()}, x.floor, x.ended.clone()
}

// forget ends all numbers that are too old to matter.
func (p *pasts) forget(at time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, x := range p.of {
		if at-x.turned >= p.turnEvery {
			x.assume(x.turn)
			x.turn, x.turned = x.high, at
		}
		if at-x.shed >= trimEvery {
			x.closed.forget(at)
			x.shed = at
		}
	}
}

// numbered is get for another process that numbers its bookings, else nil.
func (p *pasts) numbered(o Origin, at time.Duration) *past {
	if !o.counts() || o.Process == p.own {
		return nil
	}
	return p.get(o.Process, at)
}

// get returns the past of a process. A new one takes the place of the one that
// has no live booking and was heard of longest ago; nil if there is none.
func (p *pasts) get(process uint64, at time.Duration) *past {
	x := p.of[process]
	if x == nil {
		if len(p.of) >= maxPasts && !p.evict() {
			return nil
		}
		x = newPast(at)
		p.of[process] = x
	}
	x.heard = at
	return x
}

func (p *pasts) evict() bool {
	var victim uint64
	var oldest *past
	for process, x := range p.of {
		if x.live == 0 && (oldest == nil || x.heard < oldest.heard) {
			victim, oldest = process, x
		}
	}
	if oldest == nil {
		return false
	}
	delete(p.of, victim)
	return true
}

// hasEnded: the last number of all never names a booking, so that no sum below
// overflows.
func (x *past) hasEnded(n uint64) bool {
	return n <= x.floor || n == math.MaxUint64 || x.ended.has(n)
}

// isClosed is hasEnded for a booking whose lease runs as far as is known.
func (x *past) isClosed(n uint64) bool {
	_, long := x.closed[n]
	return long || n > x.assumed && x.hasEnded(n) || x.dropped.has(n)
}

func (x *past) end(n uint64) { x.endRange(Range{n, n}) }

// mergeRange ends a range of which the numbers up to assumed may be those of
// bookings with a lease.
func (x *past) mergeRange(r Range, assumed uint64) {
	if r.From <= assumed {
		guess := Range{r.From, min(r.To, assumed, math.MaxUint64-1)}
		x.see(guess.To)
		switch from := max(guess.From, x.floor+1); {
		case guess.From == 1:
			x.assume(guess.To)
		case from <= guess.To:
			x.lapsed.setRange(from, guess.To)
		}
		if r.To <= assumed {
			return
		}
		r.From = assumed + 1
	}
	x.endRange(r)
}

// close remembers the end of a long lease that another replica tells of. It goes
// on telling of it, so that is not passed on.
func (x *past) close(n uint64, until time.Duration) {
	if _, known := x.closed[n]; !known {
		x.closed.put(n, closedLease{until: until})
	}
}

func (x *past) endRange(r Range) {
	r.To = min(r.To, math.MaxUint64-1)
	x.see(r.To)
	switch from := max(r.From, x.floor+1); {
	case from > r.To:
	case from == x.floor+1:
		x.raise(r.To)
	default: // no wider than the window
		x.ended.setRange(from, r.To)
	}
}

// see moves the window.
func (x *past) see(n uint64) {
	x.high = max(x.high, n)
	if x.high > pastWindow {
		x.assume(x.high - pastWindow)
	}
}

// assume ends all numbers up to n but those of leased bookings.
func (x *past) assume(n uint64) {
	x.assumed = max(x.assumed, n)
	x.raise(n)
}

func (x *past) raise(floor uint64) {
	if floor <= x.floor {
		return
	}
	old := x.floor
	x.floor = floor
	if floor>>pageShift != old>>pageShift {
		for _, b := range []bitmap{x.ended, x.dropped, x.completed, x.lapsed} {
			b.prune(floor)
		}
	}
}
