package affinity_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/select-service/select-service/internal/selection/affinity"
	"github.com/select-service/select-service/pkg/catalog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ttl = 10 * time.Second

func key(session string) affinity.Key {
	return affinity.Key{Scope: catalog.Scope{Model: "m", Tenant: "t"}, Session: session}
}

func rank(worker uint64) catalog.Rank { return catalog.Rank{Worker: worker, DP: 2} }

// rig is a table on the clock of a synctest bubble.
type rig struct {
	*affinity.Table
	t *testing.T
}

// play runs a test with a table of at most max sessions.
func play(t *testing.T, max int, test func(*rig)) {
	synctest.Test(t, func(t *testing.T) {
		test(&rig{affinity.New(ttl, max, time.Now), t})
	})
}

func (r *rig) acquire(session string) *affinity.Claim {
	r.t.Helper()
	h, err := r.Acquire(r.t.Context(), key(session))
	if err != nil || h == nil {
		r.t.Fatalf("Acquire(%s): %v, %v", session, h, err)
	}
	return h
}

// want checks what a session is bound to; 0 is nothing.
func (r *rig) want(session string, worker uint64) {
	r.t.Helper()
	if got, _ := r.Lookup(key(session)); got.Worker != worker {
		r.t.Errorf("%s is bound to %d, want %d", session, got.Worker, worker)
	}
}

func (r *rig) wantClaim(h *affinity.Claim, worker uint64) {
	r.t.Helper()
	if got, bound := h.Rank(); got.Worker != worker || bound != (worker != 0) {
		r.t.Errorf("the claim is of %d (%t), want %d", got.Worker, bound, worker)
	}
}

func (r *rig) wantLen(n int) {
	r.t.Helper()
	if got := r.Len(); got != n {
		r.t.Errorf("%d sessions, want %d", got, n)
	}
}

// waiter is an Acquire on its way.
type waiter struct {
	claim  *affinity.Claim
	err    error
	done   bool
	cancel context.CancelFunc
}

// wait begins an Acquire that cannot come to its end yet.
func (r *rig) wait(session string) *waiter {
	r.t.Helper()
	w := r.begin(session)
	if w.done {
		r.t.Fatalf("Acquire(%s) did not wait", session)
	}
	return w
}

func (r *rig) begin(session string) *waiter { return r.crowd(session, 1)[0] }

// crowd begins n Acquires at once.
func (r *rig) crowd(session string, n int) []*waiter {
	all := make([]*waiter, n)
	for i := range all {
		ctx, cancel := context.WithCancel(r.t.Context())
		w := &waiter{cancel: cancel}
		all[i] = w
		go func() {
			w.claim, w.err = r.Acquire(ctx, key(session))
			w.done = true
		}()
	}
	synctest.Wait()
	return all
}

// come checks that a wait is over and returns the claim.
func (r *rig) come(w *waiter) *affinity.Claim {
	r.t.Helper()
	synctest.Wait()
	if !w.done || w.err != nil || w.claim == nil {
		r.t.Fatalf("done %t, %v, %v", w.done, w.claim, w.err)
	}
	return w.claim
}

// TestBinding: the first request decides, later ones follow it, and the time for
// which the session is kept begins when the last of them ends.
func TestBinding(t *testing.T) {
	play(t, 10, func(r *rig) {
		first := r.acquire("a")
		r.wantClaim(first, 0)
		r.want("a", 0)
		first.Bind(rank(1))
		r.wantClaim(first, 1)
		r.want("a", 1)
		r.want("b", 0)
		time.Sleep(100 * ttl) // a reservation may live as long as it likes
		r.Sweep()
		second := r.acquire("a")
		r.wantClaim(second, 1)
		second.Bind(rank(7)) // of no account: it is for the table to say
		r.wantClaim(second, 1)
		first.Release()
		time.Sleep(2 * ttl)
		r.want("a", 1)
		second.Release()
		second.Release()
		first.Release()
		time.Sleep(ttl - 1)
		r.want("a", 1)
		third := r.acquire("a")
		r.wantClaim(third, 1)
		third.Release() // begins the time again, although nothing was booked
		time.Sleep(ttl - 1)
		r.want("a", 1) // does not
		time.Sleep(time.Nanosecond)
		r.want("a", 0)
		r.wantClaim(r.acquire("a"), 0)
	})
}

// TestScopes: the same session name in another scope is another session.
func TestScopes(t *testing.T) {
	play(t, 10, func(r *rig) {
		r.acquire("a").Bind(rank(1))
		other := affinity.Key{Scope: catalog.Scope{Model: "m"}, Session: "a"}
		if _, bound := r.Lookup(other); bound {
			t.Error("bound in another scope")
		}
		h, err := r.Acquire(r.t.Context(), other)
		if err != nil {
			t.Fatal(err)
		}
		r.wantClaim(h, 0)
	})
}

// TestFirstRequests: those that come while the first one decides wait; then all
// follow it.
func TestFirstRequests(t *testing.T) {
	play(t, 10, func(r *rig) {
		first := r.acquire("a")
		a, b := r.wait("a"), r.wait("a")
		first.Bind(rank(1))
		r.wantClaim(r.come(a), 1)
		r.wantClaim(r.come(b), 1)
		first.Release()
		a.claim.Release()
		time.Sleep(2 * ttl)
		r.Sweep()
		r.want("a", 1) // b uses it
		b.claim.Release()
		time.Sleep(ttl)
		r.Sweep()
		r.wantLen(0)
	})
}

// TestFirstFails: if the first request books nothing the next one decides, in
// the order in which they came; without one nothing is left.
func TestFirstFails(t *testing.T) {
	play(t, 10, func(r *rig) {
		first := r.acquire("a")
		a, b, c := r.wait("a"), r.wait("a"), r.wait("a")
		first.Release()
		r.wantClaim(r.come(a), 0)
		if b.done || c.done {
			t.Fatal("several decide")
		}
		b.cancel()
		synctest.Wait()
		if !b.done || !errors.Is(b.err, context.Canceled) || b.claim != nil {
			t.Fatalf("cancelled: %v, %v", b.claim, b.err)
		}
		a.claim.Release()
		r.wantClaim(r.come(c), 0)
		c.claim.Release()
		r.wantLen(0)
	})
}

// TestCancelled: a context that has ended does not keep a request from a session
// that it need not wait for, and a wait that ends takes nothing along.
func TestCancelled(t *testing.T) {
	play(t, 10, func(r *rig) {
		ended, cancel := context.WithCancel(r.t.Context())
		cancel()
		first, err := r.Acquire(ended, key("a"))
		if err != nil {
			t.Fatal(err)
		}
		if h, err := r.Acquire(ended, key("a")); h != nil || !errors.Is(err, context.Canceled) {
			t.Errorf("%v, %v", h, err)
		}
		first.Bind(rank(1))
		first.Release()
		time.Sleep(ttl)
		r.Sweep()
		r.wantLen(0)
	})
}

// TestCancelledLate: a context that ends just when the wait does takes the use
// of the session along, or the decision, whichever the wait has ended in.
func TestCancelledLate(t *testing.T) {
	play(t, 1, func(r *rig) {
		for i := range 40 {
			first := r.acquire("a")
			w := r.wait("a")
			if i%2 == 0 {
				first.Bind(rank(1))
			}
			first.Release()
			w.cancel()
			synctest.Wait()
			w.claim.Release()
			time.Sleep(ttl)
			r.Sweep()
			r.wantLen(0)
		}
	})
}

// TestDrop: one of several claims finds the rank of no use. It decides again,
// others that find the same wait for no one, and what ends of the old binding
// does not touch the new one.
func TestDrop(t *testing.T) {
	play(t, 10, func(r *rig) {
		old := r.acquire("a")
		old.Bind(rank(1))
		x, y, z := r.acquire("a"), r.acquire("a"), r.acquire("a")
		x.Drop()
		r.wantClaim(x, 0)
		r.want("a", 0)
		late := r.wait("a")
		y.Drop()
		r.wantClaim(y, 0)
		y.Bind(rank(2)) // comes first, so it decides
		r.wantClaim(r.come(late), 2)
		x.Bind(rank(3))
		r.wantClaim(x, 0) // its reservation is of no session
		r.want("a", 2)
		z.Drop() // finds another rank than the one it was of
		r.wantClaim(z, 2)
		for _, h := range []*affinity.Claim{old, x, y, late.claim} {
			h.Release()
		}
		time.Sleep(2 * ttl)
		r.want("a", 2)
		z.Release()
		z.Drop() // a released claim does nothing
		z.Bind(rank(9))
		r.wantClaim(z, 0)
		r.want("a", 2)
		time.Sleep(ttl)
		r.want("a", 0)
		r.wantLen(0)
	})
}

// TestDropThenFail: a request that drops a binding and books nothing leaves none.
func TestDropThenFail(t *testing.T) {
	play(t, 1, func(r *rig) {
		x := r.acquire("a")
		x.Bind(rank(1))
		y := r.acquire("a")
		x.Drop()
		x.Release()
		r.wantLen(0)
		y.Drop()
		r.wantClaim(y, 0)
		y.Bind(rank(2))
		r.want("a", 2)

		z := r.acquire("a")
		y.Drop()
		y.Release()
		full := r.acquire("b")
		z.Drop() // no room for a session
		z.Bind(rank(3))
		r.want("a", 0)
		z.Release()
		full.Release()
		r.wantLen(0)
	})
}

// TestFull: a full table steers no new session, until one has expired.
func TestFull(t *testing.T) {
	play(t, 2, func(r *rig) {
		a := r.acquire("a")
		a.Bind(rank(1))
		r.acquire("b").Bind(rank(2))
		for range 2 {
			h, err := r.Acquire(r.t.Context(), key("c"))
			if h != nil || err != nil {
				t.Fatalf("%v, %v", h, err)
			}
		}
		r.acquire("a").Release()
		a.Release()
		time.Sleep(ttl)
		c := r.acquire("c") // without a Sweep
		r.wantClaim(c, 0)
		r.wantLen(2)
		c.Bind(rank(3))
	})
}

// TestTooManyWait: those who wait are bounded, for one session and in all; who
// comes then is not steered. A wait that ends, in whichever way, makes room.
func TestTooManyWait(t *testing.T) {
	const all, each = 40, 8
	play(t, all, func(r *rig) {
		r.LimitWaiting(all, each)
		r.wantWaiting(0)
		var first []*affinity.Claim
		var waiting []*waiter
		for i := range all / each {
			name := fmt.Sprint("s", i)
			first = append(first, r.acquire(name))
			waiting = append(waiting, r.crowd(name, each)...)
			r.wantWaiting((i + 1) * each)
			r.wantRefused(name)
		}
		other := r.acquire("one more") // no one is in its way
		r.wantRefused("one more")
		waiting[0].cancel()
		synctest.Wait()
		r.wantWaiting(all - 1)
		late := r.wait("one more")
		r.wantRefused("s0")
		other.Bind(rank(1))
		r.wantClaim(r.come(late), 1)
		r.wantWaiting(all - 1)
		first[1].Release() // the next one decides
		r.wantWaiting(all - 2)
		first[2].Bind(rank(1))
		r.wantWaiting(all - 2 - each)
		first[3].Bind(rank(1))
		r.wantWaiting(all - 2 - 2*each)
		for _, w := range waiting {
			w.cancel()
		}
		synctest.Wait()
		r.wantWaiting(0)
	})
}

// wantRefused checks that no one else can wait for a session.
func (r *rig) wantRefused(session string) {
	r.t.Helper()
	if w := r.begin(session); !w.done || w.claim != nil || w.err != nil {
		r.t.Errorf("%s: done %t, %v, %v", session, w.done, w.claim, w.err)
	}
}

func (r *rig) wantWaiting(n int) {
	r.t.Helper()
	if got := r.Waiting(); got != n {
		r.t.Errorf("%d wait, want %d", got, n)
	}
}

// TestNil: a request without a session need not ask whether it has one.
func TestNil(t *testing.T) {
	var h *affinity.Claim
	h.Drop()
	h.Bind(rank(1))
	if _, bound := h.Rank(); bound {
		t.Error("bound")
	}
	h.Release()
}

// TestCrowd: many requests of few sessions at once, some of which fail, are
// given up or drop what they find. When all have ended, nothing is left that
// does not expire; under the race detector it shows the locking.
func TestCrowd(t *testing.T) {
	play(t, 3, func(r *rig) {
		var wg sync.WaitGroup
		for i := range 400 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(r.t.Context(), time.Duration(i%7+1)*time.Millisecond)
				defer cancel()
				k := key(fmt.Sprint(i % 5))
				h, err := r.Acquire(ctx, k)
				if err != nil {
					return
				}
				time.Sleep(time.Duration(i%3) * time.Millisecond)
				switch _, bound := h.Rank(); {
				case bound && i%6 == 0:
					h.Drop()
					h.Bind(rank(uint64(i)))
				case !bound && i%2 == 0:
					h.Bind(rank(uint64(i)))
				}
				h.Release()
			})
		}
		wg.Wait()
		time.Sleep(ttl)
		r.Sweep()
		r.wantLen(0)
	})
}

// TestFullTable: sessions for which a full table has no room are counted, and those that make room for others.
func TestFullTable(t *testing.T) {
	at := func(n int) affinity.Key { return affinity.Key{Session: fmt.Sprint(n)} }
	full := func(t *testing.T, table *affinity.Table, displaced, refused uint64) {
		t.Helper()
		if d, r := table.Full(); d != displaced || r != refused {
			t.Errorf("%d displaced, %d refused; want %d and %d", d, r, displaced, refused)
		}
	}
	t.Run("bindings stay", func(t *testing.T) {
		table := affinity.New(time.Hour, 2, time.Now)
		for n := range 5 {
			c, _ := table.Claim(at(n))
			c.Bind(catalog.Rank{})
			c.Release()
		}
		full(t, table, 0, 3)
	})
	t.Run("homes make room", func(t *testing.T) {
		table := affinity.New(time.Hour, 2, time.Now)
		table.KeepHomes(time.Hour)
		for n := range 5 {
			table.Settle(at(n), catalog.Rank{}, affinity.Turn{})
		}
		full(t, table, 3, 0)
	})
	t.Run("no memory", func(t *testing.T) {
		table := affinity.New(time.Hour, 2, time.Now)
		table.LimitBytes(1)
		table.KeepHomes(time.Hour)
		table.Settle(at(1), catalog.Rank{}, affinity.Turn{})
		full(t, table, 0, 1)
	})
}
