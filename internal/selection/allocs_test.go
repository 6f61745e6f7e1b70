//go:build !race

package selection_test

import (
	"context"
	"testing"

	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestAllocations: a selection that asks for nothing new costs no more memory than
// it must: its state and the list of ranks. A reservation has its hashes, its
// entry and its idempotency record beside.
func TestAllocations(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, keeping, sessions)
	w.Put(servicetest.Record(1, 4))
	req := servicetest.Ask(nil)
	req.Prompt = servicetest.Hashes(servicetest.Prompt(1, 256))
	ctx := context.Background()
	if n := testing.AllocsPerRun(200, func() { _, _ = w.Select(ctx, req, false) }); n > 2 {
		t.Errorf("%v allocations to select", n)
	}
	req.ReservationID = new("r")
	n := testing.AllocsPerRun(200, func() {
		if _, err := w.Select(ctx, req, true); err != nil {
			t.Fatal(err)
		}
		_ = w.Free("r")
	})
	if n > 5 {
		t.Errorf("%v allocations to book and free", n)
	}
}
