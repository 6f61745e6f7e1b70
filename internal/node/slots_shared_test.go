package node_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestOneLedger (decision S4): what one contract registers and books, the other
// lists and adds up; a worker of the slot tracker is never selected; and neither
// contract can change the other's workers.
func TestOneLedger(t *testing.T) {
	w := servicetest.Start(t)
	w.Slots(7, 3, 2)
	a := servicetest.Prompt(1, 8)
	_, err := w.Select(context.Background(), servicetest.Ask(a), false)
	servicetest.WantError(t, err, contract.Unavailable, "no schedulable workers are available")
	if ready, n, workers := w.Ready(); ready || n != 0 || len(workers) != 1 {
		t.Errorf("ready %t, %d schedulable, %d workers", ready, n, len(workers))
	}

	w.Put(servicetest.Record(1, 1))
	w.Book("r", a)
	if err := w.SlotsAdd(servicetest.SlotsReservation("s", 1, 0, 10, 100)); err != nil {
		t.Fatal(err)
	}
	if err := w.SlotsAdd(servicetest.SlotsReservation("u", 7, 4, 2, 100, 101)); err != nil {
		t.Fatal(err)
	}
	w.WantLoad("1/0: 18 3 2, 7/3: 0 0 0, 7/4: 2 2 1")
	if got, want := potential(w, projecting(1, 100, 101)), "1/0: 19 4 2, 7/3: 1 2 0, 7/4: 3 2 1"; got != want {
		t.Errorf("potential loads are %q, want %q", got, want)
	}
	want := []node.SlotsWorker{
		{Worker: 1, Scope: servicetest.Scope, BlockSize: servicetest.BlockSize, DPStart: 0, DPSize: 1},
		{Worker: 7, Scope: servicetest.Scope, BlockSize: servicetest.BlockSize, DPStart: 3, DPSize: 2},
	}
	if d := cmp.Diff(want, w.SlotsWorkers(nil, nil)); d != "" {
		t.Errorf("workers of the slot tracker (-want +got):\n%s", d)
	}
	var rows string
	for _, l := range w.SlotsLoads(&servicetest.Scope.Model, &servicetest.Scope.Tenant) {
		rows += fmt.Sprintf("%d/%d: %d %d; ", l.Load.Rank.Worker, l.Load.Rank.DP, l.Load.PrefillTokens, l.Load.DecodeBlocks)
	}
	if rows != "1/0: 18 3; 7/3: 0 0; 7/4: 2 2; " {
		t.Errorf("loads of the slot tracker are %q", rows)
	}
	if n := len(w.SlotsLoads(new(""), nil)) + len(w.SlotsWorkers(nil, new("x"))); n != 0 {
		t.Errorf("%d rows of other scopes", n)
	}
	var listed []string
	for _, wk := range w.Workers(nil, nil) {
		listed = append(listed, fmt.Sprint(wk.ID, wk.Lifecycle, wk.Explain()))
	}
	if d := cmp.Diff([]string{"1schedulable[]", "7incomplete[registered through the slot tracker: its load is tracked, it is never selected]"}, listed); d != "" {
		t.Errorf("workers of the selection contract (-want +got):\n%s", d)
	}
	if n := servicetest.Sum(w.Metrics()["workers"], "tracked"); n != 1 {
		t.Errorf("%v workers are counted as tracked", n)
	}
	if sel, err := w.Select(context.Background(), servicetest.Ask(a), false); err != nil || sel.Rank.Worker != 1 {
		t.Errorf("%v was selected, %v", sel.Rank, err)
	}

	const taken = "worker 7 already registered for model=m tenant=t"
	_, err = w.PutWorker(servicetest.Record(7, 1))
	servicetest.WantError(t, err, contract.Conflict, taken)
	_, err = w.PatchWorker(7, catalog.Patch{})
	servicetest.WantError(t, err, contract.NotFound, "worker 7 not found")
	_, err = w.DeleteWorker(7)
	servicetest.WantError(t, err, contract.NotFound, "worker 7 not found")
	err = w.SlotsRegister(node.SlotsWorker{Worker: 1, Scope: servicetest.Scope, BlockSize: servicetest.BlockSize, DPSize: 1})
	servicetest.WantError(t, err, contract.Conflict, "worker 1 already registered for model=m tenant=t")
	servicetest.WantError(t, w.SlotsUnregister(servicetest.Scope, 1), contract.NotFound, "worker 1 not found for model=m tenant=t")

	// The same id in another scope is somebody else.
	w.Put(servicetest.Record(7, 1, func(r *catalog.Record) { r.Scope.Model = "n" }))
	w.Remove(7)
	w.WantLoad("1/0: 18 3 2, 7/3: 0 0 0, 7/4: 2 2 1, n/t")
	w.Remove(1)
	w.WantLoad("7/3: 0 0 0, 7/4: 2 2 1, n/t")
	wk, err := w.PutWorker(servicetest.Record(1, 1, func(r *catalog.Record) { r.BlockSize = new(uint32(8)) }))
	if err != nil || wk.Lifecycle != catalog.Incomplete {
		t.Errorf("another block size than the slot tracker's: %+v, %v", wk, err)
	}
	if err := w.SlotsUnregister(servicetest.Scope, 7); err != nil {
		t.Fatal(err)
	}
	w.WantLoad("1/0: 0 0 0, n/t") // it can come in now
}

// TestSlotsChurn: reservations at the same time as registrations either find the
// rank or a text that says what is missing, and none outlives its worker.
func TestSlotsChurn(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff)
	var wg sync.WaitGroup
	for id := range uint64(4) {
		wg.Go(func() {
			for range 200 {
				w.Slots(id, 0, 2)
				if err := w.SlotsUnregister(servicetest.Scope, id); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for i := range 1000 {
				name := fmt.Sprint(id, i)
				err := w.SlotsAdd(servicetest.SlotsReservation(name, id, uint32(i%2), 3, 1, 2))
				var e *contract.Error
				if err != nil && (!errors.As(err, &e) || e.Kind != contract.NotFound) {
					t.Errorf("add: %v", err)
				}
				if _, err := w.SlotsPotentialLoads(projecting(1, 1)); err != nil && (!errors.As(err, &e) || e.Kind != contract.NotFound) {
					t.Errorf("potential loads: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if live := servicetest.Sum(w.Metrics()["reservations_live"]); live != 0 || w.LoadText() != "" {
		t.Errorf("%v reservations, loads %q", live, w.LoadText())
	}
}

// TestEagleBesideSlots: the slot tracker's workers say nothing about is_eagle;
// the events of a worker that comes later are read as that one cuts blocks.
func TestEagleBesideSlots(t *testing.T) {
	w := servicetest.Start(t)
	w.Slots(7, 0, 1)
	w.Put(servicetest.Record(1, 1, func(r *catalog.Record) { r.IsEagle = new(true) }))
	a := servicetest.Prompt(1, 13)
	e := w.Engine(1, 0)
	pairs := make([][2]uint32, len(a)-1)
	for i := range pairs {
		pairs[i] = [2]uint32{a[i], a[i+1]}
	}
	e.Publish(0, e.Stored(a, servicetest.BlockSize, servicetest.Dict{"token_ids": pairs}))
	w.WantDevice(a, "1/0:3")
}

// The steps of the slot tracker in a random history; see TestRandomHistories.

func (h *history) slotsRegister() {
	worker := node.SlotsWorker{Worker: h.rnd.Uint64N(6), Scope: h.scope(), BlockSize: servicetest.BlockSize, DPStart: h.rnd.Uint32N(2), DPSize: 1 + h.rnd.Uint32N(3)}
	taken, mismatch := false, false
	for _, wk := range h.Workers(&worker.Scope.Model, nil) {
		taken = taken || wk.ID == worker.Worker
	}
	if n, known := h.Catalog().BlockSize(worker.Scope); known {
		mismatch = n != worker.BlockSize
	}
	if err := h.SlotsRegister(worker); (err == nil) != (!taken && !mismatch) {
		h.T.Errorf("%+v, taken %t, mismatch %t: %v", worker, taken, mismatch, err)
	}
	h.dropLost()
}

func (h *history) slotsLeave() {
	_ = h.SlotsUnregister(h.scope(), h.rnd.Uint64N(6)) // it may not exist
	h.dropLost()
}

func (h *history) slotsAdd() {
	h.next++
	b := reservation{scope: h.scope(), rank: catalog.Rank{Worker: h.rnd.Uint64N(6), DP: h.rnd.Uint32N(4)}, prefill: h.rnd.Uint64N(50), slots: true}
	id := fmt.Sprint("slots", h.next)
	err := h.SlotsAdd(&node.SlotsReservation{Scope: b.scope, ID: id, Rank: b.rank, SequenceHashes: []uint64{1, 2, h.rnd.Uint64N(9)}, NewISLTokens: b.prefill})
	if carried := h.carried()[reservation{scope: b.scope, rank: b.rank}]; carried != (err == nil) {
		h.T.Errorf("add on %v, carried %t: %v", b.rank, carried, err)
	}
	if err == nil {
		h.live[id] = b
	}
}

// checkSlots compares what the slot tracker shows with the loads.
func (h *history) checkSlots() {
	h.T.Helper()
	var loads []node.SlotsLoad
	for _, sc := range h.Loads(nil, nil) {
		for _, l := range sc.Loads {
			loads = append(loads, node.SlotsLoad{Scope: sc.Scope, Load: l})
		}
	}
	rows := h.SlotsLoads(nil, nil)
	if d := cmp.Diff(append([]node.SlotsLoad{}, loads...), rows); d != "" {
		h.T.Errorf("the slot tracker's loads (-selection's +its):\n%s", d)
	}
	for _, wk := range h.SlotsWorkers(nil, nil) {
		for i := range wk.DPSize {
			if len(rows) == 0 || rows[0].Scope != wk.Scope || rows[0].Load.Rank != (catalog.Rank{Worker: wk.Worker, DP: wk.DPStart + i}) {
				h.T.Errorf("%+v does not fit the loads from %v on", wk, rows)
				return
			}
			rows = rows[1:]
		}
	}
	if len(rows) > 0 {
		h.T.Errorf("loads without a worker: %v", rows)
	}
}
