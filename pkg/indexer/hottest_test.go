package indexer_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/select-service/select-service/pkg/indexer"
)

// TestHottest compares the runs with a naive tree of blocks, for random histories: each block is in
// one run, which has its holders by tier, subtrees are summed up, and the hottest are those with the
// most blocks times holders.
func TestHottest(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		s := indexer.New()
		held := map[string]map[uint32]map[indexer.Tier]bool{} // by the path of local hashes
		names := map[string]uint64{}
		for range 150 {
			slot, tier := rnd.Uint32N(70), indexer.Tier(rnd.IntN(indexer.NumTiers))
			var local, called []uint64
			path := ""
			for range 1 + rnd.IntN(5) {
				local = append(local, 1+rnd.Uint64N(2))
				path += fmt.Sprintf("/%d", local[len(local)-1])
				if names[path] == 0 {
					names[path] = uint64(1000 + len(names))
				}
				called = append(called, names[path])
				if held[path] == nil {
					held[path] = map[uint32]map[indexer.Tier]bool{}
				}
				if held[path][slot] == nil {
					held[path][slot] = map[indexer.Tier]bool{}
				}
				held[path][slot][tier] = true
			}
			s.Store(&indexer.Store{Slot: slot, Tier: tier, EngineHashes: called, Local: local})
		}
		blocks, sum := 0, 0
		for _, by := range held {
			blocks++
			sum += len(by)
		}
		all, walked, complete := s.Hottest(1 << 20)
		if walked != len(all) || !complete {
			t.Fatalf("seed %d: %d runs walked, %d listed, complete %v", seed, walked, len(all), complete)
		}
		found, total := 0, uint64(0)
		for i, r := range all {
			found += int(r.Blocks)
			if r.Parent < 0 {
				total += r.SubtreeHeld
			} else if up := all[r.Parent]; r.Parent >= i || up.Depth+up.Blocks != r.Depth {
				t.Fatalf("seed %d: run %d %+v is below %+v", seed, i, r, up)
			}
			path := pathOf(all, i, held)
			by := held[path]
			var tiers [indexer.NumTiers]uint32
			for slot, in := range by {
				for tier := range in {
					tiers[tier]++
				}
				if len(by) <= 16 && !slices.Contains(r.Slots, slot) {
					t.Errorf("seed %d: %s lacks slot %d", seed, path, slot)
				}
			}
			if !r.Known || int(r.Holders) != len(by) || r.Tiers != tiers || len(r.Slots) != min(16, len(by)) {
				t.Fatalf("seed %d: %s is %+v, held by %v", seed, path, r, by)
			}
		}
		if found != blocks || int(total) != sum {
			t.Fatalf("seed %d: %d blocks held %d times, want %d and %d", seed, found, total, blocks, sum)
		}
		few, _, _ := s.Hottest(3)
		var hot []uint64
		for _, r := range few {
			if r.Place > 0 {
				hot = append(hot, uint64(r.Blocks)*uint64(r.Holders))
			}
		}
		var every []uint64
		for _, r := range all {
			every = append(every, uint64(r.Blocks)*uint64(r.Holders))
		}
		slices.Sort(every)
		slices.Sort(hot)
		if !slices.Equal(hot, every[len(every)-3:]) {
			t.Errorf("seed %d: the hottest hold %v, want %v", seed, hot, every[len(every)-3:])
		}
	}
}

// pathOf returns the path of the first block of a run. The hashes within a run are not listed: of
// the blocks after its first, all have one child, as another would have ended the run.
func pathOf(all []indexer.HotRun, i int, held map[string]map[uint32]map[indexer.Tier]bool) string {
	r := all[i]
	path := ""
	if r.Parent >= 0 {
		path = pathOf(all, r.Parent, held)
		for range all[r.Parent].Blocks - 1 {
			for child := range uint64(2) {
				if next := fmt.Sprintf("%s/%d", path, child+1); held[next] != nil {
					path = next
					break
				}
			}
		}
	}
	return fmt.Sprintf("%s/%d", path, r.Local)
}

// TestHottestWhileWritten proves that a walk ends, and is free of races, while blocks come and go.
func TestHottestWhileWritten(t *testing.T) {
	s := indexer.New()
	var writer sync.WaitGroup
	stop := make(chan struct{})
	write := func(rnd *rand.Rand) {
		local := make([]uint64, 1+rnd.IntN(20))
		names := make([]uint64, len(local))
		path := uint64(1)
		for i := range local {
			local[i] = 1 + rnd.Uint64N(2)
			path = path*3 + local[i]
			names[i] = path
		}
		ev := indexer.Store{Slot: rnd.Uint32N(9), EngineHashes: names, Local: local}
		if rnd.IntN(2) == 0 {
			s.Remove(ev.Slot, ev.Tier, names)
		} else {
			s.Store(&ev)
		}
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 500 {
		write(rnd)
	}
	writer.Go(func() {
		rnd := rand.New(rand.NewPCG(2, 1))
		for {
			select {
			case <-stop:
				return
			default:
				write(rnd)
			}
		}
	})
	for range 50 {
		if runs, _, complete := s.Hottest(10); !complete || len(runs) == 0 {
			t.Errorf("%d runs, complete %v", len(runs), complete)
		}
	}
	close(stop)
	writer.Wait()
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
}

// TestHottestBound proves that a walk ends at its bound.
func TestHottestBound(t *testing.T) {
	s := indexer.New()
	for i := range uint64(100) {
		s.Store(&indexer.Store{EngineHashes: []uint64{1 + i}, Local: []uint64{1 + i}})
	}
	if runs, walked, complete := s.HottestOf(5, 60, 100); walked != 60 || complete || len(runs) != 5 {
		t.Errorf("%d runs of %d, complete %v", len(runs), walked, complete)
	}
	chain := make([]uint64, 40)
	for i := range chain { // each block has another holder, so that it is a run
		chain[i] = 1000 + uint64(i)
		s.Store(&indexer.Store{Slot: uint32(i), EngineHashes: chain[:i+1], Local: chain[:i+1]})
	}
	if runs, complete := s.HottestShown(40, 30); len(runs) != 30 || complete {
		t.Errorf("%d runs with those before them, complete %v, want 30", len(runs), complete)
	}
	if runs, walked, complete := indexer.NewSequence(0).Hottest(5); len(runs)+walked != 0 || !complete {
		t.Error("a sequence space has runs")
	}
}
