package indexer_test

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/test/helpers/length"
)

// An event without blocks leaves nothing behind.
func TestNothingCostsNothing(t *testing.T) {
	s := indexer.New()
	s.Store(&indexer.Store{})
	s.Store(&indexer.Store{Parent: 5, HasParent: true})
	s.StoreByEngineHash(0, indexer.Host, nil)
	s.Remove(3, indexer.Disk, nil)
	s.Clear(70)
	if st := s.Stats(); st.Bytes != 0 {
		t.Errorf("%+v", st)
	}
}

// What a rank called a block in another tier does not keep it from calling
// another block so: the block that an orphaned chain ends in can be removed.
func TestAnchorTakesItsName(t *testing.T) {
	s := indexer.New()
	s.Store(&indexer.Store{EngineHashes: []uint64{1}, Local: []uint64{10}})
	s.Store(&indexer.Store{Tier: indexer.Host, EngineHashes: []uint64{1}, Local: []uint64{11}})
	out := s.Store(&indexer.Store{Tier: indexer.Host, Parent: 99, HasParent: true, EngineHashes: []uint64{1}, Local: []uint64{10}})
	if out != (indexer.Outcome{Stored: 1}) {
		t.Errorf("%+v", out)
	}
	if a, b := depths(s, 0, 10), depths(s, 0, 11); a != [3]uint32{1, 0, 0} || b != [3]uint32{} {
		t.Errorf("name 1 stands for block 10 in both tiers now: %v, %v", a, b)
	}
	s.Remove(0, indexer.Device, []uint64{1})
	s.Remove(0, indexer.Host, []uint64{1})
	if st := s.Stats(); st.Blocks != [indexer.NumTiers]int{} || st.Unique != 0 {
		t.Errorf("%+v", st)
	}
}

// A parent's name that stands for different blocks in different tiers is that
// of the first tier, whichever block came first.
func TestParentInSeveralTiers(t *testing.T) {
	for _, hostFirst := range []bool{false, true} {
		s := indexer.New()
		events := []*indexer.Store{
			{EngineHashes: []uint64{1}, Local: []uint64{10}},
			{Tier: indexer.Host, EngineHashes: []uint64{1}, Local: []uint64{11}},
		}
		if hostFirst {
			slices.Reverse(events)
		}
		for _, ev := range events {
			s.Store(ev)
		}
		s.Store(&indexer.Store{Parent: 1, HasParent: true, EngineHashes: []uint64{2}, Local: []uint64{20}})
		if got := depths(s, 0, 10, 20); got != [3]uint32{2, 0, 0} {
			t.Errorf("host first %v: %v", hostFirst, got)
		}
	}
}

// A block that comes back by name alone has the seed it was hashed under:
// children inherit it.
func TestRestoreKeepsTheSeed(t *testing.T) {
	const salted = 4242
	s := indexer.New()
	s.StoreByEngineHash(0, indexer.Host, []uint64{1})
	s.Store(&indexer.Store{EngineHashes: []uint64{1, 2}, Local: []uint64{10, 20}, Seed: salted, SeedKnown: true})
	s.Remove(0, indexer.Device, []uint64{2, 1})
	s.StoreByEngineHash(0, indexer.Host, []uint64{1, 2})
	for _, name := range []uint64{1, 2} {
		if seed, ok := s.ParentSeed(0, name); seed != salted || !ok {
			t.Errorf("block %d: seed %d, %v", name, seed, ok)
		}
	}
	s.Forget(0)
	if st := s.Stats(); st.Bytes != 0 {
		t.Errorf("%d bytes left", st.Bytes)
	}
}

// A chain that is offloaded by name becomes a run or two again, in either order.
func TestRestoreMakesRuns(t *testing.T) {
	const n = 1000
	for _, deepest := range []bool{false, true} {
		s := indexer.New()
		names := number(1, n)
		local := slices.Clone(names)
		s.StoreByEngineHash(0, indexer.Host, []uint64{1})
		s.Store(&indexer.Store{EngineHashes: names, Local: local})
		s.Remove(0, indexer.Device, names)
		if deepest {
			slices.Reverse(names)
		}
		s.StoreByEngineHash(0, indexer.Host, names)
		if st := s.Stats(); st.Runs > 2 || st.Unique != n {
			t.Errorf("deepest first %v: %+v", deepest, st)
		}
		if got := depths(s, 0, local...); got != [3]uint32{0, n, 0} {
			t.Errorf("deepest first %v: %v", deepest, got)
		}
	}
}

// TestClearBesideStores proves that a rank may be cleared from one stream while
// another one stores for it (the batches of a stream may name any rank of its
// worker): whatever is left afterwards is whole.
func TestClearBesideStores(t *testing.T) {
	s := indexer.New()
	chats := 100_000
	if testing.Short() {
		chats = 30_000
	}
	local := number(1, chats)
	names := number(2, chats)
	for i := range local { // many runs, so that Clear lets others in
		s.Store(&indexer.Store{Slot: 0, EngineHashes: local[i : i+1], Local: local[i : i+1]})
	}
	var writers sync.WaitGroup
	for w := range uint64(4) {
		writers.Go(func() {
			rnd := rand.New(rand.NewPCG(w, 1))
			for range 500 {
				i := rnd.IntN(chats - 100)
				for k := i; k < i+100; k++ {
					s.Store(&indexer.Store{Slot: 1, EngineHashes: names[k : k+1], Local: local[k : k+1]})
				}
			}
		})
	}
	for range 20 {
		s.Clear(1)
		s.Remove(1, indexer.Device, names)
	}
	writers.Wait()
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	s.Remove(1, indexer.Device, names)
	if held := s.Held(1); held != [indexer.NumTiers]int{} {
		t.Errorf("holds %v that it cannot name", held)
	}
	s.Forget(0)
	s.Forget(1)
	if st := s.Stats(); st.Bytes != 0 {
		t.Errorf("%+v", st)
	}
}

// TestSmallSpaces bounds what an index with few blocks takes, as there may be
// thousands: below 24 KiB with 4 blocks, of which one came and went, below 8 KiB
// when it is new.
func TestSmallSpaces(t *testing.T) {
	if length.Race {
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

// TestGrowthLeavesLittleOnTheHeap: an index that grows leaves outgrown tables on the
// collector's heap only as long as they are small.
func TestGrowthLeavesLittleOnTheHeap(t *testing.T) {
	if length.Race {
		t.Skip("all memory comes from the heap then")
	}
	const blocks, limit = 500_000, 4 << 20 // bytes in all, with what is still in use
	names, local := number(1, blocks), number(2, blocks)
	s := indexer.New()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for at := 0; at < blocks; at += 500 { // chains of 500 blocks
		s.Store(&indexer.Store{EngineHashes: names[at : at+500], Local: local[at : at+500]})
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > limit {
		t.Errorf("%d bytes were allocated on the heap, of %d", took, s.Stats().Bytes)
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Waiting, Seeds and HasSeed follow blocks from their stay as orphans into the
// tree and out of it.
func TestInspection(t *testing.T) {
	for _, seed := range []uint64{hashing.Seed, 5} {
		s := indexer.NewSequence(hashing.Seed)
		orphan := &indexer.Store{Slot: 3, Parent: 1, HasParent: true, EngineHashes: []uint64{2}, Local: []uint64{20}, Seed: seed, SeedKnown: true}
		s.Store(orphan)
		if got := s.OrphanSlots(seed, 20, nil); !slices.Equal(got, []uint32{3}) {
			t.Errorf("waiting: %v", got)
		}
		if got := s.OrphanSlots(seed+1, 20, nil); len(got) != 0 {
			t.Errorf("waiting in another namespace: %v", got)
		}
		if s.Empty(3) || !s.Empty(2) || !s.Empty(9) {
			t.Errorf("idle: %v %v %v", s.Empty(3), s.Empty(2), s.Empty(9))
		}
		if !s.HasSeed(seed) || s.HasSeed(seed+1) || len(s.Seeds(nil)) != 0 {
			t.Errorf("seed %d in use: %v, seeds %v", seed, s.HasSeed(seed), s.Seeds(nil))
		}
		if _, known := s.DepthOf(3, indexer.Device, 2); known {
			t.Error("the depth of an orphan is known")
		}
		s.Store(&indexer.Store{Slot: 3, EngineHashes: []uint64{1}, Local: []uint64{10}, Seed: seed, SeedKnown: true})
		if got := s.OrphanSlots(seed, 20, nil); len(got) != 0 || !slices.Equal(s.Seeds(nil), []uint64{seed}) {
			t.Errorf("waiting: %v, seeds %v", got, s.Seeds(nil))
		}
		if depth, known := s.DepthOf(3, indexer.Device, 2); depth != 1 || !known {
			t.Errorf("depth %d, known %v", depth, known)
		}
		if _, known := s.DepthOf(99, indexer.Device, 2); known {
			t.Error("a slot that was never used holds a block")
		}
		s.Remove(3, indexer.Device, []uint64{2, 1})
		if s.HasSeed(seed) || len(s.Seeds(nil)) != 0 {
			t.Errorf("seeds %v of no blocks", s.Seeds(nil))
		}
		// A stream that is cleared loses what waits, in its tier.
		s.Store(orphan)
		orphan.Tier = indexer.Host
		s.Store(orphan)
		s.ClearTier(3, indexer.Device, seed)
		if !s.HasSeed(seed) || s.Stats().Orphans != 1 {
			t.Error("the block waits in host memory")
		}
		s.ClearTier(3, indexer.Host, seed)
		if s.HasSeed(seed) || s.Stats().Orphans != 0 {
			t.Error("nothing waits")
		}
	}
}
