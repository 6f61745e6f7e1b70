package recovery_test

import (
	"bytes"
	"context"
	"fmt"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/recovery"
)

// oneScope is a Target with one scope, in which every rank has slot 0.
type oneScope struct{ gate *recovery.Gate }

func (oneScope) Fits(_ catalog.Scope, blockSize uint32) bool { return blockSize == 16 }

func (oneScope) ShowKeys(catalog.Scope) {}

func (o oneScope) Place(_ catalog.Scope, _ uint32, r catalog.Rank) (*recovery.Gate, uint32, bool) {
	o.gate.AssignSlot(0, r)
	return o.gate, 0, true
}

// A replica writes its index as a dump. Another one reads it; what a live event
// has removed meanwhile does not come back.
func Example() {
	index := indexer.New()
	index.Store(&indexer.Store{EngineHashes: []uint64{901, 902}, Local: []uint64{11, 12}})

	var dump bytes.Buffer
	writer := recovery.NewWriter(&dump)
	err := writer.Scope(context.Background(), recovery.Source{
		Scope: catalog.Scope{Model: "llama", Tenant: "default"}, BlockSize: 16,
		Ranks: map[uint32]catalog.Rank{0: {Worker: 7}}, Runs: index.Walk().Runs,
	})
	if err != nil {
		panic(err)
	}
	if err := writer.Close(); err != nil {
		panic(err)
	}

	second := indexer.New()
	gate := recovery.NewGate(second, true)
	gate.AssignSlot(0, catalog.Rank{Worker: 7})
	gate.Remove(0, indexer.Device, []uint64{902}) // live, before the dump has come
	report, err := recovery.Read(context.Background(), &dump, oneScope{gate}, recovery.Options{})
	gate.EndRecovery()
	fmt.Println(report.Scopes, "scope,", report.Events, "event,", report.Blocks, "block in the index,", err)
	fmt.Println("on the device:", second.Held(0)[indexer.Device])
	// Output:
	// 1 scope, 1 event, 1 block in the index, <nil>
	// on the device: 1
}
