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
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestWorkersChangeDuringWait: who waited for the session's first request sees the
// workers of the moment at which it goes on. Here worker 2 comes, where the first
// one is booked.
func TestWorkersChangeDuringWait(t *testing.T) {
	for name, tt := range map[string]struct {
		capacity uint64 // of worker 2
		spoil    func(w *servicetest.World)
	}{
		"and is free still":           {1000, func(*servicetest.World) {}},
		"and the old one gets free":   {1, func(w *servicetest.World) { _ = w.Free("burden") }},
		"and is the only one by then": {1000, func(w *servicetest.World) { w.Remove(1) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := servicetest.Start(t, servicetest.EventsOff, servicetest.Queueing(1), sessions)
				w.Put(servicetest.Record(1, 1, func(r *catalog.Record) { r.MaxNumBatchedTokens = new(uint64(10)) }))
				w.Book("burden", servicetest.Prompt(1000, 80))
				a, b := startCall(w, "a", servicetest.Prompt(1, 8), of("s")), startCall(w, "b", servicetest.Prompt(2, 8), of("s"))
				if !a.waits() || !b.waits() {
					t.Fatal("the worker is busy")
				}
				w.Put(servicetest.Record(2, 1, func(r *catalog.Record) { r.MaxNumBatchedTokens = &tt.capacity }))
				tt.spoil(w)
				for name, c := range map[string]*call{"first": a, "second": b} {
					if got := c.served(t).Rank.Worker; got != 2 {
						t.Errorf("%s: worker %d, want 2", name, got)
					}
				}
				if got := where(w, of("s")); got != 2 {
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
		a, b := startCall(w, "a", servicetest.Prompt(1, 8), of("s"), again), startCall(w, "a", servicetest.Prompt(1, 8), of("s"), again)
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
		if got := servicetest.Sum(w.Metrics()["remembered_entries"], "sessions"); got != 0 {
			t.Errorf("%v sessions are left", got)
		}
	})
}

// TestNewerRank: a session that was bound again, to a worker that came after the
// request's look at the catalog, is followed there.
func TestNewerRank(t *testing.T) {
	w := talk(t, servicetest.Limits(overload.Thresholds{PrefillTokens: new(uint64(50))})) // 1 is overloaded
	ctx := &hooked{Context: t.Context(), hook: func() {
		w.Put(servicetest.Record(3, 1))
		if sel, err := reserve(w, "other", servicetest.Prompt(2, 8), of("s"), onWorkers(1, 3)); err != nil || sel.Rank.Worker != 3 {
			t.Errorf("the other one: %s, %v", sel.Rank, err)
		}
	}}
	sel, err := w.Select(ctx, named("r", of("s")), true)
	if err != nil || sel.Rank.Worker != 3 || where(w, of("s")) != 3 {
		t.Errorf("booked on %s, %v; the session is bound to %d", sel.Rank, err, where(w, of("s")))
	}
}

// TestPanicInSelection: a selection that panics does not keep its session from
// others. The panic comes where a caller's context is asked.
func TestPanicInSelection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, servicetest.EventsOff, sessions)
		w.Put(servicetest.Record(1, 1))
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			_, _ = w.Select(&hooked{Context: t.Context(), hook: func() { panic("planted") }}, named("a", of("s")), true)
		}()
		startCall(w, "b", servicetest.Prompt(7, 8), of("s")).served(t)
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
			calls[i] = startCall(w, fmt.Sprint("c", i), servicetest.Prompt(uint32(i+1), 8), of("s"))
		}
		if got := servicetest.Sum(w.Metrics()["remembered_entries"], "session_waiters"); got != affinity.MaxSessionWaiting {
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
		if got := servicetest.Sum(w.Metrics()["remembered_entries"], "session_waiters"); got != 0 {
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
	req := servicetest.Ask(servicetest.Prompt(7, 8))
	req.ReservationID = &id
	for _, f := range change {
		f(req)
	}
	return req
}

// replay starts to book a pending selection, and waits until that is answered or waits.
func replay(w *servicetest.World, id string, exists selection.IfExists) *call {
	w.T.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := &call{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		r, err := w.ReservePending(ctx, &selection.PendingRequest{
			Scope: servicetest.Scope, ID: id, Text: &c.text, IfExists: exists, Dialect: contract.V16,
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
		end    func(w *servicetest.World, binder, replay *call)
		kind   contract.Kind // with text
		text   string        // "": it is booked
		bound  uint64        // the session's worker afterwards; 0: none
	}{
		"bound to the same":     {1, func(w *servicetest.World, _, _ *call) { _ = w.Free("burden") }, 0, "", 1},
		"bound to another":      {2, func(w *servicetest.World, _, _ *call) { _ = w.Free("burden") }, contract.BadRequest, bound2, 0},
		"given up":              {2, func(_ *servicetest.World, b, _ *call) { b.cancel() }, 0, "", 1},
		"no worker to bind it":  {2, func(w *servicetest.World, _, _ *call) { w.Remove(2) }, 0, "", 1},
		"its worker leaves":     {1, func(w *servicetest.World, _, _ *call) { w.Remove(1) }, contract.NotFound, "schedulable worker 1 (dp_rank 0) not found for model=m tenant=t", 0},
		"its caller leaves":     {2, func(_ *servicetest.World, _, r *call) { r.cancel() }, contract.Cancelled, "the client went away", 0},
		"the service ends":      {2, func(w *servicetest.World, _, _ *call) { w.Close() }, contract.Unavailable, contract.ErrShuttingDown.Error(), 0},
		"it is too old by then": {1, func(w *servicetest.World, _, _ *call) { time.Sleep(130 * time.Second); _ = w.Free("burden") }, 0, "", 1},
		"selected again by then": {1, func(w *servicetest.World, _, _ *call) {
			selectPending(w, "s1", servicetest.Prompt(5, 8), onWorkers(3))
			_ = w.Free("burden")
		}, 0, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := servicetest.Start(t, servicetest.EventsOff, sessions, keeping, servicetest.Queueing(0))
				for id := range uint64(3) {
					w.Put(servicetest.Record(id+1, 1))
				}
				selectPending(w, "s1", servicetest.Prompt(1, 8), of("q"), onWorkers(1))
				if err := attempt(w, "burden", servicetest.Prompt(2, 80), onWorkers(tt.binder), leased(time.Hour)); err != nil {
					t.Fatal(err)
				}
				binder := startCall(w, "binder", servicetest.Prompt(3, 8), of("q"), onWorkers(tt.binder))
				booking := replay(w, "s1", selection.Refuse)
				if !binder.waits() || !booking.waits() || booking.text.released.Load() == 0 {
					t.Fatalf("waiting: %t, %t (%v)", binder.waits(), booking.waits(), booking.err)
				}
				servicetest.WantError(t, replay(w, "s1", selection.Refuse).err, contract.Conflict, "Request s1 is being booked")
				tt.end(w, binder, booking)
				synctest.Wait()
				switch {
				case booking.waits():
					t.Fatal("it waits still")
				case tt.text != "":
					servicetest.WantError(t, booking.err, tt.kind, tt.text)
				case booking.served(t).Rank.Worker != 1:
					t.Errorf("booked on %s", booking.sel.Rank)
				}
				if name == "the service ends" {
					return
				}
				binder.cancel()
				synctest.Wait()
				_, err := reserve(w, "probe", servicetest.Prompt(4, 8), of("q"), onWorkers(3))
				if tt.bound != 0 {
					servicetest.WantError(t, err, contract.BadRequest, fmt.Sprintf("session q is bound to worker %d, not 3", tt.bound))
				} else if err != nil {
					t.Error(err)
				}
				time.Sleep(10 * time.Minute) // all leases have ended
				if m := w.Metrics()["remembered_entries"]; servicetest.Sum(m, "sessions") != 0 || servicetest.Sum(m, "session_waiters") != 0 {
					t.Errorf("%v sessions are left, %v wait", servicetest.Sum(m, "sessions"), servicetest.Sum(m, "session_waiters"))
				}
			})
		})
	}
}

// TestPendingRetryWaits: of a request and its retry, which wait for one session, one books the
// selection and the other gets its answer.
func TestPendingRetryWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, servicetest.EventsOff, sessions, keeping, servicetest.Queueing(0))
		w.Put(servicetest.Record(1, 1))
		selectPending(w, "s1", servicetest.Prompt(1, 8), of("q"))
		if err := attempt(w, "burden", servicetest.Prompt(2, 80)); err != nil {
			t.Fatal(err)
		}
		binder := startCall(w, "binder", servicetest.Prompt(3, 8), of("q"))
		first, retry := replay(w, "s1", selection.ReturnFirst), replay(w, "s1", selection.ReturnFirst)
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
