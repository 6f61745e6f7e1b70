package catalog_test

import (
	"fmt"

	"github.com/select-service/select-service/pkg/catalog"
)

// printer is a Reconciler that prints which ranks get and lose their slots. A
// real one adds them to the index and the ledger, and follows their event streams.
type printer struct{}

func (printer) Reconcile(before, after *catalog.Attachment) error {
	if before != nil {
		fmt.Println("before:", before.Ranks())
	}
	if after != nil {
		fmt.Println("after:", after.Ranks())
	}
	return nil
}

func (printer) ReserveSlot(catalog.Scope, uint32, catalog.Rank, uint32) {}

func (printer) ReleaseSlot(catalog.Scope, catalog.Rank, uint32) {}

// A worker with two data-parallel ranks comes and goes. A record without all that
// is needed makes the worker incomplete, which is no error.
func Example() {
	workers := catalog.New(catalog.Settings{}, printer{})
	scope := catalog.Scope{Model: "llama", Tenant: "default"}
	url := "http://10.0.0.7:8000"

	w, err := workers.Put(catalog.Record{ID: 7, Scope: scope, Endpoint: &url})
	if err != nil {
		panic(err)
	}
	fmt.Println(w.Lifecycle, w.Explain())

	blockSize, ranks := uint32(16), uint32(2)
	if w, err = workers.Patch(7, catalog.Patch{BlockSize: &blockSize, Size: &ranks}); err != nil {
		panic(err)
	}
	fmt.Println(w.Lifecycle)
	for _, e := range workers.Snapshot(scope).Ranks() {
		fmt.Println("candidate: worker", e.Rank.Worker, "rank", e.DP, "in slot", e.Slot)
	}
	if _, err := workers.Delete(7); err != nil {
		panic(err)
	}
	// Output:
	// incomplete [block_size must be greater than 0]
	// after: [{0 0 true} {1 1 true}]
	// schedulable
	// candidate: worker 7 rank 0 in slot 0
	// candidate: worker 7 rank 1 in slot 1
	// before: [{0 0 true} {1 1 true}]
}
