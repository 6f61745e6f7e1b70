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
	"github.com/select-service/select-service/test/helpers/servicetest"
)

func keeping(c *node.Config) {
	c.Selection.Pending = pending.Limits{TTL: 2 * time.Minute, Entries: 4096, Bytes: 256 << 20}
}

// selectPending selects, without a reservation, and keeps the selection under that
// id.
func selectPending(w *servicetest.World, id string, tokens []uint32, change ...func(*selection.SelectRequest)) selection.Selection {
	w.T.Helper()
	req := servicetest.Ask(tokens)
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

func reservePending(w *servicetest.World, id string, change ...func(*selection.PendingRequest)) (selection.Reservation, error) {
	req := &selection.PendingRequest{Scope: servicetest.Scope, ID: id}
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
	w := servicetest.Start(t, servicetest.EventsOff, keeping)
	w.Put(servicetest.Record(1, 1))
	w.Put(servicetest.Record(2, 1))
	sel := selectPending(w, "k", servicetest.Prompt(1, 10), func(r *selection.SelectRequest) { r.Pinned = &catalog.Rank{Worker: 2} })
	w.WantLoad("1/0: 0 0 0, 2/0: 0 0 0")
	r, err := reservePending(w, "k", func(r *selection.PendingRequest) { r.Lease = time.Minute })
	if err != nil || r != (selection.Reservation{ID: "k", Scope: servicetest.Scope, Rank: sel.Rank, Endpoint: sel.Endpoint, Lease: time.Minute}) {
		t.Errorf("%+v, %v", r, err)
	}
	w.WantLoad("1/0: 0 0 0, 2/0: 10 2 1")
	_, err = reservePending(w, "k")
	servicetest.WantError(t, err, contract.NotFound, nonePending("k"))
	again, err := reservePending(w, "k", func(r *selection.PendingRequest) { r.IfExists = selection.ReturnFirst })
	r.Repeated = true
	if err != nil || again != r {
		t.Errorf("again: %+v, %v, want %+v", again, err, r)
	}
	w.WantLoad("1/0: 0 0 0, 2/0: 10 2 1")
	untracked := func(r *selection.SelectRequest) { r.Override.TrackPrefill = new(false) }
	selectPending(w, "u", servicetest.Prompt(2, 10), untracked, func(r *selection.SelectRequest) { r.Pinned = &catalog.Rank{Worker: 1} })
	if _, err := reservePending(w, "u"); err != nil {
		t.Fatal(err)
	}
	w.WantLoad("1/0: 0 2 1, 2/0: 10 2 1")
}

// become puts a worker with other block hashes in the place of workers 1 and 2.
func become(w *servicetest.World, change func(*catalog.Record)) {
	w.T.Helper()
	w.Remove(1)
	w.Remove(2)
	r := servicetest.Record(1, 1)
	change(&r)
	w.Put(r)
}

// TestPendingFailures: which failures leave a selection for another try.
func TestPendingFailures(t *testing.T) {
	other := selection.ReserveRequest{Scope: servicetest.Scope, ID: "k", Rank: catalog.Rank{Worker: 1}, Prompt: servicetest.Ask(servicetest.Prompt(9, 8)).Prompt}
	tests := map[string]struct {
		spoil func(w *servicetest.World)
		kind  contract.Kind
		text  string
		mend  func(w *servicetest.World)
	}{
		"id taken": {
			func(w *servicetest.World) { w.Book("k", servicetest.Prompt(9, 8)) }, contract.Conflict,
			"Request k already exists (assigned to worker WorkerWithDpRank { worker_id: 2, dp_rank: 0 })",
			func(w *servicetest.World) { _ = w.Free("k") },
		},
		"worker gone": {
			func(w *servicetest.World) { w.Remove(1) }, contract.NotFound,
			"schedulable worker 1 (dp_rank 0) not found for model=m tenant=t",
			func(w *servicetest.World) { w.Put(servicetest.Record(1, 1)) },
		},
		"no worker there": {
			func(w *servicetest.World) { w.Remove(1); w.Remove(2) }, contract.Unavailable, "no schedulable workers are available",
			func(w *servicetest.World) { w.Put(servicetest.Record(1, 1)) },
		},
		"other block size":   {func(w *servicetest.World) { become(w, func(r *catalog.Record) { r.BlockSize = new(uint32(8)) }) }, contract.NotFound, nonePending("k"), nil},
		"other hashes":       {func(w *servicetest.World) { become(w, func(r *catalog.Record) { r.IsEagle = new(true) }) }, contract.NotFound, nonePending("k"), nil},
		"booked explicitly":  {func(w *servicetest.World) { _, _ = w.Reserve(&other); _ = w.Free("k") }, contract.NotFound, nonePending("k"), nil},
		"explicitly refused": {func(w *servicetest.World) { o := other; o.Rank.Worker = 7; _, _ = w.Reserve(&o) }, contract.NotFound, nonePending("k"), nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := servicetest.Start(t, servicetest.EventsOff, keeping)
			w.Put(servicetest.Record(1, 1))
			selectPending(w, "k", servicetest.Prompt(1, 8))
			w.Put(servicetest.Record(2, 1))
			if name == "id taken" {
				_, _ = reserve(w, "burden", servicetest.Prompt(5, 80), func(r *selection.SelectRequest) { r.Pinned = &catalog.Rank{Worker: 1} })
			}
			tt.spoil(w)
			_, err := reservePending(w, "k")
			servicetest.WantError(t, err, tt.kind, tt.text)
			if tt.mend == nil {
				return
			}
			tt.mend(w)
			if r, err := reservePending(w, "k"); err != nil || r.Rank.Worker != 1 {
				t.Errorf("after that: %+v, %v", r, err)
			}
		})
	}
	w := servicetest.Start(t, servicetest.EventsOff)
	w.Put(servicetest.Record(1, 1))
	selectPending(w, "k", servicetest.Prompt(1, 8))
	_, err := reservePending(w, "k")
	servicetest.WantError(t, err, contract.NotFound, nonePending("k")) // nothing is kept without limits
}

// TestPendingExpires: a selection is kept for its time, from the latest one.
func TestPendingExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, servicetest.EventsOff, keeping)
		w.Put(servicetest.Record(1, 1))
		selectPending(w, "k", servicetest.Prompt(1, 8))
		time.Sleep(119 * time.Second)
		selectPending(w, "k", servicetest.Prompt(2, 12))
		selectPending(w, "l", servicetest.Prompt(3, 8))
		time.Sleep(119 * time.Second)
		if _, err := reservePending(w, "k"); err != nil {
			t.Fatal(err)
		}
		w.WantLoad("1/0: 12 3 1")
		time.Sleep(3 * time.Second)
		_, err := reservePending(w, "l")
		servicetest.WantError(t, err, contract.NotFound, nonePending("l"))
	})
}

// TestPendingOnce: of many who book a pending selection one succeeds; with retries
// all get its answer.
func TestPendingOnce(t *testing.T) {
	for _, repeats := range []selection.IfExists{selection.Refuse, selection.ReturnFirst} {
		w := servicetest.Start(t, servicetest.EventsOff, keeping)
		w.Put(servicetest.Record(1, 1))
		selectPending(w, "k", servicetest.Prompt(1, 8))
		var booked, repeated atomic.Int32
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				switch r, err := reservePending(w, "k", func(r *selection.PendingRequest) { r.IfExists = repeats }); {
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
