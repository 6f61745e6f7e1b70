package service_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/internal/selecting"
	"github.com/select-service/select-service/pkg/catalog"
)

// TestIDOnItsWay: in the 1.6 dialect the id of a booking that waits is refused to
// all others, except to a repeat, until its caller has gone.
func TestIDOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := busy(t, keeping)
		w.keep("x", prompt(1, 8), func(r *selecting.SelectRequest) { r.Advisory = true })
		explicit := selecting.ReserveRequest{Scope: scope, ID: "x", Rank: catalog.Rank{Worker: 1}, Prompt: ask(prompt(1, 8)).Prompt}
		refused := func(err error) {
			t.Helper()
			wantError(t, err, contract.Conflict, "Request x is being booked")
			wantText16(t, err, "selection x is already reserved or being reserved")
		}
		first := w.call("x", prompt(1, 8), detailed)
		_, err := w.reserve("x", prompt(1, 8), detailed)
		refused(err)
		_, err = w.bookKept("x", func(r *selecting.ReserveRequest) { r.Detailed = true })
		refused(err)
		repeat := w.call("x", prompt(1, 8), detailed, again)
		if !first.waits() || !repeat.waits() {
			t.Fatal("nobody waits")
		}
		first.cancel()
		synctest.Wait()
		_, err = w.bookKept("x", func(r *selecting.ReserveRequest) { r.Detailed = true })
		refused(err) // the repeat has it now
		repeat.cancel()
		synctest.Wait()
		if r, err := w.bookKept("x", func(r *selecting.ReserveRequest) { r.Detailed = true }); err != nil {
			t.Fatalf("%+v, %v", r, err)
		}
		if err := w.Free("x"); err != nil {
			t.Fatal(err)
		}

		second := w.call("x", prompt(1, 8), detailed)
		explicit.Detailed = true
		_, err = w.Reserve(&explicit)
		refused(err)
		explicit.Detailed = false // as 1.3 has it, who comes first has the id
		if _, err = w.Reserve(&explicit); err != nil {
			t.Fatal(err)
		}
		if err := w.Free("first"); err != nil {
			t.Fatal(err)
		}
		if err := w.PrefillComplete("x"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		wantError(t, second.err, contract.Conflict, takenText("x"))
		if err := w.Free("x"); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Select(context.Background(), req16("x"), true); err != nil {
			t.Error(err)
		}
	})
}

func req16(id string) *selecting.SelectRequest {
	r := ask(prompt(1, 8))
	r.ReservationID, r.Detailed = &id, true
	return r
}

// TestEmptyID: it is an id like others, also where texts name it.
func TestEmptyID(t *testing.T) {
	w := start(t, eventsOff)
	w.put(record(1, 1))
	w.book("", prompt(1, 8))
	_, err := w.Select(context.Background(), req16(""), true)
	wantError(t, err, contract.Conflict, takenText(""))
	wantText16(t, err, "selection  is already reserved or being reserved")
}

// wantText16 wants an error to have that text in the 1.6 dialect.
func wantText16(t *testing.T, err error, want string) {
	t.Helper()
	e, ok := errors.AsType[*contract.Error](err)
	if !ok {
		t.Fatalf("error is %v, want %q", err, want)
	}
	if got := e.TextIn(contract.V16); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
