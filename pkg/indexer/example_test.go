package indexer_test

import (
	"fmt"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
)

// Two ranks hold parts of a prompt. Their engines name the same blocks by
// different hashes; the blocks are compared by the hashes of their tokens.
func Example() {
	prompt := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	blocks := hashing.Layout{BlockSize: 4}.AppendLocal(nil, prompt, hashing.Seed, nil)

	index := indexer.New()
	index.Store(&indexer.Store{Slot: 0, EngineHashes: []uint64{901, 902}, Local: blocks[:2]})
	index.Store(&indexer.Store{Slot: 1, EngineHashes: []uint64{701, 702, 703}, Local: blocks})
	// Rank 1 moves its last block to host memory, and names it by its hash alone.
	index.Remove(1, indexer.Device, []uint64{703})
	index.StoreByEngineHash(1, indexer.Host, []uint64{703})

	var overlap indexer.Overlap // reused from prompt to prompt
	index.Overlap(blocks, &overlap)
	for slot := range uint32(2) {
		device, host, disk := overlap.At(slot)
		fmt.Printf("slot %d: %d blocks on the device, then %d in host memory, then %d on disk\n", slot, device, host, disk)
	}
	// Output:
	// slot 0: 2 blocks on the device, then 0 in host memory, then 0 on disk
	// slot 1: 2 blocks on the device, then 1 in host memory, then 0 on disk
}

// A block whose parent is unknown waits for it: events may come in any order.
func ExampleSpace_Store() {
	index := indexer.New()
	second := index.Store(&indexer.Store{Parent: 901, HasParent: true, EngineHashes: []uint64{902}, Local: []uint64{12}})
	first := index.Store(&indexer.Store{EngineHashes: []uint64{901}, Local: []uint64{11}})
	fmt.Println("orphaned:", second.Orphaned, "stored:", first.Stored)

	var overlap indexer.Overlap
	index.Overlap([]uint64{11, 12}, &overlap)
	device, _, _ := overlap.At(0)
	fmt.Println("overlap:", device)
	// Output:
	// orphaned: 1 stored: 1
	// overlap: 2
}
