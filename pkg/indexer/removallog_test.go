package indexer_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
)

// TestRemovals proves that the latest removal of a block from every slot and
// tier is remembered, in local and in sequence Spaces, whether it was removed,
// or its rank or stream cleared, and that a slot's go when it is forgotten.
func TestRemovals(t *testing.T) {
	const n = 40
	local := number(1, n)
	for _, sequence := range []bool{false, true} {
		s, chain, seed := indexer.New(), local, hashing.Seed
		if sequence {
			s, seed = indexer.NewSequence(hashing.Seed), 77
			chain = folded(hashing.AppendSequence(nil, local), seed)
		}
		for slot := range uint32(3) {
			for _, tier := range []indexer.Tier{indexer.Device, indexer.Disk} {
				s.Store(&indexer.Store{Slot: slot, Tier: tier, EngineHashes: local, Local: local, Seed: seed, SeedKnown: true})
			}
		}
		s.Remove(0, indexer.Device, local[20:])
		s.Store(&indexer.Store{Slot: 0, Parent: local[19], HasParent: true, EngineHashes: local[20:], Local: local[20:]})
		s.Clear(0)
		s.Remove(1, indexer.Disk, local[:1])
		if cleared := s.ClearTier(1, indexer.Device, seed); cleared != n {
			t.Errorf("%d cleared", cleared)
		}
		if held := s.Held(1); held[indexer.Device] != 0 || held[indexer.Disk] != n-1 {
			t.Errorf("slot 1 holds %v", held)
		}
		s.Remove(2, indexer.Device, local[30:])
		check := func(at int, want ...indexer.Removal) {
			t.Helper()
			got := s.Removals(chain, at, nil)
			slices.SortFunc(got, func(a, b indexer.Removal) int {
				return int(a.Slot)*4 + int(a.Tier) - int(b.Slot)*4 - int(b.Tier)
			})
			if !slices.Equal(got, want) {
				t.Errorf("sequence %v, block %d: %v, want %v", sequence, at, got, want)
			}
		}
		zero := []indexer.Removal{{Slot: 0, Tier: indexer.Device, Cleared: true}, {Slot: 0, Tier: indexer.Disk, Cleared: true}}
		one := indexer.Removal{Slot: 1, Tier: indexer.Device, Cleared: true}
		check(0, append(zero, one, indexer.Removal{Slot: 1, Tier: indexer.Disk})...)
		check(10, append(zero, one)...)
		check(35, append(zero, one, indexer.Removal{Slot: 2, Tier: indexer.Device})...)
		check(-1)
		check(n)
		s.Forget(0)
		check(10, one)
		s.Forget(1)
		s.Forget(2)
		if st := s.Stats(); st != (indexer.Stats{}) {
			t.Errorf("after the last rank: %+v", st)
		}
	}
}

// TestRemovalsAreBounded proves that 65,536 removals are remembered, the
// latest, and 16,384 of one clear.
func TestRemovalsAreBounded(t *testing.T) {
	const n = 65536 + 100
	local := number(1, n)
	s := indexer.New()
	store := func() { s.Store(&indexer.Store{EngineHashes: local, Local: local}) }
	remembered := func() (left int) {
		rnd := rand.New(rand.NewPCG(1, 1))
		for range 200 {
			left += len(s.Removals(local, rnd.IntN(n), nil))
		}
		return left
	}
	store()
	s.Clear(0)
	if got := remembered(); got < 25 || got > 80 { // a quarter of 200
		t.Errorf("%d of 200 blocks of a clear", got)
	}
	store()
	gone := slices.Clone(local)
	slices.Reverse(gone)
	s.Remove(0, indexer.Device, gone)
	for _, c := range []struct{ at, want int }{{0, 1}, {65535, 1}, {65536, 0}, {n - 1, 0}} {
		if got := s.Removals(local, c.at, nil); len(got) != c.want {
			t.Errorf("block %d: %v", c.at, got)
		}
	}
	if b := s.Stats().Bytes; b > 4<<20 {
		t.Errorf("%d bytes", b)
	}
}

// TestClearTierBesideStores proves that a stream is cleared to the last block
// while other ranks split and join the runs that it shares with them.
func TestClearTierBesideStores(t *testing.T) {
	const n, key = 60_000, 9
	local := number(1, n)
	s := indexer.NewSequence(hashing.Seed)
	store := func(slot uint32, from, to int) {
		s.Store(&indexer.Store{
			Slot: slot, Parent: uint64(from), HasParent: from > 0, EngineHashes: number(5, n)[from:to], Local: local[from:to], Seed: key, SeedKnown: true,
		})
	}
	names, hashes := number(5, n), hashing.AppendSequence(nil, local)
	store(0, 0, n)
	other := make(chan struct{})
	go func() {
		defer close(other)
		rnd := rand.New(rand.NewPCG(1, 2))
		for range 2000 {
			at := rnd.IntN(n - 10)
			s.StoreSequence(&indexer.SequenceStore{Slot: 1, Seed: key, PublisherHashes: names[at : at+3], Hashes: hashes[at : at+3]})
			if rnd.IntN(2) == 0 {
				s.Remove(1, indexer.Device, names[at:at+1])
			}
		}
	}()
	for range 5 {
		cleared := s.ClearTier(0, indexer.Device, key)
		if held := s.Held(0); cleared != n || held[indexer.Device] != 0 {
			t.Errorf("%d cleared, %v left", cleared, held)
		}
		store(0, 0, n)
	}
	<-other
	if err := s.Check(); err != nil {
		t.Error(err)
	}
}
