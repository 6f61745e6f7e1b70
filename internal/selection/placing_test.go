package selection_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestPlaceByLoad: the rank with the fewest requests is chosen, of equal ones that with the fewest
// tokens; the fallbacks are the next ones, of other workers. It is booked if that is wished and the
// ledger has room, as one request without blocks and tokens.
func TestPlaceByLoad(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, func(c *node.Config) { c.Reservations.Reservations = 4 })
	for id := range uint64(3) {
		w.Put(servicetest.Record(id+1, 1))
	}
	w.Burden("two", 1, 0, 1, 4)
	w.Burden("more tokens", 2, 0, 2, 8)
	w.Burden("fewer tokens", 3, 0, 1, 8)
	place := func(book bool, may ...uint64) (selection.Selection, error) {
		req := &selection.LoadRequest{Scope: servicetest.Scope, Fallbacks: 1, Book: book, Lease: time.Minute}
		if len(may) > 0 {
			req.Eligible = func(*catalog.Snapshot) func(catalog.Entry) bool {
				return func(e catalog.Entry) bool { return slices.Contains(may, e.Rank.Worker) }
			}
		}
		return w.PlaceByLoad(req)
	}
	want := func(sel selection.Selection, err error, rank, fallback uint64, booked bool) {
		t.Helper()
		if err != nil || sel.Rank.Worker != rank || len(sel.Fallbacks) != 1 || sel.Fallbacks[0].Worker != fallback ||
			(sel.ReservationID != nil) != booked || (sel.Registration != 0) != booked {
			t.Errorf("%+v, %v; want worker %d, then %d, booked %t", sel, err, rank, fallback, booked)
		}
	}
	sel, err := place(false)
	want(sel, err, 1, 3, false)
	sel, err = place(true)
	want(sel, err, 1, 3, true)
	w.WantLoad("1/0: 4 1 2, 2/0: 8 2 1, 3/0: 8 1 1")
	sel, err = place(true) // the ledger is full
	want(sel, err, 3, 2, false)
	sel, err = place(false, 1, 2)
	want(sel, err, 2, 1, false)
	if _, err := place(false, 9); !errors.Is(err, selector.ErrNoEndpoints) {
		t.Errorf("without an eligible rank: %v", err)
	}
}

// TestRebook: a request is booked again on another rank, with what it carried, and on its own once
// that has left and come back, but not while it is registered as it was.
func TestRebook(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff)
	w.Put(servicetest.Record(1, 1))
	sel, err := reserve(w, "r", servicetest.Prompt(1, 8), leased(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	again := func(worker, after uint64) (uint64, error) {
		_ = w.Free("r")
		return w.Rebook(&selection.Rebooking{ID: "r", Selection: &sel, Rank: catalog.Rank{Worker: worker}, After: after, Lease: time.Minute})
	}
	if _, err := again(1, sel.Registration); !errors.Is(err, selection.ErrStillRegistered) {
		t.Errorf("as it was: %v", err)
	}
	w.Remove(1)
	w.Put(servicetest.Record(1, 1))
	w.Put(servicetest.Record(2, 1))
	if registration, err := again(1, sel.Registration); err != nil || registration <= sel.Registration {
		t.Errorf("after it came back: %d after %d, %v", registration, sel.Registration, err)
	}
	w.WantLoad("1/0: 8 2 1, 2/0: 0 0 0")
	if _, err := again(2, 0); err != nil {
		t.Errorf("elsewhere: %v", err)
	}
	w.WantLoad("1/0: 0 0 0, 2/0: 8 2 1")
	if _, err := again(3, 0); err == nil {
		t.Error("booked on an unknown rank")
	}
}
