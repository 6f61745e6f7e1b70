package indexer

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/select-service/select-service/internal/container/offheap"
	"github.com/select-service/select-service/pkg/hashing"
)

// TestRemovedBlocksAgainstModel proves that a rank remembers the latest blocks as they
// were, with block seeds from any moment on or without, before and after the first look-up by name,
// and that blocks without a seed of their own take the memory of their rows only.
func TestRemovedBlocksAgainstModel(t *testing.T) {
	for seed := range uint64(40) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var m offheap.Memory
		var r removedBlocks
		var model []removedBlock // the oldest first
		looks := int(rnd.Uint64N(12_000))
		seeded := int(rnd.Uint64N(12_000)) // the first block with a seed comes after so many
		names := 1 + rnd.Uint64N(9_000)
		for i := range 6_000 {
			if i == looks {
				r.indexByName()
			}
			if rnd.IntN(5_000) == 0 {
				r.clear(&m)
				model = nil
				if got := m.Bytes(); got != 0 {
					t.Fatalf("%d bytes after a clear", got)
				}
				seeded = i + int(rnd.Uint64N(12_000))
			}
			b := removedBlock{removedRow{rnd.Uint64N(names), rnd.Uint64(), rnd.Uint64()}, removedRest{seed: hashing.Seed}}
			if i >= seeded && rnd.IntN(3) > 0 {
				b.removedRest = removedRest{rnd.Uint64(), rnd.Uint32(), rnd.IntN(2) == 0, rnd.IntN(2) == 0}
			}
			r.add(&m, b)
			model = append(model, b)
			model = model[max(0, len(model)-r.limit()):]
			if want := int64(len(r.rows)) * int64(unsafe.Sizeof(removedRow{})); i < seeded && m.Bytes() != want {
				t.Fatalf("%d bytes without a seed, want %d", m.Bytes(), want)
			}
		}
		r.indexByName()
		latest := make(map[uint64]removedBlock)
		for _, b := range model {
			latest[b.name] = b
		}
		for name := range names {
			got, ok := r.find(name)
			if want, known := latest[name]; ok != known || got != want {
				t.Fatalf("seed %d, name %d: %+v %v, want %+v %v", seed, name, got, ok, want, known)
			}
		}
		r.clear(&m)
		if got := m.Bytes(); got != 0 {
			t.Fatalf("%d bytes at the end", got)
		}
	}
}
