package selector_test

import (
	"fmt"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
)

// An index, the events of two engines, and a choice between them. A slot is the
// dense number that the program gives to a rank.
func Example() {
	layout := hashing.Layout{BlockSize: 4}
	prompt := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	blocks := layout.AppendLocal(nil, prompt, hashing.Seed, nil)

	// The engines announce which blocks they have stored, under hashes of their
	// own. Package kvevents reads such events from ZMQ messages.
	index := indexer.New()
	index.Store(&indexer.Store{Slot: 0, EngineHashes: []uint64{901}, Local: blocks[:1]})
	index.Store(&indexer.Store{Slot: 1, EngineHashes: []uint64{701, 702, 703}, Local: blocks[:3]})
	index.Remove(1, indexer.Device, []uint64{703})

	var overlap indexer.Overlap
	index.Overlap(blocks, &overlap)
	candidates := make([]selector.Candidate, 2)
	for slot := range candidates {
		c := &candidates[slot]
		c.Device, c.Host, c.Disk = overlap.At(uint32(slot))
		c.Known = true // that it carries no load
	}

	size := selector.Prompt{Tokens: uint64(len(prompt)), Blocks: len(blocks), BlockSize: 4}
	weights := selector.DefaultWeights()
	costs := weights.Costs(size, candidates, nil)
	fmt.Println("costs", costs, "worker", selector.Pick(costs, weights.Temperature, selector.Global()))
	// Output: costs [7 6] worker 1
}

// The choice is booked in the ledger in the same step, so the next request sees
// the load: it goes to the worker without the prefix, because the other one still
// computes the first prompt.
func Example_booked() {
	prompt := []uint64{11, 12, 13, 14} // local hashes of its blocks, of 4 tokens each
	size := selector.Prompt{Tokens: 16, Blocks: 4, BlockSize: 4}
	index := indexer.New()
	index.Store(&indexer.Store{Slot: 0, EngineHashes: []uint64{901}, Local: prompt[:1]})

	scope := catalog.Scope{Model: "llama", Tenant: "default"}
	ranks := []catalog.Rank{{Worker: 70}, {Worker: 80}} // by slot
	ledger := reservations.New(1, time.Now, nil)
	for slot, rank := range ranks {
		ledger.PutRank(scope, uint32(slot), rank)
	}

	weights := selector.DefaultWeights()
	for _, id := range []string{"first", "second"} {
		var overlap indexer.Overlap
		index.Overlap(prompt, &overlap)
		choose := func(v *reservations.View) (reservations.Placement, error) {
			cands := make([]selector.Candidate, len(ranks))
			for slot := range cands {
				c := &cands[slot]
				c.Device, c.Host, c.Disk = overlap.At(uint32(slot))
				carried := v.Load(uint32(slot))
				c.Prefill, c.Active, c.Shared, c.Known = carried.PrefillTokens, carried.Blocks, v.Shared(uint32(slot)), true
			}
			i := selector.Pick(weights.Costs(size, cands, nil), weights.Temperature, selector.Global())
			return reservations.Placement{Slot: uint32(i), Rank: ranks[i], PrefillTokens: weights.EffectivePrefill(size, &cands[i])}, nil
		}
		req := reservations.Request{ID: id, Hashes: hashing.AppendSequence(nil, prompt), TrackPrefill: true}
		placed, err := ledger.Book(scope, req, choose)
		if err != nil {
			panic(err)
		}
		fmt.Printf("%s: worker %d computes %d tokens\n", id, placed.Rank.Worker, placed.PrefillTokens)
	}
	// Output:
	// first: worker 70 computes 12 tokens
	// second: worker 80 computes 16 tokens
}

// Worker 0 has three of the four blocks cached but two others active: it is still
// the cheaper one.
func ExamplePick() {
	prompt := selector.Prompt{Tokens: 16, Blocks: 4, BlockSize: 4}
	weights := selector.DefaultWeights()
	costs := weights.Costs(prompt, []selector.Candidate{
		{Device: 3, Active: 2, Known: true},
		{Known: true},
	}, nil)
	fmt.Println(costs, selector.Pick(costs, weights.Temperature, selector.Global()))
	// Output: [7 8] 0
}
