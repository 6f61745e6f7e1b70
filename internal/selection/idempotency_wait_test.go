package selection_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestRetryNeedNotWait: a retry that is queued is answered as soon as its id
// is booked, by whatever way, although the rank is busy from then on: it may be
// busy with just that reservation.
func TestRetryNeedNotWait(t *testing.T) {
	tokens := servicetest.Prompt(1, 8)
	book := map[string]func(t *testing.T, w *servicetest.World){
		"first try": func(_ *testing.T, w *servicetest.World) { _ = w.Free("first") },
		"reservations": func(t *testing.T, w *servicetest.World) {
			req := selection.ReserveRequest{Scope: servicetest.Scope, ID: "x", Rank: catalog.Rank{Worker: 1}, Prompt: servicetest.Ask(tokens).Prompt}
			if _, err := w.Reserve(&req); err != nil {
				t.Fatal(err)
			}
		},
		"pending selection": func(t *testing.T, w *servicetest.World) {
			if _, err := reservePending(w, "x"); err != nil {
				t.Fatal(err)
			}
		},
	}
	for name, book := range book {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := busy(t, keeping)
				if name == "pending selection" {
					req := servicetest.Ask(tokens)
					req.SelectionID, req.Pending, req.Advisory = new("x"), true, true
					if _, err := w.Select(context.Background(), req, false); err != nil {
						t.Fatal(err)
					}
				}
				var calls []*call
				if name == "first try" {
					calls = append(calls, startCall(w, "x", servicetest.Prompt(1, 8)))
				}
				for range 3 {
					calls = append(calls, startCall(w, "x", servicetest.Prompt(1, 8), again))
				}
				other := startCall(w, "y", servicetest.Prompt(2, 8), again)
				book(t, w)
				booked := 0
				for _, c := range calls {
					if sel := c.served(t); !sel.Repeated {
						booked++
					}
				}
				if want := map[bool]int{true: 1}[name == "first try"]; booked != want || !other.waits() {
					t.Errorf("%d booked, want %d; another id waits: %t", booked, want, other.waits())
				}
				other.cancel()
			})
		})
	}
}

// TestRetryLearnsOfReplica: a waiting retry is answered, too, when another
// replica has booked its id; a request that differs is refused then.
func TestRetryLearnsOfReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := servicetest.Pair(t, servicetest.Queueing(0))
		b.Book("first", servicetest.Prompt(1000, 8))
		same, differing := startCall(b, "x", servicetest.Prompt(1, 8), again), startCall(b, "x", servicetest.Prompt(2, 8), again)
		if !same.waits() || !differing.waits() {
			t.Fatal("no request waits")
		}
		a.Book("x", servicetest.Prompt(1, 8))
		time.Sleep(5 * time.Second)
		if sel := same.served(t); !sel.Repeated {
			t.Errorf("%+v", sel)
		}
		if differing.waits() {
			t.Fatal("the other one still waits")
		}
		servicetest.WantError(t, differing.err, contract.Conflict, takenText("x"))
	})
}

// TestRetryOutlivesFirstTry: a reservation that a retry was given stays, with its
// use of the session, although the caller of the first try goes away just when its
// turn has come.
func TestRetryOutlivesFirstTry(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // the first try is woken, but does not run
	abandoned := 0
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			w := busy(t, sessions)
			first := startCall(w, "x", servicetest.Prompt(1, 8), again, of("s"))
			if err := w.Free("first"); err != nil {
				t.Fatal(err)
			}
			sel, err := reserve(w, "x", servicetest.Prompt(1, 8), again, of("s"))
			if err != nil || !sel.Repeated {
				t.Fatalf("%+v, %v", sel, err)
			}
			first.cancel()
			synctest.Wait()
			if first.err != nil {
				abandoned++
			}
			time.Sleep(sessionTTL + 5*time.Second)
			if n := servicetest.Sum(w.Metrics()["remembered_entries"], "sessions"); n != 1 {
				t.Errorf("%v sessions, want the reservation's", n)
			}
			if err := w.Free("x"); err != nil {
				t.Error(err)
			}
		})
	}
	if abandoned == 0 {
		t.Error("no first try went away in time")
	}
}

// TestImpatientCallers: of many requests with one id, whose callers go away at any
// moment while the rank becomes free, those that are answered all have one
// reservation, which lives. In every other round all of them may go away: if none
// is answered nothing is booked.
func TestImpatientCallers(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, servicetest.Queueing(0), sessions)
	w.Put(servicetest.Record(1, 1))
	for round := range 500 {
		w.Book("first", servicetest.Prompt(1000, 8))
		var answered, booked int
		var mu sync.Mutex
		var wg sync.WaitGroup
		var cancels []context.CancelFunc
		id := fmt.Sprint(round)
		for i := range 4 {
			ctx, cancel := context.WithCancel(context.Background())
			wg.Go(func() {
				req := servicetest.Ask(servicetest.Prompt(1, 8))
				req.ReservationID, req.IfExists, req.Session = &id, selection.ReturnFirst, "s"
				sel, err := w.Select(ctx, req, true)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					if i == 0 && round%2 == 0 {
						t.Errorf("round %d: %v", round, err)
					}
					return
				}
				answered++
				if !sel.Repeated {
					booked++
				}
			})
			cancels = append(cancels, cancel)
			if i > 0 || round%2 == 1 {
				wg.Go(cancel)
			}
		}
		wg.Go(func() { _ = w.Free("first") })
		wg.Wait()
		for _, cancel := range cancels {
			cancel()
		}
		if booked > 1 || answered == 0 && round%2 == 0 {
			t.Errorf("round %d: %d booked, %d answered", round, booked, answered)
		}
		if err := w.Free(id); (err == nil) != (answered > 0) {
			t.Errorf("round %d: %d answered: %v", round, answered, err)
		}
		if t.Failed() {
			return
		}
	}
	w.WantLoad("1/0: 0 0 0")
}

// TestRetryRenews: a retry begins the lease again that its answer promises, on
// the replica that booked and on another one.
func TestRetryRenews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := servicetest.Pair(t)
		if _, err := reserve(a, "r", servicetest.Prompt(1, 8), leased(10*time.Second)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2500 * time.Millisecond) // two announcements
		for i := range 6 {
			time.Sleep(7 * time.Second)
			w := []*servicetest.World{a, b}[i%2]
			if sel, err := reserve(w, "r", servicetest.Prompt(1, 8), again); err != nil || sel.Lease != 10*time.Second {
				t.Fatalf("%d: %+v, %v", i, sel, err)
			}
			req := selection.ReserveRequest{Scope: servicetest.Scope, ID: "r", Rank: catalog.Rank{Worker: 1}, Prompt: servicetest.Ask(servicetest.Prompt(1, 8)).Prompt, IfExists: selection.ReturnFirst}
			time.Sleep(7 * time.Second)
			if r, err := w.Reserve(&req); err != nil || r.Lease != 10*time.Second {
				t.Fatalf("%d: %+v, %v", i, r, err)
			}
		}
		if err := a.Free("r"); err != nil {
			t.Error(err)
		}
	})
}

// TestRetryWithoutWorkers: the first answer is given although no one could be
// chosen now, because the worker is incomplete: the reservation lives.
func TestRetryWithoutWorkers(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff)
	w.Put(servicetest.Record(1, 1))
	first := w.Book("r", servicetest.Prompt(1, 10))
	if wk, err := w.PatchWorker(1, catalog.Patch{Endpoint: new("")}); err != nil || wk.Lifecycle == catalog.Schedulable {
		t.Fatalf("%+v, %v", wk, err)
	}
	if sel, err := reserve(w, "r", servicetest.Prompt(1, 10), again); err != nil || !sel.Repeated || sel.Endpoint != first.Endpoint {
		t.Errorf("%+v, %v", sel, err)
	}
	req := selection.ReserveRequest{Scope: servicetest.Scope, ID: "r", Rank: catalog.Rank{Worker: 1}, Prompt: servicetest.Ask(servicetest.Prompt(1, 10)).Prompt, IfExists: selection.ReturnFirst}
	if r, err := w.Reserve(&req); err != nil || !r.Repeated || r.Endpoint != first.Endpoint {
		t.Errorf("%+v, %v", r, err)
	}
	_, err := reserve(w, "r", servicetest.Prompt(2, 10), again)
	servicetest.WantError(t, err, contract.Conflict, takenText("r"))
	_, err = reserve(w, "s", servicetest.Prompt(1, 10), again)
	servicetest.WantError(t, err, contract.Unavailable, "no schedulable workers are available")
	w.WantLoad("1/0: 10 2 1")
}

// TestPendingRetries: the ways to book are retries of each other where model, prompt and
// worker are the same, alike on the replica that booked and on another one.
func TestPendingRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := servicetest.NewMesh()
		a, b := m.Start(t, "a", servicetest.EventsOff, keeping), m.Start(t, "b", servicetest.EventsOff, keeping)
		m.Connect(t, "a", "b")
		a.Put(servicetest.Record(1, 1))
		b.Put(servicetest.Record(1, 1))
		selectPending(a, "kept", servicetest.Prompt(1, 10))
		if _, err := reservePending(a, "kept"); err != nil {
			t.Fatal(err)
		}
		a.Book("chosen", servicetest.Prompt(1, 10))
		servicetest.Announced()
		for _, w := range []*servicetest.World{a, b} {
			for _, id := range []string{"kept", "chosen"} {
				if r, err := reservePending(w, id, func(r *selection.PendingRequest) { r.IfExists = selection.ReturnFirst }); err != nil || !r.Repeated || r.Rank.Worker != 1 {
					t.Errorf("%s by its id: %+v, %v", id, r, err)
				}
				if sel, err := reserve(w, id, servicetest.Prompt(1, 10), again); err != nil || !sel.Repeated {
					t.Errorf("%s chosen: %+v, %v", id, sel, err)
				}
				_, err := reserve(w, id, servicetest.Prompt(2, 10), again)
				servicetest.WantError(t, err, contract.Conflict, takenText(id))
				req := selection.ReserveRequest{Scope: servicetest.Scope, ID: id, Rank: catalog.Rank{Worker: 1}, Prompt: servicetest.Ask(servicetest.Prompt(1, 10)).Prompt, IfExists: selection.ReturnFirst}
				if r, err := w.Reserve(&req); err != nil || !r.Repeated {
					t.Errorf("%s reserved: %+v, %v", id, r, err)
				}
			}
		}
	})
}
