package recovery_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/recovery"
)

// chats fills an index with entries blocks of 64 ranks: conversations of 512
// blocks that begin with a system prompt of 32.
func chats(entries int) (*indexer.Space, map[uint32]catalog.Rank) {
	rnd := rand.New(rand.NewPCG(1, 2))
	s := indexer.New()
	names, local := make([]uint64, 512), make([]uint64, 512)
	for i := range 32 {
		names[i], local[i] = rnd.Uint64(), rnd.Uint64()
	}
	ranks := make(map[uint32]catalog.Rank)
	for slot := range uint32(64) {
		ranks[slot] = catalog.Rank{Worker: uint64(slot / 8), DP: slot % 8}
		for range entries / 64 / 480 {
			for i := 32; i < 512; i++ {
				names[i], local[i] = rnd.Uint64(), rnd.Uint64()
			}
			s.Store(&indexer.Store{Slot: slot, EngineHashes: names, Local: local, Seed: hashing.Seed, SeedKnown: true})
		}
	}
	return s, ranks
}

// BenchmarkWrite writes the dump of an index. B/op is all memory that was made
// for it, which is more than was in use at a time.
func BenchmarkWrite(b *testing.B) {
	for _, entries := range []int{1_000_000, 3_200_000} {
		b.Run(fmt.Sprintf("entries=%d", entries), func(b *testing.B) {
			space, ranks := chats(entries)
			bytes := 0
			b.ReportAllocs()
			for b.Loop() {
				bytes = 0
				d := recovery.NewWriter(writer(func(p []byte) (int, error) {
					bytes += len(p)
					return len(p), nil
				}))
				src := recovery.Source{Scope: catalog.Scope{Model: "m", Tenant: "t"}, BlockSize: 16, Ranks: ranks, Runs: space.Walk().Runs}
				if err := d.Scope(context.Background(), src); err != nil {
					b.Fatal(err)
				}
				if err := d.Close(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(bytes)/1e6, "dump-MB")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(entries), "ns/entry")
		})
	}
}
