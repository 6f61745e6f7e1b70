package indexer_test

import (
	"runtime"
	"testing"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
)

// TestSmallSpaces bounds what an index with few blocks takes, as there may be
// thousands: below 24 KiB with 4 blocks, of which one came and went, below 8 KiB
// when it is new.
func TestSmallSpaces(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector takes memory of its own")
	}
	local := number(1, 4)
	cases := []struct {
		name  string
		limit uint64
		make  func() *indexer.Space
	}{
		{"empty", 8 << 10, func() *indexer.Space { return indexer.NewSequence(hashing.Seed) }},
		{"4 blocks", 24 << 10, func() *indexer.Space {
			s := indexer.NewSequence(hashing.Seed)
			s.Store(&indexer.Store{EngineHashes: local, Local: local, Seed: 1, SeedKnown: true})
			s.Remove(0, indexer.Device, local[3:])
			s.Store(&indexer.Store{Parent: local[2], HasParent: true, EngineHashes: local[3:], Local: local[3:]})
			return s
		}},
		{"4 blocks, local", 20 << 10, func() *indexer.Space {
			s := indexer.New()
			s.Store(&indexer.Store{EngineHashes: local, Local: local})
			return s
		}},
	}
	for _, c := range cases {
		const spaces = 500
		kept := make([]*indexer.Space, spaces)
		before := heap()
		for i := range kept {
			kept[i] = c.make()
		}
		took := (heap() - before) / spaces
		if took > c.limit {
			t.Errorf("%s: %d bytes", c.name, took)
		}
		t.Logf("%s: %d bytes, %d of them flat", c.name, took, kept[0].Stats().Bytes)
		runtime.KeepAlive(kept)
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
