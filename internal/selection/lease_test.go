package selection_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

func leased(d time.Duration) func(*selection.SelectRequest) {
	return func(r *selection.SelectRequest) { r.Lease = d }
}

// TestLeases: a lease ends at its time unless a step of the caller renews it,
// whatever the age of other reservations; the end lets others run.
func TestLeases(t *testing.T) {
	steps := map[string]func(*servicetest.World) error{
		"renew":            func(w *servicetest.World) error { return w.Renew("r") },
		"prefill complete": func(w *servicetest.World) error { return w.PrefillComplete("r") },
		"output block":     func(w *servicetest.World) error { return w.OutputBlock("r", nil) },
	}
	for name, step := range steps {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := servicetest.Start(t, servicetest.EventsOff)
				w.Put(servicetest.Record(1, 1))
				sel, err := reserve(w, "r", servicetest.Prompt(1, 8), leased(10*time.Second))
				if err != nil || sel.Lease != 10*time.Second {
					t.Fatalf("lease %s, %v", sel.Lease, err)
				}
				for range 100 { // far beyond the 300 s of others
					time.Sleep(9 * time.Second)
					if err := step(w); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(12 * time.Second)
				servicetest.WantError(t, step(w), contract.NotFound, "reservation r not found")
				w.WantLoad("1/0: 0 0 0")
				w.WantLog("warn: stale reservations ended leases=1 reservations=1")
			})
		})
	}
}

// TestRenewRefused: what cannot be renewed.
func TestRenewRefused(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff)
	w.Put(servicetest.Record(1, 1))
	w.Book("r", servicetest.Prompt(1, 8))
	servicetest.WantError(t, w.Renew("r"), contract.Conflict, "reservation r has no lease")
	servicetest.WantError(t, w.Renew("x"), contract.NotFound, "reservation x not found")
}

// TestReservationLifetime: it is configured, and a lease does not depend on it.
func TestReservationLifetime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, servicetest.EventsOff, func(c *node.Config) { c.ReservationLifetime = 20 * time.Second })
		w.Put(servicetest.Record(1, 1))
		w.Book("plain", servicetest.Prompt(1, 8))
		r := selection.ReserveRequest{Scope: servicetest.Scope, ID: "leased", Rank: catalog.Rank{Worker: 1}, Prompt: servicetest.Ask(servicetest.Prompt(2, 8)).Prompt, Lease: 30 * time.Second}
		if _, err := w.Reserve(&r); err != nil {
			t.Fatal(err)
		}
		time.Sleep(19 * time.Second)
		w.WantLoad("1/0: 16 4 2")
		time.Sleep(3 * time.Second)
		w.WantLoad("1/0: 8 2 1")
		time.Sleep(10 * time.Second)
		w.WantLoad("1/0: 0 0 0")
	})
}

// TestLeaseLetsOthersRun: who waits behind a caller that is gone need not wait
// for a timer.
func TestLeaseLetsOthersRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, servicetest.EventsOff, servicetest.Queueing(0))
		w.Put(servicetest.Record(1, 1))
		if _, err := reserve(w, "r", servicetest.Prompt(1, 8), leased(2*time.Second)); err != nil {
			t.Fatal(err)
		}
		c := startCall(w, "a", servicetest.Prompt(2, 8))
		if !c.waits() {
			t.Fatal("does not wait")
		}
		time.Sleep(4 * time.Second)
		c.served(t)
	})
}

// TestLeaseEndsInTime: loads and other reservations see the end of a lease within
// a moment, calls about the reservation at once, and a request that waits for the
// load is not forgotten if such a call ended it.
func TestLeaseEndsInTime(t *testing.T) {
	const length = 200 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, servicetest.EventsOff, servicetest.Queueing(0))
		w.Put(servicetest.Record(1, 1))
		for name, asks := range map[string]bool{"asked for": true, "not asked for": false} {
			if _, err := reserve(w, "r", servicetest.Prompt(1, 8), leased(length)); err != nil {
				t.Fatal(err)
			}
			c := startCall(w, "a", servicetest.Prompt(2, 8))
			if !c.waits() {
				t.Fatal("does not wait")
			}
			time.Sleep(length + time.Millisecond)
			if asks {
				servicetest.WantError(t, w.Renew("r"), contract.NotFound, "reservation r not found")
				servicetest.WantError(t, w.PrefillComplete("r"), contract.NotFound, "reservation r not found")
			}
			time.Sleep(reservations.ExpireEvery)
			c.served(t)
			if err := w.Free("a"); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			w.WantLoad("1/0: 0 0 0")
		}
	})
}

// TestRetryAfterLease: a retry of a reservation whose lease has run out books
// again.
func TestRetryAfterLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, servicetest.EventsOff)
		w.Put(servicetest.Record(1, 1))
		for range 5 {
			sel, err := reserve(w, "r", servicetest.Prompt(1, 8), again, leased(101*time.Millisecond))
			if err != nil || sel.Repeated {
				t.Fatalf("%+v, %v", sel, err)
			}
			time.Sleep(102 * time.Millisecond)
		}
	})
}
