//go:build !race

package selection_test

import (
	"context"
	"testing"
)

// TestAllocations: a selection that asks for nothing new costs no more memory than
// it must: its state and the list of ranks. A reservation has its hashes, its
// entry and its idempotency record beside.
func TestAllocations(t *testing.T) {
	w := start(t, eventsOff, keeping, sessions)
	w.Put(record(1, 4))
	req := ask(nil)
	req.Prompt = hashes(prompt(1, 256))
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
