package selection_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/affinity"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/pkg/catalog"
)

// TestWorkersChangeDuringWait: who waited for the session's first request sees the
// workers of the moment at which it goes on. Here worker 2 comes, where the first
// one is booked.
func TestWorkersChangeDuringWait(t *testing.T) {
	for name, tt := range map[string]struct {
		capacity uint64 // of worker 2
		spoil    func(w *world)
	}{
		"and is free still":           {1000, func(*world) {}},
		"and the old one gets free":   {1, func(w *world) { _ = w.Free("burden") }},
		"and is the only one by then": {1000, func(w *world) { w.Remove(1) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, eventsOff, queueing(1), sessions)
				w.Put(record(1, 1, func(r *catalog.Record) { r.MaxNumBatchedTokens = new(uint64(10)) }))
				w.Book("burden", prompt(1000, 80))
				a, b := w.call("a", prompt(1, 8), of("s")), w.call("b", prompt(2, 8), of("s"))
				if !a.waits() || !b.waits() {
					t.Fatal("the worker is busy")
				}
				w.Put(record(2, 1, func(r *catalog.Record) { r.MaxNumBatchedTokens = &tt.capacity }))
				tt.spoil(w)
				for name, c := range map[string]*call{"first": a, "second": b} {
					if got := c.served(t).Rank.Worker; got != 2 {
						t.Errorf("%s: worker %d, want 2", name, got)
					}
				}
				if got := w.where(of("s")); got != 2 {
					t.Errorf("the session is bound to %d", got)
				}
			})
		})
	}
}

// TestRetryBehindItsFirstTry: a request that is repeated while its first try, of
// the same session, waits gets that one's answer and leaves the session in order.
func TestRetryBehindItsFirstTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := busy(t, sessions)
		a, b := w.call("a", prompt(1, 8), of("s"), again), w.call("a", prompt(1, 8), of("s"), again)
		if err := w.Free("first"); err != nil {
			t.Fatal(err)
		}
		if a.served(t).Repeated || !b.served(t).Repeated {
			t.Errorf("repeated: %t, %t", a.sel.Repeated, b.sel.Repeated)
		}
		if err := w.Free("a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(sessionTTL + time.Second)
		if got := sum(w.Metrics()["remembered_entries"], "sessions"); got != 0 {
			t.Errorf("%v sessions are left", got)
		}
	})
}

// TestNewerRank: a session that was bound again, to a worker that came after the
// request's look at the catalog, is followed there.
func TestNewerRank(t *testing.T) {
	w := talk(t, limits(overload.Thresholds{PrefillTokens: new(uint64(50))})) // 1 is overloaded
	ctx := &hooked{Context: t.Context(), hook: func() {
		w.Put(record(3, 1))
		if sel, err := w.reserve("other", prompt(2, 8), of("s"), onWorkers(1, 3)); err != nil || sel.Rank.Worker != 3 {
			t.Errorf("the other one: %s, %v", sel.Rank, err)
		}
	}}
	sel, err := w.Select(ctx, named("r", of("s")), true)
	if err != nil || sel.Rank.Worker != 3 || w.where(of("s")) != 3 {
		t.Errorf("booked on %s, %v; the session is bound to %d", sel.Rank, err, w.where(of("s")))
	}
}

// TestPanicInSelection: a selection that panics does not keep its session from
// others. The panic comes where a caller's context is asked.
func TestPanicInSelection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, eventsOff, sessions)
		w.Put(record(1, 1))
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			_, _ = w.Select(&hooked{Context: t.Context(), hook: func() { panic("planted") }}, named("a", of("s")), true)
		}()
		w.call("b", prompt(7, 8), of("s")).served(t)
	})
}

// TestManyWaitForSession: requests that wait for a session's first request are
// bounded and shown; beyond that the queue has them, and its limits. A shutdown
// answers all of them.
func TestManyWaitForSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := busy(t, sessions)
		calls := make([]*call, 1+affinity.MaxSessionWaiting+3)
		for i := range calls {
			calls[i] = w.call(fmt.Sprint("c", i), prompt(uint32(i+1), 8), of("s"))
		}
		if got := sum(w.Metrics()["remembered_entries"], "session_waiters"); got != affinity.MaxSessionWaiting {
			t.Errorf("%v wait for the session, want %d", got, affinity.MaxSessionWaiting)
		}
		if n := w.Loads(nil, nil)[0].PendingCount; n != 1+3 {
			t.Errorf("%d in the queue, want the first and three who are not steered", n)
		}
		w.Close()
		synctest.Wait()
		for i, c := range calls {
			if c.waits() || c.err == nil {
				t.Fatalf("call %d: %v", i, c.err)
			}
		}
		if got := sum(w.Metrics()["remembered_entries"], "session_waiters"); got != 0 {
			t.Errorf("%v wait after the shutdown", got)
		}
	})
}

// hooked is a context that runs hook when it is first asked for its error: a
// selection does that once it is prepared.
type hooked struct {
	context.Context
	hook func()
}

func (h *hooked) Err() error {
	if hook := h.hook; hook != nil {
		h.hook = nil
		hook()
	}
	return h.Context.Err()
}

// named is a request that books under an id.
func named(id string, change ...func(*selection.SelectRequest)) *selection.SelectRequest {
	req := ask(prompt(7, 8))
	req.ReservationID = &id
	for _, f := range change {
		f(req)
	}
	return req
}

// replay starts to book a pending selection, and waits until that is answered or waits.
func (w *world) replay(id string, exists selection.IfExists) *call {
	w.T.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := &call{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		r, err := w.ReservePending(ctx, &selection.PendingRequest{
			Scope: scope, ID: id, Text: &c.text, IfExists: exists, Dialect: contract.V16,
		})
		c.sel.Rank, c.sel.Repeated, c.err = r.Rank, r.Repeated, err
	}()
	w.T.Cleanup(cancel)
	synctest.Wait()
	return c
}

// TestPendingWaits: a pending selection of worker 1 waits for a request that decides where its
// session is bound, and ends with that, with its caller and with the service. Meanwhile its id is
// in use.
func TestPendingWaits(t *testing.T) {
	const bound2 = "session q is bound to worker 2, not 1"
	for name, tt := range map[string]struct {
		binder uint64 // the worker that the session's first request waits for
		end    func(w *world, binder, replay *call)
		kind   contract.Kind // with text
		text   string        // "": it is booked
		bound  uint64        // the session's worker afterwards; 0: none
	}{
		"bound to the same":      {1, func(w *world, _, _ *call) { _ = w.Free("burden") }, 0, "", 1},
		"bound to another":       {2, func(w *world, _, _ *call) { _ = w.Free("burden") }, contract.BadRequest, bound2, 0},
		"given up":               {2, func(_ *world, b, _ *call) { b.cancel() }, 0, "", 1},
		"no worker to bind it":   {2, func(w *world, _, _ *call) { w.Remove(2) }, 0, "", 1},
		"its worker leaves":      {1, func(w *world, _, _ *call) { w.Remove(1) }, contract.NotFound, "schedulable worker 1 (dp_rank 0) not found for model=m tenant=t", 0},
		"its caller leaves":      {2, func(_ *world, _, r *call) { r.cancel() }, contract.Cancelled, "the client went away", 0},
		"the service ends":       {2, func(w *world, _, _ *call) { w.Close() }, contract.Unavailable, contract.ErrShuttingDown.Error(), 0},
		"it is too old by then":  {1, func(w *world, _, _ *call) { time.Sleep(130 * time.Second); _ = w.Free("burden") }, 0, "", 1},
		"selected again by then": {1, func(w *world, _, _ *call) { w.selectPending("s1", prompt(5, 8), onWorkers(3)); _ = w.Free("burden") }, 0, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, eventsOff, sessions, keeping, queueing(0))
				for id := range uint64(3) {
					w.Put(record(id+1, 1))
				}
				w.selectPending("s1", prompt(1, 8), of("q"), onWorkers(1))
				if err := w.attempt("burden", prompt(2, 80), onWorkers(tt.binder), leased(time.Hour)); err != nil {
					t.Fatal(err)
				}
				binder := w.call("binder", prompt(3, 8), of("q"), onWorkers(tt.binder))
				replay := w.replay("s1", selection.Refuse)
				if !binder.waits() || !replay.waits() || replay.text.released.Load() == 0 {
					t.Fatalf("waiting: %t, %t (%v)", binder.waits(), replay.waits(), replay.err)
				}
				wantError(t, w.replay("s1", selection.Refuse).err, contract.Conflict, "Request s1 is being booked")
				tt.end(w, binder, replay)
				synctest.Wait()
				switch {
				case replay.waits():
					t.Fatal("it waits still")
				case tt.text != "":
					wantError(t, replay.err, tt.kind, tt.text)
				case replay.served(t).Rank.Worker != 1:
					t.Errorf("booked on %s", replay.sel.Rank)
				}
				if name == "the service ends" {
					return
				}
				binder.cancel()
				synctest.Wait()
				_, err := w.reserve("probe", prompt(4, 8), of("q"), onWorkers(3))
				if tt.bound != 0 {
					wantError(t, err, contract.BadRequest, fmt.Sprintf("session q is bound to worker %d, not 3", tt.bound))
				} else if err != nil {
					t.Error(err)
				}
				time.Sleep(10 * time.Minute) // all leases have ended
				if m := w.Metrics()["remembered_entries"]; sum(m, "sessions") != 0 || sum(m, "session_waiters") != 0 {
					t.Errorf("%v sessions are left, %v wait", sum(m, "sessions"), sum(m, "session_waiters"))
				}
			})
		})
	}
}

// TestPendingRetryWaits: of a request and its retry, which wait for one session, one books the
// selection and the other gets its answer.
func TestPendingRetryWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, eventsOff, sessions, keeping, queueing(0))
		w.Put(record(1, 1))
		w.selectPending("s1", prompt(1, 8), of("q"))
		if err := w.attempt("burden", prompt(2, 80)); err != nil {
			t.Fatal(err)
		}
		binder := w.call("binder", prompt(3, 8), of("q"))
		first, retry := w.replay("s1", selection.ReturnFirst), w.replay("s1", selection.ReturnFirst)
		if !binder.waits() || !first.waits() || !retry.waits() {
			t.Fatal("the worker is busy")
		}
		if err := w.Free("burden"); err != nil {
			t.Fatal(err)
		}
		binder.served(t)
		if first.served(t).Repeated == retry.served(t).Repeated {
			t.Errorf("repeated: %t, %t", first.sel.Repeated, retry.sel.Repeated)
		}
		w.WantLoad("1/0: 16 4 2")
	})
}
