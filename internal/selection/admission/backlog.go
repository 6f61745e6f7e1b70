package admission

import (
	"math"
	"math/bits"

	"github.com/select-service/select-service/internal/selection/fairness"
)

// backlog has the waiters of one class.
//
// Waiters of the same lane can use the same ranks, so either the first of them can run or none
// of them: canRun is called once for a lane, however long it is. Lanes are ordered by their
// first waiter, and so is the class.
type backlog struct {
	class   *Class
	fair    *fairness.Class // nil: the waiters of a lane go in the order of the class
	lanes   map[Lane]*lane
	order   heap[*lane]
	waiting int
	raw     total
	cached  total

	deficit uint64 // tokens that the class may still serve; 0 when the class is empty

	frontier heap[step] // scratch memory of first
}

// lane has the waiters of one class that can use the same ranks; it is never empty.
type lane struct {
	turns
	key   Lane
	place int // in backlog.order
}

func (l *lane) before(o *lane) bool { return l.beforeOther(&o.turns) }
func (l *lane) moved(place int)     { l.place = place }

func (b *backlog) add(w *Waiter, now float64) {
	l := b.lanes[w.Lane]
	if l == nil {
		l = &lane{key: w.Lane}
		b.lanes[w.Lane] = l
		l.add(w, b.fair, now)
		b.order.push(l)
	} else {
		l.add(w, b.fair, now)
		b.order.fix(l.place)
	}
	w.lane = l
	b.waiting++
	b.raw.add(w.Tokens)
	b.cached.add(w.cached())
}

func (b *backlog) remove(w *Waiter) {
	l := w.lane
	l.remove(w)
	if l.empty() {
		b.order.remove(l.place)
		delete(b.lanes, l.key)
	} else {
		b.order.fix(l.place)
	}
	w.lane = nil
	b.waiting--
	b.raw.sub(w.Tokens)
	b.cached.sub(w.cached())
	if b.waiting == 0 {
		b.deficit = 0
	}
}

// fix restores the order after the place of a waiter in its line has changed.
func (b *backlog) fix(w *Waiter) {
	w.lane.fix(w)
	b.order.fix(w.lane.place)
}

// first returns the first waiter that can run, nil if none can. It asks the
// first waiter of each lane, in order, until one can run.
func (b *backlog) first(canRun func(*Waiter) bool) *Waiter {
	if len(b.order) == 0 {
		return nil
	}
	if w := b.order[0].first(); canRun(w) {
		return w // by far the most frequent case
	}
	// Walk the heap in order: of the lanes not yet asked, the first one is a
	// child of one that was.
	defer b.forget()
	b.expand(0)
	for len(b.frontier) > 0 {
		l := b.frontier.remove(0).lane
		if w := l.first(); canRun(w) {
			return w
		}
		b.expand(l.place)
	}
	return nil
}

// expand puts the children of a place of the order onto the frontier.
func (b *backlog) expand(place int) {
	for child := 2*place + 1; child <= 2*place+2 && child < len(b.order); child++ {
		b.frontier.push(step{b.order[child]})
	}
}

// forget drops the frontier's references but keeps its memory.
func (b *backlog) forget() {
	clear(b.frontier)
	b.frontier = b.frontier[:0]
}

// step is a lane on the frontier of a walk; its place in the order stays.
type step struct{ *lane }

func (s step) before(o step) bool { return s.lane.before(o.lane) }
func (s step) moved(int)          {}

// total is an exact sum of uint64 values that can also be subtracted. Prompt lengths come from
// clients, so 64 bits could overflow.
type total struct {
	high, low uint64
}

func (t *total) add(v uint64) {
	var carry uint64
	t.low, carry = bits.Add64(t.low, v, 0)
	t.high += carry
}

func (t *total) sub(v uint64) {
	var borrow uint64
	t.low, borrow = bits.Sub64(t.low, v, 0)
	t.high -= borrow
}

// value returns the sum, at most the largest uint64.
func (t *total) value() uint64 {
	if t.high != 0 {
		return math.MaxUint64
	}
	return t.low
}

func addSaturating(a, b uint64) uint64 {
	if sum := a + b; sum >= a {
		return sum
	}
	return math.MaxUint64
}

func mulSaturating(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	if high != 0 {
		return math.MaxUint64
	}
	return low
}
