package indexer_test

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/select-service/select-service/pkg/indexer"
)

// TestNamesAreHeld: while an engine stores one prompt again and again, under other names each time, and evicts it, the
// names that are listed are of blocks that it holds at one moment of the call. TestHistory compares them with a model.
func TestNamesAreHeld(t *testing.T) {
	const blocks, rounds = 48, 3000
	s := indexer.New()
	local := make([]uint64, blocks)
	for i := range local {
		local[i] = uint64(i) + 1
	}
	names := func(round uint64) []uint64 {
		list := make([]uint64, blocks)
		for i := range list {
			list[i] = round<<16 | uint64(i)
		}
		return list
	}
	s.Store(&indexer.Store{Slot: 1, EngineHashes: names(1 << 40), Local: local}) // another engine
	var begun, ended atomic.Uint64                                               // rounds
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			for ended.Load() < rounds {
				first := ended.Load() + 1 // the earliest round of which blocks can be held
				got := s.AppendNames(nil, 0, local, blocks)
				if len(got) == 0 {
					continue
				}
				round := got[0] >> 16
				if want := names(round)[:len(got)]; !slices.Equal(got, want) || round < first || round > begun.Load() {
					t.Errorf("rounds %d to %d: the engine has %x", first, begun.Load(), got)
					return
				}
			}
		})
	}
	for round := uint64(1); round <= rounds; round++ {
		begun.Store(round)
		of := names(round)
		s.Store(&indexer.Store{Slot: 0, EngineHashes: of[:20], Local: local[:20]})
		s.Store(&indexer.Store{Slot: 0, EngineHashes: of[20:], Local: local[20:], Parent: of[19], HasParent: true})
		slices.Reverse(of)
		s.Remove(0, indexer.Device, of[:30])
		s.Remove(0, indexer.Device, of[30:])
		ended.Store(round)
	}
	readers.Wait()
}

// BenchmarkNames lists the names of 4,096 blocks, those of the table and those of an engine with names of its own. The
// limit of the service is a millisecond.
func BenchmarkNames(b *testing.B) {
	local, names := make([]uint64, 4096), [2][]uint64{make([]uint64, 4096), make([]uint64, 4096)}
	for i := range local {
		local[i], names[0][i], names[1][i] = uint64(i)+1, uint64(i)+1<<32, uint64(i)+1<<48
	}
	s := indexer.New()
	for slot := range uint32(2) {
		s.Store(&indexer.Store{Slot: slot, EngineHashes: names[slot], Local: local})
	}
	for slot, name := range []string{"table", "own"} {
		b.Run("names="+name, func(b *testing.B) {
			var got []uint64
			for b.Loop() {
				got = s.AppendNames(got[:0], uint32(slot), local, 4096)
			}
			if !slices.Equal(got, names[slot]) {
				b.Error("other names")
			}
		})
	}
}
