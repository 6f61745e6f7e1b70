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
	// pastTurn: a number that was seen so long ago counts as ended. Twice the
	// lifetime, as an event may have been under way for long.
	pastTurn = 2 * lifetime
)

// pasts is what a ledger remembers of the bookings with sequence numbers that
// are not live, by the process that accepted them. Of the own process it needs
// no memory.
type pasts struct {
	own uint64

	// mu guards the fields below. It is an innermost lock.
	mu sync.Mutex
	of map[uint64]*past // at most maxPasts, the own process not among them
}

// past is what is remembered of one process's numbers.
type past struct {
	floor uint64 // all numbers up to it count as ended
	high  uint64 // highest number seen
	// Of numbers above floor: ended, or naming no booking; dropped with their
	// rank; prefill complete. A number may be in several.
	ended, dropped, completed bitmap

	live  int           // bookings in the ledger
	heard time.Duration // when something came from it last
	// At turned, turn was the highest number seen.
	turn   uint64
	turned time.Duration
}

func newPast(at time.Duration) *past {
	return &past{ended: make(bitmap), dropped: make(bitmap), completed: make(bitmap), turned: at}
}

func newPasts(own uint64) *pasts {
	return &pasts{own: own, of: make(map[uint64]*past)}
}

// admit decides whether a booking of another process may come to life, and
// counts it as live if so (Applied). completed says that its prefill is known to
// be complete.
func (p *pasts) admit(o Origin, at time.Duration) (v Verdict, completed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.get(o.Process, at)
	switch {
	case x == nil:
		return Full, false
	case x.hasEnded(o.Sequence) || x.dropped.has(o.Sequence):
		return Ended, false
	}
	x.see(o.Sequence)
	x.live++
	return Applied, x.completed.has(o.Sequence)
}

// leave notes that a live booking is live no more.
func (p *pasts) leave(o Origin, dropped bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.of[o.Process] // is there, as live bookings keep it
	x.live--
	if dropped {
		x.see(o.Sequence)
		x.dropped.set(o.Sequence)
		return
	}
	x.end(o.Sequence)
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

// endRanges notes ends of bookings of a process, in ascending ranges, and
// returns how many of its bookings are live, for the own process at least one.
func (p *pasts) endRanges(process uint64, ended []Range, at time.Duration) (live int) {
	if process == p.own {
		return 1
	}
	const perLock = 1024
	for part := range slices.Chunk(ended, perLock) {
		live = p.endSome(process, part, at)
	}
	return live
}

func (p *pasts) endSome(process uint64, ended []Range, at time.Duration) (live int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.get(process, at)
	if x == nil {
		return 0
	}
	for _, r := range ended {
		x.endRange(r)
	}
	return x.live
}

// ranges returns the ended numbers of the other processes.
func (p *pasts) ranges() map[uint64][]Range {
	p.mu.Lock()
	processes := make([]uint64, 0, len(p.of))
	for process := range p.of {
		processes = append(processes, process)
	}
	p.mu.Unlock()
	out := make(map[uint64][]Range, len(processes))
	for _, process := range processes {
		if floor, ended := p.copyEnded(process); floor > 0 || len(ended) > 0 {
			out[process] = ended.appendRanges(appendRange(nil, Range{1, floor}), floor)
		}
	}
	return out
}

func (p *pasts) copyEnded(process uint64) (floor uint64, ended bitmap) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.of[process]
	if x == nil {
		return 0, nil
	}
	return x.floor, x.ended.clone()
}

// forget ends all numbers that are too old to matter.
func (p *pasts) forget(at time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, x := range p.of {
		if at-x.turned >= pastTurn {
			x.raise(x.turn)
			x.turn, x.turned = x.high, at
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

func (x *past) end(n uint64) { x.endRange(Range{n, n}) }

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
		x.raise(x.high - pastWindow)
	}
}

func (x *past) raise(floor uint64) {
	if floor <= x.floor {
		return
	}
	old := x.floor
	x.floor = floor
	if floor>>pageShift != old>>pageShift {
		for _, b := range []bitmap{x.ended, x.dropped, x.completed} {
			b.prune(floor)
		}
	}
}
