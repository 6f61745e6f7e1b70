package selection_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/affinity"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// sessionTTL is that of the tests.
const sessionTTL = 10 * time.Second

func sessions(c *node.Config) { c.Selection.SessionTTL = sessionTTL }

func of(session string) func(*selection.SelectRequest) {
	return func(r *selection.SelectRequest) { r.Session = session }
}

func onWorkers(ids ...uint64) func(*selection.SelectRequest) {
	return func(r *selection.SelectRequest) { r.AllowedWorkers, r.HasAllowedWorkers = ids, true }
}

// talk starts a service where session "s" is bound to worker 1, which carries
// more than worker 2.
func talk(t *testing.T, change ...func(*node.Config)) *servicetest.World {
	w := servicetest.Start(t, append([]func(*node.Config){servicetest.EventsOff, sessions, keeping}, change...)...)
	w.Put(servicetest.Record(1, 1, func(r *catalog.Record) { r.Taints = []string{"one"} }))
	if _, err := reserve(w, "bind", servicetest.Prompt(1, 80), of("s")); err != nil {
		t.Fatal(err)
	}
	w.Put(servicetest.Record(2, 1))
	return w
}

// where selects without a reservation and returns the worker.
func where(w *servicetest.World, change ...func(*selection.SelectRequest)) uint64 {
	w.T.Helper()
	req := servicetest.Ask(servicetest.Prompt(99, 8))
	for _, f := range change {
		f(req)
	}
	sel, err := w.Select(context.Background(), req, false)
	if err != nil {
		w.T.Fatal(err)
	}
	return sel.Rank.Worker
}

// TestSessionStays: a session's requests go to its rank although another costs
// less; others do not.
func TestSessionStays(t *testing.T) {
	w := talk(t)
	for name, tt := range map[string]struct {
		change func(*selection.SelectRequest)
		want   uint64
	}{
		"its own":    {of("s"), 1},
		"another":    {of("t"), 2},
		"none":       {of(""), 2},
		"pinned":     {func(r *selection.SelectRequest) { r.Session, r.Pinned = "s", &catalog.Rank{Worker: 2} }, 2},
		"advisory":   {func(r *selection.SelectRequest) { r.Session, r.Advisory = "s", true }, 1},
		"not itself": {func(r *selection.SelectRequest) { r.Session = "s"; onWorkers(2)(r) }, 2},
		"disliked":   {func(r *selection.SelectRequest) { r.Session, r.PreferredTaints = "s", map[string]float32{"one": -5} }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			if got := where(w, tt.change); got != tt.want {
				t.Errorf("worker %d, want %d", got, tt.want)
			}
		})
	}
	if sel, err := reserve(w, "r", servicetest.Prompt(2, 8), of("s")); err != nil || sel.Rank.Worker != 1 {
		t.Errorf("booked on %s, %v", sel.Rank, err)
	}
	if sel, err := reserve(w, "p", servicetest.Prompt(2, 8), of("s"), func(r *selection.SelectRequest) { r.Pinned = &catalog.Rank{Worker: 2} }); err != nil || sel.Rank.Worker != 2 || where(w, of("s")) != 1 {
		t.Errorf("pinned: booked on %s, %v", sel.Rank, err)
	}
}

// TestSessionExcluded: a reservation whose own filter excludes the session's rank
// is refused; nothing stays booked and the session is free.
func TestSessionExcluded(t *testing.T) {
	w := talk(t)
	load := w.LoadText()
	_, err := reserve(w, "r", servicetest.Prompt(2, 8), of("s"), onWorkers(2))
	servicetest.WantError(t, err, contract.BadRequest, "session s is bound to worker 1, not 2")
	w.WantLoad(load)
	if got := where(w, of("s")); got != 2 {
		t.Errorf("worker %d after that, want 2", got)
	}
	if sel, err := reserve(w, "r", servicetest.Prompt(2, 8), of("s"), onWorkers(2)); err != nil || sel.Rank.Worker != 2 || where(w, of("s")) != 2 {
		t.Errorf("next: %s, %v", sel.Rank, err)
	}
}

// TestFilterBeforeSession: a reservation whose filter excludes the session's rank is booked elsewhere
// if it asks for that, and the session stays where it is.
func TestFilterBeforeSession(t *testing.T) {
	w := talk(t)
	filtered := func(r *selection.SelectRequest) { r.Session, r.FilterBeforeSession = "s", true }
	sel, err := reserve(w, "r", servicetest.Prompt(2, 8), filtered, onWorkers(2))
	if err != nil || sel.Rank.Worker != 2 || where(w, of("s")) != 1 {
		t.Fatalf("booked on %s, %v; the session is on worker %d", sel.Rank, err, where(w, of("s")))
	}
	if err := w.Free("r"); err != nil {
		t.Fatal(err)
	}
	if sel, err := reserve(w, "r", servicetest.Prompt(2, 8), filtered); err != nil || sel.Rank.Worker != 1 {
		t.Errorf("without the filter: booked on %s, %v", sel.Rank, err)
	}
}

// TestSessionMoves: a rank that is gone or overloaded is chosen again.
func TestSessionMoves(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*node.Config)
		spoil  func(*servicetest.World)
	}{
		"gone":       {servicetest.EventsOff, func(w *servicetest.World) { w.Remove(1) }},
		"overloaded": {servicetest.Limits(overload.Thresholds{PrefillTokens: new(uint64(50))}), func(*servicetest.World) {}},
	} {
		t.Run(name, func(t *testing.T) {
			w := talk(t, tt.change)
			tt.spoil(w)
			if sel, err := reserve(w, "r", servicetest.Prompt(2, 8), of("s")); err != nil || sel.Rank.Worker != 2 {
				t.Fatalf("%s, %v", sel.Rank, err)
			}
			if name == "gone" {
				w.Put(servicetest.Record(1, 1)) // idle
				if _, err := reserve(w, "burden", servicetest.Prompt(3, 40), onWorkers(2)); err != nil {
					t.Fatal(err)
				}
			}
			if got := where(w, of("s")); got != 2 {
				t.Errorf("worker %d, want 2", got)
			}
		})
	}
}

// TestRefusedLeavesBinding: a request that is refused after another rank was chosen for it, since that of its hard session is overloaded, leaves
// the session bound where it was.
func TestRefusedLeavesBinding(t *testing.T) {
	for name, most := range map[string]int{"the ledger is full": 1, "the id is in use": 0} {
		t.Run(name, func(t *testing.T) {
			w := talk(t, servicetest.Limits(overload.Thresholds{PrefillTokens: new(uint64(50))}), func(c *node.Config) {
				c.Reservations.Reservations = most
			})
			if err := attempt(w, "bind", servicetest.Prompt(2, 8), of("s")); err == nil {
				t.Fatal("it is not refused")
			}
			if err := w.Free("bind"); err != nil { // now its rank is not overloaded
				t.Fatal(err)
			}
			if list := w.ListSessions(&selection.SessionQuery{Limit: 10}).Sessions; len(list) != 1 || list[0].Home.Worker != 1 {
				t.Fatalf("sessions are %+v, want one on worker 1", list)
			}
			if sel, err := reserve(w, "r", servicetest.Prompt(2, 8), of("s")); err != nil || sel.Rank.Worker != 1 {
				t.Errorf("%s, %v", sel.Rank, err)
			}
		})
	}
}

// TestSessionAway: what a request leaves of the binding to a worker that is away
// for a while. A reservation ends it, even a refused one, unless its id was taken
// or the session is of no account; as on 1.6.1.
func TestSessionAway(t *testing.T) {
	for name, tt := range map[string]struct {
		try     func(w *servicetest.World) error
		refused bool
		want    uint64 // the session's worker afterwards
	}{
		"nothing": {func(*servicetest.World) error { return nil }, false, 1},
		"booked":  {func(w *servicetest.World) error { return attempt(w, "r", servicetest.Prompt(2, 8), of("s")) }, false, 2},
		"excluded": {func(w *servicetest.World) error {
			return attempt(w, "r", servicetest.Prompt(2, 8), of("s"), onWorkers(9))
		}, true, 2},
		"wrong prompt": {func(w *servicetest.World) error {
			return attempt(w, "r", nil, of("s"), func(r *selection.SelectRequest) { r.Prompt = selection.Prompt{} })
		}, true, 2},
		"taken id": {func(w *servicetest.World) error { return attempt(w, "taken", servicetest.Prompt(2, 8), of("s"), in16) }, true, 1},
		"pinned": {func(w *servicetest.World) error {
			return attempt(w, "r", servicetest.Prompt(2, 8), of("s"), pinnedTo(9))
		}, true, 1},
		"other session": {func(w *servicetest.World) error {
			return attempt(w, "r", servicetest.Prompt(2, 8), of("t"), onWorkers(9))
		}, true, 1},
		"not reserving": {func(w *servicetest.World) error {
			req := servicetest.Ask(servicetest.Prompt(2, 8))
			of("s")(req)
			onWorkers(9)(req)
			_, err := w.Select(context.Background(), req, false)
			return err
		}, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := talk(t)
			if err := attempt(w, "taken", servicetest.Prompt(5, 8), onWorkers(2)); err != nil {
				t.Fatal(err)
			}
			w.Remove(1)
			if err := tt.try(w); (err != nil) != tt.refused {
				t.Fatal(err)
			}
			w.Put(servicetest.Record(1, 1))
			// Worker 2 is the cheaper one for all that are not bound.
			if err := attempt(w, "burden", servicetest.Prompt(3, 200), onWorkers(1)); err != nil {
				t.Fatal(err)
			}
			if got := where(w, of("s")); got != tt.want {
				t.Errorf("worker %d, want %d", got, tt.want)
			}
		})
	}
}

// attempt is reserve for its error.
func attempt(w *servicetest.World, id string, tokens []uint32, change ...func(*selection.SelectRequest)) error {
	_, err := reserve(w, id, tokens, change...)
	return err
}

func in16(r *selection.SelectRequest) { r.Dialect = contract.V16 }

func pinnedTo(id uint64) func(*selection.SelectRequest) {
	return func(r *selection.SelectRequest) { r.Pinned = &catalog.Rank{Worker: id} }
}

// TestFullLedger: a ledger without room refuses a reservation; a request that is placed by load goes
// on without one, and without keeping its session from others.
func TestFullLedger(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, sessions, func(c *node.Config) { c.Reservations.Reservations = 1 })
	w.Put(servicetest.Record(1, 1))
	w.Book("a", servicetest.Prompt(1, 8))
	if _, err := reserve(w, "b", servicetest.Prompt(2, 8)); contract.KindOf(err) != contract.Exhausted {
		t.Errorf("a second reservation: %v", err)
	}
	byLoad := func(r *selection.SelectRequest) { r.ByLoad = true }
	if sel, err := reserve(w, "c", nil, byLoad, of("s")); err != nil || sel.Rank.Worker != 1 || sel.ReservationID != nil {
		t.Errorf("by load: %+v, %v", sel, err)
	}
	if err := w.Free("a"); err != nil {
		t.Fatal(err)
	}
	if _, err := reserve(w, "d", servicetest.Prompt(3, 8), of("s")); err != nil {
		t.Errorf("the session's next request: %v", err)
	}
}

// TestSessionLasts: a binding lasts while a reservation does and for its time
// behind the last one; looking does not prolong it.
func TestSessionLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := talk(t)
		time.Sleep(100 * time.Second)
		if got := where(w, of("s")); got != 1 {
			t.Fatalf("worker %d while booked", got)
		}
		if err := w.Free("bind"); err != nil {
			t.Fatal(err)
		}
		if _, err := reserve(w, "burden", servicetest.Prompt(3, 40), onWorkers(1)); err != nil {
			t.Fatal(err)
		}
		for range 9 {
			time.Sleep(time.Second)
			if got := where(w, of("s")); got != 1 {
				t.Fatalf("worker %d too early", got)
			}
		}
		time.Sleep(time.Second)
		if got := where(w, of("s")); got != 2 {
			t.Errorf("worker %d, want the binding forgotten", got)
		}
	})
}

// TestSessionEndsWithItsReservation: however a reservation ends, the session's time
// begins then.
func TestSessionEndsWithItsReservation(t *testing.T) {
	for name, end := range map[string]func(w *servicetest.World){
		"freed":   func(w *servicetest.World) { _ = w.Free("r") },
		"leased":  func(*servicetest.World) { time.Sleep(6 * time.Second) },
		"dropped": func(w *servicetest.World) { w.Remove(1); w.Put(servicetest.Record(1, 1)) },
		"refused": func(w *servicetest.World) { _, _ = reserve(w, "r", servicetest.Prompt(7, 8), of("s")); _ = w.Free("r") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := talk(t)
				if err := w.Free("bind"); err != nil {
					t.Fatal(err)
				}
				if _, err := reserve(w, "r", servicetest.Prompt(2, 8), of("s"), leased(5*time.Second)); err != nil {
					t.Fatal(err)
				}
				end(w)
				_, _ = reserve(w, "burden", servicetest.Prompt(3, 40), onWorkers(1))
				time.Sleep(sessionTTL)
				if got := where(w, of("s")); got != 2 {
					t.Errorf("worker %d, want the binding forgotten", got)
				}
			})
		})
	}
}

// TestFinal: the binding of a session ends with the reservation of its last request, however that is booked and ends, although
// others of the session run on. It stays as long as that reservation does, and if the request is refused.
func TestFinal(t *testing.T) {
	last := func(r *selection.SelectRequest) { r.Session, r.Final = "s", true }
	for name, tt := range map[string]struct {
		book func(w *servicetest.World) error
		end  func(w *servicetest.World)
	}{
		"freed": {func(w *servicetest.World) error { return attempt(w, "r", servicetest.Prompt(2, 8), last) }, func(w *servicetest.World) { _ = w.Free("r") }},
		"expired": {func(w *servicetest.World) error {
			return attempt(w, "r", servicetest.Prompt(2, 8), last, leased(time.Second))
		}, func(*servicetest.World) { time.Sleep(2 * time.Second) }},
		"without an id of its own": {func(w *servicetest.World) error {
			req := servicetest.Ask(servicetest.Prompt(2, 8))
			last(req)
			req.Lease = time.Second
			_, err := w.Select(t.Context(), req, true)
			return err
		}, func(*servicetest.World) { time.Sleep(2 * time.Second) }},
		"of a pending selection": {func(w *servicetest.World) error {
			selectPending(w, "r", servicetest.Prompt(2, 8), last)
			_, err := reservePending(w, "r")
			return err
		}, func(w *servicetest.World) { _ = w.Free("r") }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := talk(t)
				where(w, last) // without a reservation nothing ends
				if attempt(w, "r", servicetest.Prompt(2, 8), last, onWorkers(7)) == nil {
					t.Error("a last request that no worker can take is booked")
				}
				if err := tt.book(w); err != nil {
					t.Fatal(err)
				}
				if got := where(w, of("s")); got != 1 {
					t.Errorf("during the last request the session goes to worker %d, want 1", got)
				}
				tt.end(w)
				if got := where(w, of("s")); got != 2 {
					t.Errorf("behind the last request the session goes to worker %d, want the binding gone", got)
				}
				_ = w.Free("bind")
				if n := servicetest.Sum(w.Metrics()["remembered_entries"], "sessions"); n != 0 {
					t.Errorf("%v sessions are left", n)
				}
			})
		})
	}
}

// TestReservedParent: no client may name one of the service's own names as the session that has started its own.
func TestReservedParent(t *testing.T) {
	w := talk(t)
	forged := func(r *selection.SelectRequest) { r.Session, r.Parent = "s", "\x01sg:x" }
	err := attempt(w, "r", servicetest.Prompt(1, 8), forged)
	servicetest.WantError(t, err, contract.BadRequest, "session affinity ID must not begin with a control character")
	off := servicetest.Start(t, servicetest.EventsOff)
	off.Put(servicetest.Record(1, 1))
	where(off, forged)
}

// TestManySessions: of too many sessions as many are kept as a table has, and the requests of all are served.
func TestManySessions(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, func(c *node.Config) { c.Selection.SessionTTL = time.Hour })
	w.Put(servicetest.Record(1, 1))
	const left = 50 // places of the table
	for i := range affinity.MaxSessions - left {
		w.BindSession(servicetest.Scope, fmt.Sprint("earlier ", i), catalog.Rank{Worker: 1})
	}
	prompt := servicetest.Prompt(1, 8)
	for i := range 2 * left {
		id := fmt.Sprint(i)
		if err := attempt(w, id, prompt, of(id), func(r *selection.SelectRequest) { r.Parent = "p" + id }); err != nil {
			t.Fatal(err)
		}
		if err := w.Free(id); err != nil {
			t.Fatal(err)
		}
	}
	if n := servicetest.Sum(w.Metrics()["remembered_entries"], "sessions"); n != affinity.MaxSessions {
		t.Errorf("%v sessions are kept, want %d", n, affinity.MaxSessions)
	}
	if full := w.Metrics()["sessions_full_total"]; servicetest.Sum(full, "refused") != left || servicetest.Sum(full, "displaced") != 0 {
		t.Errorf("counted as without room: %v, want %d", full, left)
	}
}

// TestSessionsInCircle: sessions that name each other, or themselves, as the one that has started them are sessions as others.
func TestSessionsInCircle(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, sessions)
	w.Put(servicetest.Record(1, 1))
	for session, parent := range map[string]string{"a": "b", "b": "a", "c": "c"} {
		if err := attempt(w, session, servicetest.Prompt(1, 8), func(r *selection.SelectRequest) { r.Session, r.Parent, r.Final = session, parent, session == "a" }); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Free("a"); err != nil {
		t.Fatal(err)
	}
	for session, want := range map[string]bool{"a": false, "b": true, "c": true} {
		if _, bound := w.SessionRank(servicetest.Scope, "", session); bound != want {
			t.Errorf("session %s is bound: %t", session, bound)
		}
	}
}

// TestFirstOfSession: concurrent first requests of a session end on one rank; a
// request that waits for the first one can be given up, and if that one fails the
// next decides.
func TestFirstOfSession(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, sessions)
	for id := range uint64(8) {
		w.Put(servicetest.Record(id, 1))
	}
	for round := range 50 {
		var wg sync.WaitGroup
		ranks := make([]catalog.Rank, 8)
		for i := range ranks {
			wg.Go(func() {
				sel, err := reserve(w, fmt.Sprint(round, ".", i), servicetest.Prompt(uint32(i), 8), of(fmt.Sprint(round)))
				if err != nil {
					t.Error(err)
				}
				ranks[i] = sel.Rank
			})
		}
		wg.Wait()
		for _, r := range ranks {
			if r != ranks[0] {
				t.Fatalf("one session on %s and %s", ranks[0], r)
			}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		w := busy(t, sessions)
		first, gone, next := startCall(w, "a", servicetest.Prompt(1, 8), of("s")), startCall(w, "b", servicetest.Prompt(2, 8), of("s")), startCall(w, "c", servicetest.Prompt(3, 8), of("s"))
		gone.cancel()
		synctest.Wait()
		if gone.waits() || !first.waits() || !next.waits() {
			t.Fatalf("waiting: %t %t %t", first.waits(), gone.waits(), next.waits())
		}
		servicetest.WantError(t, gone.err, contract.Cancelled, "the client went away")
		first.cancel()
		synctest.Wait()
		if err := w.Free("first"); err != nil {
			t.Fatal(err)
		}
		next.served(t)
	})
}

// TestPendingSession: booking a pending selection binds its session; one that has
// moved is refused and forgotten.
func TestPendingSession(t *testing.T) {
	w := talk(t)
	selectPending(w, "new", servicetest.Prompt(2, 8), of("n"), onWorkers(1))
	if _, err := reservePending(w, "new"); err != nil || where(w, of("n")) != 1 {
		t.Errorf("not bound: %v", err)
	}
	selectPending(w, "pinned", servicetest.Prompt(2, 8), of("s"), func(r *selection.SelectRequest) { r.Pinned = &catalog.Rank{Worker: 2} })
	if _, err := reservePending(w, "pinned"); err != nil || where(w, of("s")) != 1 {
		t.Errorf("pinned: %v", err)
	}
	selectPending(w, "moved", servicetest.Prompt(2, 8), of("s"), onWorkers(2))
	_, err := reservePending(w, "moved")
	servicetest.WantError(t, err, contract.BadRequest, "session s is bound to worker 1, not 2")
	_, err = reservePending(w, "moved")
	servicetest.WantError(t, err, contract.NotFound, nonePending("moved"))
	for session, stays := range map[string]uint64{"n": 1, "open": 2} {
		selectPending(w, "taken "+session, servicetest.Prompt(2, 8), of(session), onWorkers(2))
		if err := attempt(w, "taken "+session, servicetest.Prompt(2, 8), onWorkers(1)); err != nil {
			t.Fatal(err)
		}
		_, err := reservePending(w, "taken "+session)
		servicetest.WantError(t, err, contract.Conflict, "Request taken "+session+" already exists (assigned to worker WorkerWithDpRank { worker_id: 1, dp_rank: 0 })")
		if got := where(w, of(session)); got != stays {
			t.Errorf("session %q goes to worker %d after a conflict, want %d", session, got, stays)
		}
	}
	w.Put(servicetest.Record(3, 2))
	kept := selectPending(w, "rank", servicetest.Prompt(3, 8), of("dp"), onWorkers(3)).Rank
	if _, err := reserve(w, "burden", servicetest.Prompt(4, 80), func(r *selection.SelectRequest) { r.Pinned = &kept }); err != nil {
		t.Fatal(err)
	}
	if _, err := reserve(w, "bind dp", servicetest.Prompt(3, 8), of("dp"), onWorkers(3)); err != nil {
		t.Fatal(err)
	}
	_, err = reservePending(w, "rank")
	servicetest.WantError(t, err, contract.BadRequest, fmt.Sprintf("session dp is bound to DP rank %d, not %d", 1-kept.DP, kept.DP))
	if err := w.Free("rank"); err == nil {
		t.Error("it was booked")
	}
}

// TestLongSession: the limit of a name, and when it counts.
func TestLongSession(t *testing.T) {
	long := strings.Repeat("x", 257)
	w := talk(t)
	_, err := reserve(w, "r", servicetest.Prompt(1, 8), of(long))
	servicetest.WantError(t, err, contract.BadRequest, "session affinity ID must not exceed 256 bytes")
	where(w, of(long[:256]))
	where(w, of(long), func(r *selection.SelectRequest) { r.Pinned = &catalog.Rank{Worker: 1} })
	off := servicetest.Start(t, servicetest.EventsOff)
	off.Put(servicetest.Record(1, 1))
	where(off, of(long))
}
