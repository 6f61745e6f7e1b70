package selection_test

import (
	"testing"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestByCapacity: a rank whose worker says how many blocks it has room for has what
// runs on it, and of the rest what was released last. One whose worker does not say is
// followed by time.
func TestByCapacity(t *testing.T) {
	w := servicetest.Start(t, approximate, keeping, func(c *node.Config) { c.Predictions.ApproximateLRU = true })
	w.Put(servicetest.Record(1, 1, servicetest.Total(8)))
	w.Put(servicetest.Record(2, 1))
	book := func(id *string, worker uint64, group uint32, tokens int) string {
		t.Helper()
		req := servicetest.Ask(servicetest.Prompt(group, tokens))
		req.Pinned, req.ReservationID = &catalog.Rank{Worker: worker}, id
		sel, err := w.Select(t.Context(), req, true)
		if err != nil {
			t.Fatal(err)
		}
		return *sel.ReservationID
	}
	free := func(id string) {
		t.Helper()
		if err := w.Free(id); err != nil {
			t.Fatal(err)
		}
	}
	for group := range uint32(4) {
		free(book(nil, 2, group, 16))
	}
	for group := range uint32(4) {
		w.WantDevice(servicetest.Prompt(group, 16), "1/0:0 2/0:4")
	}

	first := book(nil, 1, 0, 16)
	second := book(new("second"), 1, 1, 14) // 3 blocks and a part: the rank is full
	free(first)
	w.WantDevice(servicetest.Prompt(0, 16), "1/0:4 2/0:4")
	if err := w.OutputBlock(second, nil); err != nil {
		t.Fatal(err)
	}
	w.WantDevice(servicetest.Prompt(0, 16), "1/0:3 2/0:4")
	free(second) // the generated block goes, and what is in no complete one
	third := book(new("third"), 1, 2, 16)
	w.WantDevice(servicetest.Prompt(0, 16), "1/0:1 2/0:4")
	w.WantDevice(servicetest.Prompt(1, 14), "1/0:3 2/0:3")
	w.WantDevice(servicetest.Prompt(2, 16), "1/0:4 2/0:4")

	// A pending selection, and one whose blocks are known to the ledger only.
	pending := servicetest.Ask(servicetest.Prompt(1, 14))
	pending.SelectionID, pending.Pending, pending.Pinned = new("k"), true, &catalog.Rank{Worker: 1}
	if _, err := w.Select(t.Context(), pending, false); err != nil {
		t.Fatal(err)
	}
	if _, err := reservePending(w, "k"); err != nil {
		t.Fatal(err)
	}
	free(third)
	unknown := servicetest.Hashes(servicetest.Prompt(3, 12))
	unknown.BlockHashes, unknown.HasBlockHashes = nil, false
	if err := predicted(w, "u", catalog.Rank{Worker: 1}, unknown); err != nil {
		t.Fatal(err)
	}
	w.WantDevice(servicetest.Prompt(0, 16), "1/0:0 2/0:4")
	w.WantDevice(servicetest.Prompt(1, 14), "1/0:3 2/0:3")
	w.WantDevice(servicetest.Prompt(2, 16), "1/0:1 2/0:4")
	free("u")
	free("k")
	w.Remove(1)
	w.Put(servicetest.Record(1, 1, servicetest.Total(8)))
	w.WantDevice(servicetest.Prompt(1, 14), "1/0:0 2/0:3")
}
