package indexer_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/test/helpers/length"
)

// longChain is more than two segments of cells.
const longChain = 40_000

// storeLong stores a chain in events of so many blocks, for two ranks.
func storeLong(s *indexer.Space, names []uint64, perEvent int) {
	for slot := range uint32(2) {
		ev := indexer.Store{Slot: slot}
		for part := range slices.Chunk(names, perEvent) {
			ev.EngineHashes, ev.Local = part, part
			s.Store(&ev)
			ev.Parent, ev.HasParent = part[len(part)-1], true
		}
	}
}

// TestLongChains proves that a chain may be longer than a run can be, however
// it came: prefixes are exact while rank 0 loses it from the tail, the head, or
// the middle, while rank 1 holds on, and the other way round.
func TestLongChains(t *testing.T) {
	length.Sequential(t)
	names := number(1, longChain)
	cases := []struct {
		name string
		// gone is the order in which blocks are removed.
		gone func() []uint64
		// left is the prefix after the first k removals.
		left func(k int) uint32
	}{
		{"tail", func() []uint64 {
			gone := slices.Clone(names)
			slices.Reverse(gone)
			return gone
		}, func(k int) uint32 { return uint32(longChain - k) }},
		{"head", func() []uint64 { return names }, func(k int) uint32 {
			if k > 0 {
				return 0
			}
			return longChain
		}},
		{"middle", func() []uint64 {
			return slices.Concat(names[20_000:], names[:20_000])
		}, func(k int) uint32 {
			switch {
			case k == 0:
				return longChain
			case k <= 20_000:
				return 20_000
			}
			return 0
		}},
		{"every other block", func() []uint64 {
			var even, odd []uint64
			for i := len(names) - 1; i > 0; i -= 2 {
				odd, even = append(odd, names[i]), append(even, names[i-1])
			}
			return append(odd, even...)
		}, func(k int) uint32 {
			if k <= longChain/2 {
				return uint32(longChain - 2*k + min(k, 1))
			}
			return 1 // the first block goes last
		}},
	}
	for _, c := range cases {
		for _, perEvent := range []int{longChain, 1_000} {
			for first := range uint32(2) {
				if testing.Short() && (perEvent == longChain) == (first == 0) {
					continue
				}
				t.Run(fmt.Sprintf("%s/%d/%d", c.name, perEvent, first), func(t *testing.T) {
					s := indexer.New()
					storeLong(s, names, perEvent)
					removeLong(t, s, first, c.gone(), c.left)
				})
			}
		}
	}
}

func removeLong(t *testing.T, s *indexer.Space, slot uint32, gone []uint64, left func(k int) uint32) {
	t.Helper()
	names := number(1, longChain)
	if st := s.Stats(); st.Unique != longChain || st.Runs > 10 {
		t.Errorf("%d blocks in %d runs", st.Unique, st.Runs)
	}
	k, step := 0, length.Of(4_999, 9_999, 0)
	for part := range slices.Chunk(gone, step) {
		if removed, unknown := s.Remove(slot, indexer.Device, part); removed != len(part) || unknown != 0 {
			t.Errorf("removed %d, unknown %d", removed, unknown)
		}
		k += len(part)
		want, other := left(k), uint32(longChain)
		if k == longChain {
			want = 0
		}
		if got := depths(s, slot, names...)[0]; got != want {
			t.Fatalf("after %d removals: %d blocks, want %d", k, got, want)
		}
		if got := depths(s, 1-slot, names...)[0]; got != other {
			t.Fatalf("after %d removals: the other rank has %d blocks", k, got)
		}
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
	}
	if st := s.Stats(); st.Runs > 10 {
		t.Errorf("%d runs where a few would do", st.Runs)
	}
	// The blocks come back where they were.
	s.Store(&indexer.Store{Slot: slot, EngineHashes: names, Local: names})
	if got := depths(s, slot, names...)[0]; got != longChain {
		t.Errorf("stored again: %d blocks", got)
	}
	s.Remove(1-slot, indexer.Device, gone)
	if got := depths(s, slot, names...)[0]; got != longChain {
		t.Errorf("the other rank left: %d blocks", got)
	}
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	s.Forget(0)
	s.Forget(1)
	if st := s.Stats(); st != (indexer.Stats{}) {
		t.Errorf("after the last rank: %+v", st)
	}
}

// A part of a long event ends neither at a block named 0, which would make the
// next part start at the root, nor does it lose its orphans.
func TestLongEventWithZero(t *testing.T) {
	names := number(1, longChain)
	local := slices.Clone(names)
	for i := range names {
		if i%4096 == 4095 {
			names[i] = 0
			break
		}
	}
	s := indexer.New()
	out := s.Store(&indexer.Store{Parent: 7, HasParent: true, EngineHashes: names, Local: local})
	if out != (indexer.Outcome{Orphaned: longChain}) {
		t.Errorf("%+v", out)
	}
	s.Store(&indexer.Store{EngineHashes: []uint64{7}, Local: []uint64{7}})
	if got := depths(s, 0, append([]uint64{7}, local...)...)[0]; got != longChain+1 {
		t.Errorf("%d blocks", got)
	}
}
