package node_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

func projecting(tokens uint64, hashes ...uint64) *node.SlotsProjection {
	return &node.SlotsProjection{Scope: servicetest.Scope, SequenceHashes: hashes, NewISLTokens: tokens}
}

// potential returns /potential_loads as "1/0: prefill blocks requests".
func potential(w *servicetest.World, req *node.SlotsProjection) string {
	w.T.Helper()
	loads, err := w.SlotsPotentialLoads(req)
	if err != nil {
		w.T.Fatal(err)
	}
	var rows []string
	for _, l := range loads {
		rows = append(rows, fmt.Sprintf("%d/%d: %d %d %d", l.Rank.Worker, l.Rank.DP, l.PrefillTokens, l.DecodeBlocks, l.Requests))
	}
	return strings.Join(rows, ", ")
}

// TestSlotsAccounting is the worked example of the contract, step by step, and
// what the numbers do at their ends.
func TestSlotsAccounting(t *testing.T) {
	w := servicetest.Start(t)
	w.Slots(7, 0, 1)
	add := func(id string, tokens uint64, hashes ...uint64) func() error {
		return func() error { return w.SlotsAdd(servicetest.SlotsReservation(id, 7, 0, tokens, hashes...)) }
	}
	complete := func(id string) func() error {
		return func() error { return w.SlotsPrefillComplete(servicetest.Scope, id) }
	}
	free := func(id string) func() error { return func() error { return w.SlotsFree(servicetest.Scope, id) } }
	steps := []struct {
		what  string
		do    func() error
		query *node.SlotsProjection
		want  string // the load, or the answer to the query
	}{
		{what: "three blocks", do: add("r1", 48, 1, 2, 3), want: "7/0: 48 3 1"},
		{what: "two of them shared", do: add("r2", 48, 1, 2, 4), want: "7/0: 96 4 2"},
		{what: "all shared", do: add("r3", 48, 1, 2, 3), want: "7/0: 144 4 3"},
		{what: "none shared", do: add("r4", 16, 9, 10), want: "7/0: 160 6 4"},
		{what: "three lead", query: projecting(48, 1, 2, 3, 5), want: "7/0: 208 7 4"},
		{what: "only a leading run counts", query: projecting(0, 2, 3), want: "7/0: 160 8 4"},
		{what: "nothing asked", query: projecting(0), want: "7/0: 160 6 4"},
		{what: "prefill", do: complete("r1"), want: "7/0: 112 6 4"},
		{what: "prefill again", do: complete("r1"), want: "7/0: 112 6 4"},
		{what: "another holds the blocks", do: free("r3"), want: "7/0: 64 6 3"},
		{what: "one block leaves", do: free("r1"), want: "7/0: 64 5 2"},
		{what: "free again", do: free("r1"), want: "7/0: 64 5 2"},
		{do: free("r2"), want: "7/0: 16 2 1"},
		{do: free("r4"), want: "7/0: 0 0 0"},

		{what: "negative hashes", do: add("r1", 48, 101, math.MaxUint64-21, 303), want: "7/0: 48 3 1"},
		{what: "the requirement's example", query: projecting(48, 101, math.MaxUint64-21, 303, 404), want: "7/0: 96 4 1"},
		{what: "tokens saturate", do: add("r2", math.MaxUint64, 101), want: "7/0: 18446744073709551615 3 2"},
		{what: "also when projected", query: projecting(48), want: "7/0: 18446744073709551615 3 2"},
		{what: "and come back", do: free("r2"), want: "7/0: 48 3 1"},
		{what: "no tokens, no hashes", do: add("", 0), want: "7/0: 48 3 2"},
	}
	for i, step := range steps {
		if step.query != nil {
			if got := potential(w, step.query); got != step.want {
				t.Errorf("step %d, %s: potential loads are %q, want %q", i, step.what, got, step.want)
			}
			continue
		}
		if err := step.do(); err != nil {
			t.Errorf("step %d, %s: %v", i, step.what, err)
		}
		if got := w.LoadText(); got != step.want {
			t.Errorf("step %d, %s: loads are %q, want %q", i, step.what, got, step.want)
		}
	}
}

// TestSlotsErrors fixes kind and text of what is refused, and which fault is
// named first.
func TestSlotsErrors(t *testing.T) {
	const unknownScope = "no slot tracker for model=x tenant=t"
	unknown := catalog.Scope{Model: "x", Tenant: "t"}
	w := servicetest.Start(t)
	w.Slots(7, 3, 2)
	if err := w.SlotsAdd(servicetest.SlotsReservation("r", 7, 3, 1, 1)); err != nil {
		t.Fatal(err)
	}
	register := func(worker uint64, block, size uint32) error {
		return w.SlotsRegister(node.SlotsWorker{Worker: worker, Scope: servicetest.Scope, BlockSize: block, DPSize: size})
	}
	elsewhere := servicetest.SlotsReservation("r", 7, 3, 1)
	elsewhere.Scope = unknown
	_, potential := w.SlotsPotentialLoads(&node.SlotsProjection{Scope: unknown})
	for name, tc := range map[string]struct {
		err  error
		kind contract.Kind
		text string
	}{
		"register, no block size":    {register(7, 0, 1), contract.BadRequest, "block_size must be greater than 0"},
		"register, too many ranks":   {register(7, 1, 5000), contract.BadRequest, "dp_size 5000 exceeds the maximum 4096"},
		"register, other block size": {register(7, 8, 1), contract.Conflict, "block_size mismatch for model=m tenant=t: existing=4, requested=8"},
		"register, again":            {register(7, 4, 1), contract.Conflict, "worker 7 already registered for model=m tenant=t"},
		"unregister, unknown worker": {w.SlotsUnregister(servicetest.Scope, 8), contract.NotFound, "worker 8 not found for model=m tenant=t"},
		"unregister, unknown scope":  {w.SlotsUnregister(unknown, 7), contract.NotFound, "worker 7 not found for model=x tenant=t"},
		"add, unknown scope":         {w.SlotsAdd(elsewhere), contract.NotFound, unknownScope},
		"add, unknown worker":        {w.SlotsAdd(servicetest.SlotsReservation("r", 8, 3, 1)), contract.NotFound, "Worker WorkerWithDpRank { worker_id: 8, dp_rank: 3 } not found"},
		"add, unknown rank":          {w.SlotsAdd(servicetest.SlotsReservation("r", 7, 0, 1)), contract.NotFound, "Worker WorkerWithDpRank { worker_id: 7, dp_rank: 0 } not found"},
		"add, id taken": {
			w.SlotsAdd(servicetest.SlotsReservation("r", 7, 4, 1)), contract.Conflict,
			"Request r already exists (assigned to worker WorkerWithDpRank { worker_id: 7, dp_rank: 3 })",
		},
		"prefill complete, unknown id":    {w.SlotsPrefillComplete(servicetest.Scope, "q"), contract.NotFound, "Request q not found"},
		"prefill complete, unknown scope": {w.SlotsPrefillComplete(unknown, "r"), contract.NotFound, unknownScope},
		"free, unknown scope":             {w.SlotsFree(unknown, "r"), contract.NotFound, unknownScope},
		"potential loads, unknown scope":  {potential, contract.NotFound, unknownScope},
	} {
		t.Run(name, func(t *testing.T) { servicetest.WantError(t, tc.err, tc.kind, tc.text) })
	}
	w.WantLoad("7/3: 1 1 1, 7/4: 0 0 0")
	if n, known := w.Catalog().BlockSize(servicetest.Scope); n != servicetest.BlockSize || !known {
		t.Errorf("block size %d, %t", n, known)
	}
	if _, known := w.Catalog().BlockSize(unknown); known {
		t.Error("an unknown scope has a block size")
	}
	w.Close()
	servicetest.WantError(t, register(9, 4, 1), contract.Unavailable, "selection service is shutting down")
}

// TestSlotsUnregister: with a worker go its reservations and their ids; the tracker
// goes with its last worker and leaves its block size free.
func TestSlotsUnregister(t *testing.T) {
	w := servicetest.Start(t)
	w.Slots(1, 0, 2)
	w.Slots(2, 0, 1)
	for _, b := range []*node.SlotsReservation{servicetest.SlotsReservation("a", 1, 0, 5, 1), servicetest.SlotsReservation("b", 1, 1, 5, 1), servicetest.SlotsReservation("c", 2, 0, 5, 1)} {
		if err := w.SlotsAdd(b); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.SlotsUnregister(servicetest.Scope, 1); err != nil {
		t.Fatal(err)
	}
	w.WantLoad("2/0: 5 1 1")
	servicetest.WantError(t, w.SlotsPrefillComplete(servicetest.Scope, "a"), contract.NotFound, "Request a not found")
	if err := w.SlotsFree(servicetest.Scope, "a"); err != nil {
		t.Errorf("free of an id that went: %v", err)
	}
	if err := w.SlotsAdd(servicetest.SlotsReservation("a", 2, 0, 1, 2)); err != nil {
		t.Errorf("the id is not free again: %v", err)
	}
	if err := w.SlotsUnregister(servicetest.Scope, 2); err != nil {
		t.Fatal(err)
	}
	servicetest.WantError(t, w.SlotsFree(servicetest.Scope, "a"), contract.NotFound, "no slot tracker for model=m tenant=t")
	if len(w.SlotsWorkers(nil, nil)) != 0 || len(w.SlotsLoads(nil, nil)) != 0 {
		t.Error("workers of an unknown scope are listed")
	}
	if err := w.SlotsRegister(node.SlotsWorker{Worker: 2, Scope: servicetest.Scope, BlockSize: 64, DPSize: 1}); err != nil {
		t.Errorf("another block size: %v", err)
	}
	w.WantLoad("2/0: 0 0 0")
}
