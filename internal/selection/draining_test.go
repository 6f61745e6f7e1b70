package selection_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// drain makes worker 1 drain by the word of its source.
func drain(w *servicetest.World) {
	w.T.Helper()
	wk, err := w.PutWorker(servicetest.Record(1, 1, func(r *catalog.Record) { r.Draining = "pod llm/a is not ready" }))
	if err != nil || wk.Lifecycle != catalog.Draining {
		w.T.Fatalf("%+v, %v", wk, err)
	}
}

// TestDrainingWorker: no choice falls on a draining worker, and a request pinned to it is refused
// as if it were not there; its bookings, and those that name it, go on.
func TestDrainingWorker(t *testing.T) {
	for name, alone := range map[string]bool{"alone": true, "beside another": false} {
		t.Run(name, func(t *testing.T) {
			w := servicetest.Start(t, servicetest.EventsOff, keeping)
			w.Put(servicetest.Record(1, 1))
			leased := servicetest.Ask(servicetest.Prompt(1, 8))
			leased.ReservationID, leased.Lease = new("first"), time.Minute
			if _, err := w.Select(context.Background(), leased, true); err != nil {
				t.Fatal(err)
			}
			one := catalog.Rank{Worker: 1}
			selectPending(w, "kept", servicetest.Prompt(2, 8))
			if !alone {
				w.Put(servicetest.Record(2, 1))
			}
			drain(w)

			_, err := w.Select(context.Background(), servicetest.Ask(servicetest.Prompt(3, 8)), true)
			if alone {
				wantKind(t, "a choice", err, contract.Unavailable)
			} else if err != nil {
				t.Error(err)
			}
			pinned := servicetest.Ask(servicetest.Prompt(3, 8))
			pinned.Pinned = &one
			_, err = w.Select(context.Background(), pinned, false)
			wantKind(t, "pinned", err, contract.Unavailable)

			if err := w.Renew("first"); err != nil {
				t.Error(err)
			}
			if err := w.PrefillComplete("first"); err != nil {
				t.Error(err)
			}
			if _, err := w.Reserve(&selection.ReserveRequest{ID: "named", Scope: servicetest.Scope, Rank: one, Prompt: servicetest.Ask(servicetest.Prompt(4, 8)).Prompt}); err != nil {
				t.Error(err)
			}
			_, err = w.Reserve(&selection.ReserveRequest{ID: "no rank", Scope: servicetest.Scope, Rank: catalog.Rank{Worker: 1, DP: 3}, Prompt: servicetest.Ask(servicetest.Prompt(4, 8)).Prompt})
			servicetest.WantError(t, err, contract.NotFound, "Worker WorkerWithDpRank { worker_id: 1, dp_rank: 3 } not found")
			if _, err := reservePending(w, "kept"); err != nil {
				t.Error(err)
			}
			for _, id := range []string{"first", "named", "kept"} {
				if err := w.Free(id); err != nil {
					t.Errorf("free %s: %v", id, err)
				}
			}
		})
	}
}

func wantKind(t *testing.T, what string, err error, want contract.Kind) {
	t.Helper()
	if err == nil || contract.KindOf(err) != want {
		t.Errorf("%s: %v", what, err)
	}
}

// TestDrainingIsExplained: its ranks are excluded for that, and thresholds skip them: it is not
// overloaded, and the others are.
func TestDrainingIsExplained(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, servicetest.Limits(overload.Thresholds{PrefillTokens: new(uint64(1))}))
	w.Put(servicetest.Record(1, 1))
	w.Put(servicetest.Record(2, 1))
	drain(w)
	x, err := w.Explain(context.Background(), servicetest.Ask(servicetest.Prompt(1, 4)))
	if err != nil {
		t.Fatal(err)
	}
	if want := []selection.ExcludedRank{{Rank: catalog.Rank{Worker: 1}, Why: selection.Draining}}; !slices.Equal(x.Excluded, want) {
		t.Errorf("excluded %v", x.Excluded)
	}
	w.Book("b", servicetest.Prompt(2, 8)) // on worker 2
	_, err = w.Select(context.Background(), servicetest.Ask(servicetest.Prompt(3, 4)), true)
	wantKind(t, "an overload", err, contract.Overloaded)
}

// TestSessionLeavesADrainingWorker: the next reservation of a session is on another worker, and
// stays there.
func TestSessionLeavesADrainingWorker(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, sessions)
	w.Put(servicetest.Record(1, 1))
	of := func(n uint32) catalog.Rank {
		t.Helper()
		req := servicetest.Ask(servicetest.Prompt(n, 4))
		req.Session = "s"
		sel, err := w.Select(context.Background(), req, true)
		if err != nil {
			t.Fatal(err)
		}
		return sel.Rank
	}
	if r := of(1); r.Worker != 1 {
		t.Fatalf("bound to %v", r)
	}
	w.Put(servicetest.Record(2, 1))
	drain(w)
	if r := of(2); r.Worker != 2 {
		t.Errorf("moved to %v", r)
	}
	w.Put(servicetest.Record(1, 1)) // takes new work again
	if r := of(3); r.Worker != 2 {
		t.Errorf("went back to %v", r)
	}
}
