package kvevents_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
)

// traffic is a message with the given number of stored events; tokens are those
// of a vocabulary of 128,000, half of them in two bytes and half in four.
func traffic(b *testing.B, events, blocks int, asMap bool) []byte {
	const size = 16
	rnd := rand.New(rand.NewPCG(3, 4))
	var evs list
	for range events {
		hashes, tokens := make([]uint64, blocks), make([]uint32, blocks*size)
		for i := range hashes {
			hashes[i] = rnd.Uint64()
		}
		for i := range tokens {
			tokens[i] = rnd.Uint32N(128_000)
		}
		if asMap {
			evs = append(evs, dict{
				"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": rnd.Uint64(),
				"token_ids": tokens, "block_size": size, "lora_id": nil, "medium": "GPU", "lora_name": nil,
			})
		} else {
			evs = append(evs, list{"BlockStored", hashes, rnd.Uint64(), tokens, size, nil, "GPU", nil})
		}
	}
	return pack(b, list{1.5, evs, 0})
}

// shapes runs a benchmark on a long prompt's message and on decode traffic.
func shapes(b *testing.B, run func(b *testing.B, payload []byte, blocks int)) {
	for _, shape := range []struct{ events, blocks int }{{1, 128}, {8, 1}} {
		for _, form := range []string{"array", "map"} {
			b.Run(fmt.Sprintf("events=%d/blocks=%d/%s", shape.events, shape.blocks, form), func(b *testing.B) {
				payload := traffic(b, shape.events, shape.blocks, form == "map")
				b.SetBytes(int64(len(payload)))
				b.ReportAllocs()
				n := shape.events * shape.blocks
				run(b, payload, n)
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/block")
			})
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	shapes(b, func(b *testing.B, payload []byte, _ int) {
		var dec kvevents.Decoder
		var batch kvevents.Batch
		for b.Loop() {
			if err := dec.Decode(payload, &batch); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkConvert is the way from bytes to the index's door: decode, filter,
// hash.
func BenchmarkConvert(b *testing.B) {
	shapes(b, func(b *testing.B, payload []byte, blocks int) {
		var dec kvevents.Decoder
		var batch kvevents.Batch
		var tally kvevents.Tally
		idx := &sink{}
		conv := kvevents.NewConverter(hashing.Layout{BlockSize: 16}, 0, anyRank)
		for b.Loop() {
			if err := dec.Decode(payload, &batch); err != nil {
				b.Fatal(err)
			}
			conv.Apply(&batch, idx, &tally)
		}
		if idx.blocks != b.N*blocks {
			b.Fatalf("%d blocks reached the index, want %d", idx.blocks, b.N*blocks)
		}
	})
}

// sink is an index that only counts.
type sink struct{ blocks int }

func (s *sink) Store(ev *indexer.Store) indexer.Outcome {
	s.blocks += len(ev.Local)
	return indexer.Outcome{Stored: len(ev.Local)}
}

func (*sink) StoreByEngineHash(uint32, indexer.Tier, []uint64) (resolved, unresolved int) {
	return 0, 0
}
func (*sink) Remove(uint32, indexer.Tier, []uint64) (removed, unknown int) { return 0, 0 }
func (*sink) StoreInGroup(*indexer.GroupStore) bool                        { return true }
func (*sink) RemoveFromGroup(uint32, int32, []uint64) bool                 { return true }
func (*sink) ForgetGroups(uint32)                                          {}
func (*sink) MakeProvisional(uint32)                                       {}

func (*sink) Clear(uint32)                             {}
func (*sink) ParentSeed(uint32, uint64) (uint64, bool) { return 0, false }
