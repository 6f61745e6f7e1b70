package node_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/workers"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

func reconcile(w *servicetest.World, records ...catalog.Record) catalog.Difference {
	w.T.Helper()
	d, err := w.ReconcileWorkers(records, catalog.ScopeFilter{})
	if err != nil {
		w.T.Fatal(err)
	}
	return d
}

// TestReconcileKeepsWhatStays (decisions D6, D7): who is unchanged in a set keeps
// sockets, blocks and reservations, also on the ranks that a changed one keeps;
// who is not in it loses all.
func TestReconcileKeepsWhatStays(t *testing.T) {
	w := servicetest.Start(t)
	reconcile(w, servicetest.Record(1, 1), servicetest.Record(2, 2), servicetest.Record(3, 1))
	a := servicetest.Prompt(1, 12)
	e := w.Engine(2, 0)
	e.Publish(0, e.Stored(a, servicetest.BlockSize, nil))
	w.WantDevice(a, "1/0:0 2/0:3 2/1:0 3/0:0")
	w.Book("r", a)
	opened, _ := w.Net.Count()

	got := reconcile(w, servicetest.Record(1, 1), servicetest.Record(2, 1), servicetest.Record(4, 1))
	want := catalog.Difference{Added: []uint64{4}, Changed: []uint64{2}, Removed: []uint64{3}, Unchanged: 1}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("difference (-want +got):\n%s", d)
	}
	if now, live := w.Net.Count(); now != opened+1 || live != 3 {
		t.Errorf("%d sockets were opened, %d are open; want 1 and 3", now-opened, live)
	}
	w.WantDevice(a, "1/0:0 2/0:3 4/0:0")
	w.WantLoad("1/0: 0 0 0, 2/0: 0 3 1, 4/0: 0 0 0")
	e.Publish(0, e.Stored(a[:8], servicetest.BlockSize, nil)) // the next number: nothing was missed
	w.WantDevice(a, "1/0:0 2/0:3 4/0:0")
	if gaps := servicetest.Sum(w.Metrics()["kv_gaps_total"]); gaps != 0 {
		t.Errorf("%v gaps: the cursor was lost", gaps)
	}

	reconcile(w, servicetest.Record(1, 1))
	servicetest.WantError(t, w.Free("r"), contract.NotFound, "reservation r not found")
	w.WantLoad("1/0: 0 0 0")
}

// TestReconcileErrors: an error has its kind, names the entry, and leaves all as it
// was; with a workers file only that may replace the set.
func TestReconcileErrors(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(1, 1))
	other := catalog.ScopeFilter{Model: new("other")}
	elsewhere := servicetest.Record(1, 1, func(r *catalog.Record) { r.Scope.Model = "other" })
	_, err := w.ReconcileWorkers([]catalog.Record{elsewhere}, other)
	servicetest.WantError(t, err, contract.Conflict, "workers[0]: worker 1 already registered for model=m tenant=t")
	_, err = w.ReconcileWorkers([]catalog.Record{servicetest.Record(2, 1), servicetest.Record(3, 5000)}, catalog.ScopeFilter{})
	servicetest.WantError(t, err, contract.BadRequest, "workers[1]: data_parallel_size 5000 exceeds the maximum 4096")
	var entry *catalog.EntryError
	if !errors.As(err, &entry) || entry.Index != 1 {
		t.Errorf("%v does not wrap the entry", err)
	}
	w.WantLoad("1/0: 0 0 0")

	f := servicetest.Start(t, func(c *node.Config) { c.Given.File = "/w.yaml" })
	_, err = f.ReconcileWorkers(nil, catalog.ScopeFilter{})
	servicetest.WantError(t, err, contract.Conflict, "workers are managed by --workers-file /w.yaml")
	var managed *workers.FileError
	if !errors.As(err, &managed) {
		t.Errorf("%v is no FileError", err)
	}
	if _, err := f.ReplaceWorkers(catalog.Set{Kind: catalog.SourceFile, Records: []catalog.Record{servicetest.Record(1, 1)}}); err != nil {
		t.Error(err)
	}
	f.WantLoad("1/0: 0 0 0")

	w.Close()
	_, err = w.ReconcileWorkers(nil, catalog.ScopeFilter{})
	servicetest.WantError(t, err, contract.Unavailable, "selection service is shutting down")
}

// TestSelectionsDuringReconcile: while two sets without a worker in common take
// turns, no selection fails for want of workers, and every reservation is of one of
// them: the new ones are there before the old ones go.
func TestSelectionsDuringReconcile(t *testing.T) {
	w := servicetest.Start(t)
	sets := [2][]catalog.Record{}
	for i := range sets {
		for id := range uint64(4) {
			sets[i] = append(sets[i], servicetest.Record(1+id+uint64(i)*10, 1))
		}
	}
	reconcile(w, sets[0]...)
	var done atomic.Bool
	var wg sync.WaitGroup
	for n := range uint32(2) {
		wg.Go(func() {
			for i := uint32(0); !done.Load(); i++ {
				sel, err := w.Select(context.Background(), servicetest.Ask(servicetest.Prompt(n+2*i, 8)), true)
				if err != nil {
					t.Errorf("selection %d: %v", i, err)
					return
				}
				if sel.ReservationID != nil {
					_ = w.Free(*sel.ReservationID) // gone already if its worker has left
				}
			}
		})
	}
	for turn := range 30 {
		reconcile(w, sets[(turn+1)%2]...)
	}
	done.Store(true)
	wg.Wait()
	reconcile(w, sets[0]...)
	w.WantLoad("1/0: 0 0 0, 2/0: 0 0 0, 3/0: 0 0 0, 4/0: 0 0 0")
}
