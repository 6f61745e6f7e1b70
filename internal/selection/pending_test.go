package selection_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/pending"
	"github.com/select-service/select-service/pkg/catalog"
)

func keeping(c *node.Config) { c.Pending = pending.DefaultLimits() }

// selectPending selects, without a reservation, and keeps the selection under that
// id.
func (w *world) selectPending(id string, tokens []uint32, change ...func(*selection.SelectRequest)) selection.Selection {
	w.T.Helper()
	req := ask(tokens)
	req.SelectionID, req.Pending = &id, true
	for _, f := range change {
		f(req)
	}
	sel, err := w.Select(context.Background(), req, false)
	if err != nil {
		w.T.Fatal(err)
	}
	return sel
}

func (w *world) reservePending(id string, change ...func(*selection.PendingRequest)) (selection.Reservation, error) {
	req := &selection.PendingRequest{Scope: scope, ID: id}
	for _, f := range change {
		f(req)
	}
	return w.ReservePending(context.Background(), req)
}

func nonePending(id string) string {
	return fmt.Sprintf("no pending selection %s for model=m tenant=t (expired, already used, or never selected)", id)
}

// TestPending: a pending selection is booked as it was made, once, and by its id
// alone.
func TestPending(t *testing.T) {
	w := start(t, eventsOff, keeping)
	w.Put(record(1, 1))
	w.Put(record(2, 1))
	sel := w.selectPending("k", prompt(1, 10), func(r *selection.SelectRequest) { r.Pinned = &catalog.Rank{Worker: 2} })
	w.WantLoad("1/0: 0 0 0, 2/0: 0 0 0")
	r, err := w.reservePending("k", func(r *selection.PendingRequest) { r.Lease = time.Minute })
	if err != nil || r != (selection.Reservation{ID: "k", Scope: scope, Rank: sel.Rank, Endpoint: sel.Endpoint, Lease: time.Minute}) {
		t.Errorf("%+v, %v", r, err)
	}
	w.WantLoad("1/0: 0 0 0, 2/0: 10 2 1")
	_, err = w.reservePending("k")
	wantError(t, err, contract.NotFound, nonePending("k"))
	again, err := w.reservePending("k", func(r *selection.PendingRequest) { r.IfExists = selection.ReturnFirst })
	r.Repeated = true
	if err != nil || again != r {
		t.Errorf("again: %+v, %v, want %+v", again, err, r)
	}
	w.WantLoad("1/0: 0 0 0, 2/0: 10 2 1")
	untracked := func(r *selection.SelectRequest) { r.Override.TrackPrefill = new(false) }
	w.selectPending("u", prompt(2, 10), untracked, func(r *selection.SelectRequest) { r.Pinned = &catalog.Rank{Worker: 1} })
	if _, err := w.reservePending("u"); err != nil {
		t.Fatal(err)
	}
	w.WantLoad("1/0: 0 2 1, 2/0: 10 2 1")
}

// become puts a worker with other block hashes in the place of workers 1 and 2.
func (w *world) become(change func(*catalog.Record)) {
	w.T.Helper()
	w.Remove(1)
	w.Remove(2)
	r := record(1, 1)
	change(&r)
	w.Put(r)
}

// TestPendingFailures: which failures leave a selection for another try.
func TestPendingFailures(t *testing.T) {
	other := selection.ReserveRequest{Scope: scope, ID: "k", Rank: catalog.Rank{Worker: 1}, Prompt: ask(prompt(9, 8)).Prompt}
	tests := map[string]struct {
		spoil func(w *world)
		kind  contract.Kind
		text  string
		mend  func(w *world)
	}{
		"id taken": {
			func(w *world) { w.Book("k", prompt(9, 8)) }, contract.Conflict,
			"Request k already exists (assigned to worker WorkerWithDpRank { worker_id: 2, dp_rank: 0 })",
			func(w *world) { _ = w.Free("k") },
		},
		"worker gone": {
			func(w *world) { w.Remove(1) }, contract.NotFound,
			"schedulable worker 1 (dp_rank 0) not found for model=m tenant=t",
			func(w *world) { w.Put(record(1, 1)) },
		},
		"no worker there": {
			func(w *world) { w.Remove(1); w.Remove(2) }, contract.Unavailable, "no schedulable workers are available",
			func(w *world) { w.Put(record(1, 1)) },
		},
		"other block size":   {func(w *world) { w.become(func(r *catalog.Record) { r.BlockSize = new(uint32(8)) }) }, contract.NotFound, nonePending("k"), nil},
		"other hashes":       {func(w *world) { w.become(func(r *catalog.Record) { r.IsEagle = new(true) }) }, contract.NotFound, nonePending("k"), nil},
		"booked explicitly":  {func(w *world) { _, _ = w.Reserve(&other); _ = w.Free("k") }, contract.NotFound, nonePending("k"), nil},
		"explicitly refused": {func(w *world) { o := other; o.Rank.Worker = 7; _, _ = w.Reserve(&o) }, contract.NotFound, nonePending("k"), nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := start(t, eventsOff, keeping)
			w.Put(record(1, 1))
			w.selectPending("k", prompt(1, 8))
			w.Put(record(2, 1))
			if name == "id taken" {
				_, _ = w.reserve("burden", prompt(5, 80), func(r *selection.SelectRequest) { r.Pinned = &catalog.Rank{Worker: 1} })
			}
			tt.spoil(w)
			_, err := w.reservePending("k")
			wantError(t, err, tt.kind, tt.text)
			if tt.mend == nil {
				return
			}
			tt.mend(w)
			if r, err := w.reservePending("k"); err != nil || r.Rank.Worker != 1 {
				t.Errorf("after that: %+v, %v", r, err)
			}
		})
	}
	w := start(t, eventsOff)
	w.Put(record(1, 1))
	w.selectPending("k", prompt(1, 8))
	_, err := w.reservePending("k")
	wantError(t, err, contract.NotFound, nonePending("k")) // nothing is kept without limits
}

// TestPendingExpires: a selection is kept for its time, from the latest one.
func TestPendingExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, eventsOff, keeping)
		w.Put(record(1, 1))
		w.selectPending("k", prompt(1, 8))
		time.Sleep(119 * time.Second)
		w.selectPending("k", prompt(2, 12))
		w.selectPending("l", prompt(3, 8))
		time.Sleep(119 * time.Second)
		if _, err := w.reservePending("k"); err != nil {
			t.Fatal(err)
		}
		w.WantLoad("1/0: 12 3 1")
		time.Sleep(3 * time.Second)
		_, err := w.reservePending("l")
		wantError(t, err, contract.NotFound, nonePending("l"))
	})
}

// TestPendingOnce: of many who book a pending selection one succeeds; with retries
// all get its answer.
func TestPendingOnce(t *testing.T) {
	for _, repeats := range []selection.IfExists{selection.Refuse, selection.ReturnFirst} {
		w := start(t, eventsOff, keeping)
		w.Put(record(1, 1))
		w.selectPending("k", prompt(1, 8))
		var booked, repeated atomic.Int32
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				switch r, err := w.reservePending("k", func(r *selection.PendingRequest) { r.IfExists = repeats }); {
				case err == nil && r.Repeated:
					repeated.Add(1)
				case err == nil:
					booked.Add(1)
				}
			})
		}
		wg.Wait()
		want := int32(0)
		if repeats == selection.ReturnFirst {
			want = 63
		}
		if booked.Load() != 1 || repeated.Load() != want {
			t.Errorf("%d booked, %d repeated, want 1 and %d", booked.Load(), repeated.Load(), want)
		}
		w.WantLoad("1/0: 8 2 1")
	}
}
