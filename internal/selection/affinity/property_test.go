package affinity_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// naive is a table of one session that thinks in bindings by number: a request
// is of a binding, decides the session, waits, or is of nothing.
type naive struct {
	now      time.Duration
	binding  int            // in force, 0: none
	worker   map[int]uint64 // of each binding
	idle     time.Duration  // since when binding is not used
	deciding *request
	waiting  []*request
	all      []*request
	made     int
}

type request struct {
	w       *waiter
	binding int // that it is of
	ended   bool
	from    uint64 // where the session stays if the request, which decides, books nothing; 0: nowhere
}

func (n *naive) expire() {
	if n.binding != 0 && n.uses(n.binding) == 0 && n.now-n.idle >= ttl {
		n.binding = 0
	}
}

func (n *naive) uses(binding int) (uses int) {
	for _, q := range n.all {
		if !q.ended && q.binding == binding {
			uses++
		}
	}
	return uses
}

// bind makes a binding of q and of all who wait.
func (n *naive) bind(q *request, worker uint64) {
	n.made++
	n.binding, n.worker[n.made], n.deciding = n.made, worker, nil
	q.binding = n.made
	for _, w := range n.waiting {
		w.binding = n.made
	}
	n.waiting = nil
}

func (n *naive) acquire(q *request) {
	n.expire()
	n.all = append(n.all, q)
	switch {
	case n.deciding != nil:
		n.waiting = append(n.waiting, q)
	case n.binding != 0:
		q.binding = n.binding
	default:
		n.deciding = q
	}
}

func (n *naive) end(q *request) {
	q.ended = true
	n.waiting = slices.DeleteFunc(n.waiting, func(w *request) bool { return w == q })
	switch {
	case n.deciding == q && q.from != 0:
		n.bind(&request{}, q.from)
		n.idle = n.now
	case n.deciding == q && len(n.waiting) > 0:
		n.deciding, n.waiting = n.waiting[0], n.waiting[1:]
	case n.deciding == q:
		n.deciding = nil
	case q.binding != 0 && q.binding == n.binding && n.uses(n.binding) == 0:
		n.idle = n.now
	}
}

func (n *naive) drop(q *request, moves bool) {
	n.expire()
	switch {
	case n.deciding == q:
	case n.binding != 0 && n.binding != q.binding:
		q.binding = n.binding
	case n.deciding != nil:
		q.binding = 0
	default:
		if q.from = 0; moves && n.binding != 0 {
			q.from = n.worker[n.binding]
		}
		q.binding, n.binding, n.deciding = 0, 0, q
	}
}

func (n *naive) book(q *request, worker uint64) {
	n.expire()
	switch {
	case n.deciding == q:
		n.bind(q, worker)
	case q.binding != 0:
	case n.binding != 0:
		if n.worker[n.binding] == worker {
			q.binding = n.binding
		}
	default:
		n.bind(q, worker)
	}
}

// last ends the session: who is of its binding stays so, and one that is being made stays.
func (n *naive) last() {
	n.expire()
	if n.binding = 0; n.deciding != nil {
		n.deciding.from = 0
	}
}

func (n *naive) holds(q *request) uint64 { return n.worker[q.binding] }

// TestAgainstNaive plays random histories of one session: who waits, who is
// steered where, and when the session is forgotten is the same after every step.
func TestAgainstNaive(t *testing.T) {
	for seed := range uint64(200) {
		play(t, 1, func(r *rig) { history(r, rand.New(rand.NewPCG(seed, 3)), seed) })
	}
}

func history(r *rig, rnd *rand.Rand, seed uint64) {
	begun := time.Now()
	model := &naive{worker: make(map[int]uint64)}
	var open []*request
	pick := func(waiting bool) *request {
		var some []*request
		for _, q := range open {
			if slices.Contains(model.waiting, q) == waiting {
				some = append(some, q)
			}
		}
		if len(some) == 0 {
			return nil
		}
		return some[rnd.IntN(len(some))]
	}
	finish := func(q *request) {
		model.end(q)
		open = slices.DeleteFunc(open, func(o *request) bool { return o == q })
	}
	for step := range 120 {
		what := ""
		switch op := rnd.IntN(10); op {
		case 0, 1, 2, 3:
			q := &request{}
			model.acquire(q)
			q.w = r.begin("s")
			open = append(open, q)
			what = "acquire"
		case 4:
			if q := pick(true); q != nil {
				finish(q)
				q.w.cancel()
				synctest.Wait()
				if !errors.Is(q.w.err, context.Canceled) {
					r.t.Fatalf("seed %d step %d: cancelled: %v", seed, step, q.w.err)
				}
				what = "cancel"
			}
		case 5:
			d := time.Duration(rnd.IntN(9)) * time.Second
			time.Sleep(d)
			model.now += d
			if rnd.IntN(2) == 0 {
				r.Sweep()
			}
			what = fmt.Sprint("pass ", d)
		case 9:
			model.last()
			r.End(key("s"))
			what = "end"
		default:
			q := pick(false)
			if q == nil {
				continue
			}
			worker := 1 + rnd.Uint64N(3)
			switch op {
			case 6:
				model.book(q, worker)
				q.w.claim.Bind(rank(worker))
				what = "bind"
			case 7:
				if moves := rnd.IntN(2) == 0; moves {
					q.w.claim.Move()
					model.drop(q, true)
				} else {
					q.w.claim.Drop()
					model.drop(q, false)
				}
				what = "drop"
			case 8:
				finish(q)
				q.w.claim.Release()
				what = "release"
			}
		}
		synctest.Wait()
		model.expire()
		if got, _ := r.Lookup(key("s")); got.Worker != model.worker[model.binding] {
			r.t.Fatalf("seed %d step %d (%s): bound to %d, want %d", seed, step, what, got.Worker, model.worker[model.binding])
		}
		for i, q := range open {
			if wait := slices.Contains(model.waiting, q); wait == q.w.done {
				r.t.Fatalf("seed %d step %d (%s): request %d waits: %t, want %t", seed, step, what, i, !q.w.done, wait)
			}
			if !q.w.done {
				continue
			}
			if got, bound := q.w.claim.Rank(); got.Worker != model.holds(q) || bound != (model.holds(q) != 0) {
				r.t.Fatalf("seed %d step %d (%s): request %d is of %d, want %d", seed, step, what, i, got.Worker, model.holds(q))
			}
		}
		if n, want := r.Waiting(), len(model.waiting); n != want {
			r.t.Fatalf("seed %d step %d (%s): %d wait, want %d", seed, step, what, n, want)
		}
		if n, want := r.Len(), min(1, model.binding)|btoi(model.deciding != nil); n != want {
			r.t.Fatalf("seed %d step %d (%s): %d sessions, want %d", seed, step, what, n, want)
		}
	}
	for len(open) > 0 {
		q := pick(false)
		finish(q)
		q.w.claim.Release()
		synctest.Wait()
	}
	time.Sleep(ttl)
	r.Sweep()
	r.wantLen(0)
	if time.Since(begun) != model.now+ttl {
		r.t.Errorf("seed %d: the clocks differ", seed)
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
