package kvevents_test

import (
	"fmt"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
)

// The payload of an engine's message is decoded and applied to an index, without
// sockets; then the index is asked how much of a prompt the engine has cached.
func Example() {
	// What vLLM publishes when two blocks of four tokens enter its cache.
	payload, err := msgpack.Marshal([]any{
		1700000000.5, // Unix seconds
		[]any{[]any{"BlockStored", []uint64{101, 102}, nil, []uint32{1, 2, 3, 4, 5, 6, 7, 8}, 4, nil, "GPU"}},
		0, // data-parallel rank
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	layout := hashing.Layout{BlockSize: 4}
	index := indexer.New()
	converter := kvevents.NewConverter(layout, 0, nil) // slot 0 is rank 0
	var (
		decoder kvevents.Decoder
		batch   kvevents.Batch
		tally   kvevents.Tally
	)
	if err := decoder.Decode(payload, &batch); err != nil {
		fmt.Println(err)
		return
	}
	converter.Apply(&batch, index, &tally)
	fmt.Println(tally.Blocks[indexer.Device][kvevents.BlocksStored], "blocks stored")

	prompt := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	blocks := layout.AppendLocal(nil, prompt, hashing.LocalSeed("", ""), nil)
	var overlap indexer.Overlap
	index.Overlap(blocks, &overlap)
	device, _, _ := overlap.At(0)
	fmt.Println(device, "of", len(blocks), "blocks of the prompt are on the device")
	// Output:
	// 2 blocks stored
	// 2 of 3 blocks of the prompt are on the device
}
