package selection_test

import (
	"context"
	"reflect"
	"testing"
	"testing/synctest"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

func advisory(r *selection.SelectRequest) { r.Advisory = true }

// TestAdvisory: such a selection neither waits nor is refused for load, and reports
// what the rank carries.
func TestAdvisory(t *testing.T) {
	for name, change := range map[string]func(*node.Config){
		"busy": servicetest.Queueing(0), "overloaded": servicetest.Limits(overload.Thresholds{PrefillTokens: new(uint64(0))}),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := servicetest.Start(t, servicetest.EventsOff, keeping, change, func(c *node.Config) { c.Selection.PrefillBusy, c.Selection.DecodeBusy = new(0.07), new(0.5) })
				w.Put(servicetest.Record(1, 1, servicetest.Total(8)))
				w.Book("first", servicetest.Prompt(1000, 8))
				req := servicetest.Ask(servicetest.Prompt(1, 9))
				req.Advisory = true
				sel, err := w.Select(context.Background(), req, false)
				if err != nil {
					t.Fatal(err)
				}
				want := &selection.WorkerLoad{ActivePrefillTokens: 8, PrefillTokenCapacity: 100, TotalKVBlocks: new(uint64(8)), PrefillBusy: new(true)}
				if !reflect.DeepEqual(sel.WorkerLoad, want) {
					t.Errorf("load is %+v, want %+v", sel.WorkerLoad, want)
				}
				if sel.PotentialDecodeBlocks != 5 || sel.DecodeBusy == nil || !*sel.DecodeBusy { // 2, 2 and one in part; more than 4
					t.Errorf("%d blocks, busy %v", sel.PotentialDecodeBlocks, sel.DecodeBusy)
				}
				selectPending(w, "k", servicetest.Prompt(1, 9), advisory)
				if _, err := reservePending(w, "k"); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestUnknownCapacity: what is not known of a worker.
func TestUnknownCapacity(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, func(c *node.Config) { c.Selection.DecodeBusy = new(0.0) })
	w.Put(servicetest.Record(1, 1, func(r *catalog.Record) { r.MaxNumBatchedTokens = nil }))
	req := servicetest.Ask(servicetest.Prompt(1, 9))
	req.Advisory = true
	sel, err := w.Select(context.Background(), req, false)
	if err != nil {
		t.Fatal(err)
	}
	if want := (selection.WorkerLoad{PrefillTokenCapacity: 10_000_000}); *sel.WorkerLoad != want || sel.DecodeBusy != nil {
		t.Errorf("load is %+v, busy %v", *sel.WorkerLoad, sel.DecodeBusy)
	}
	if sel, err = reserve(w, "r", servicetest.Prompt(1, 9)); err != nil || sel.WorkerLoad != nil {
		t.Errorf("booked: %+v, %v", sel.WorkerLoad, err)
	}
}
