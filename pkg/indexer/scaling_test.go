package indexer_test

import (
	"slices"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/indexer"
)

// number makes distinct hashes; streams of numbers from different places do
// not meet.
func number(from uint64, n int) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		out[i] = (from<<32 + uint64(i) + 1) * 0x9e3779b97f4a7c15
	}
	return out
}

// TestCostIsLinear proves that no history makes the index work quadratically
// while it holds its lock: 16 times the blocks take about 16 times as long,
// not 256 times. Each case is a history that once did.
func TestCostIsLinear(t *testing.T) {
	cases := []struct {
		name string
		n    int
		// prepare fills the index with n blocks and returns what is measured.
		prepare func(s *indexer.Space, n int) func()
	}{
		{"orphans of one parent join", 2000, func(s *indexer.Space, n int) func() {
			for i, name := range number(1, n) {
				s.Store(&indexer.Store{Parent: 7, HasParent: true, EngineHashes: []uint64{name}, Local: []uint64{uint64(i)}})
			}
			return func() { s.Store(&indexer.Store{EngineHashes: []uint64{7}, Local: []uint64{7}}) }
		}},
		{"orphans of one parent are removed", 4000, func(s *indexer.Space, n int) func() {
			names := number(1, n)
			for i, name := range names {
				s.Store(&indexer.Store{Parent: 7, HasParent: true, EngineHashes: []uint64{name}, Local: []uint64{uint64(i)}})
			}
			return func() { s.Remove(0, indexer.Device, names) }
		}},
		{"every name of an event changes its block", 1000, func(s *indexer.Space, n int) func() {
			names := number(1, n)
			s.Store(&indexer.Store{EngineHashes: names, Local: number(2, n)})
			return func() { s.Store(&indexer.Store{EngineHashes: names, Local: number(3, n)}) }
		}},
		{"an engine with a hash seed of its own evicts", 2000, func(s *indexer.Space, n int) func() {
			local, names := number(1, n), number(2, n)
			s.Store(&indexer.Store{Slot: 0, EngineHashes: number(3, n), Local: local})
			s.Store(&indexer.Store{Slot: 1, EngineHashes: names, Local: local})
			slices.Reverse(names)
			return func() { s.Remove(1, indexer.Device, names) }
		}},
		{"a block has many names", 2000, func(s *indexer.Space, n int) func() {
			names := number(1, n)
			s.Store(&indexer.Store{EngineHashes: []uint64{1}, Local: []uint64{1}})
			for i := range names {
				s.Store(&indexer.Store{EngineHashes: names[i : i+1], Local: []uint64{1}})
			}
			return func() { s.Remove(0, indexer.Device, names) }
		}},
		{"engines with hash seeds of their own clear", 16, func(s *indexer.Space, n int) func() {
			local := number(1, 200)
			for slot := range uint32(n) {
				s.Store(&indexer.Store{Slot: slot, EngineHashes: number(uint64(slot)+2, 200), Local: local})
			}
			return func() {
				for slot := range uint32(n) {
					s.Clear(slot)
				}
			}
		}},
		{"removed blocks are offloaded, deepest first", 1000, func(s *indexer.Space, n int) func() {
			names := number(1, n)
			s.StoreByEngineHash(0, indexer.Host, []uint64{1}) // the engine offloads by name
			s.Store(&indexer.Store{EngineHashes: names, Local: number(2, n)})
			s.Remove(0, indexer.Device, names)
			slices.Reverse(names)
			return func() {
				if resolved, _ := s.StoreByEngineHash(0, indexer.Host, names); resolved != n {
					t.Errorf("%d of %d blocks resolved", resolved, n)
				}
			}
		}},
		{"blocks without a way to the root are offloaded", 1000, func(s *indexer.Space, n int) func() {
			names := number(1, n)
			s.StoreByEngineHash(0, indexer.Host, []uint64{1})
			s.Store(&indexer.Store{EngineHashes: names, Local: number(2, n)})
			s.Remove(0, indexer.Device, names)
			// 65,536 later removals push the first of them out of memory.
			other := number(3, 65536-n/2)
			s.Store(&indexer.Store{EngineHashes: other, Local: other})
			slices.Reverse(other)
			s.Remove(0, indexer.Device, other)
			return func() {
				if resolved, _ := s.StoreByEngineHash(0, indexer.Host, names); resolved != 0 {
					t.Errorf("%d blocks resolved", resolved)
				}
			}
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			few, many := cost(t, c.n, 16*c.n, 100, c.prepare)
			if many > 100*few {
				t.Errorf("%d take %v, %d take %v", c.n, few, 16*c.n, many)
			}
		})
	}
}

// cost measures what n blocks take, few and many. A busy machine only adds: it is
// the least of a few measurements, for many until they are as fast as wanted. The
// steps are those of maps and of the allocator, too, which no counter of the
// index sees; so time is measured, and only in the nightly ring, without -short:
// beside many busy processes no margin is safe.
func cost(t *testing.T, few, many, factor int, prepare func(*indexer.Space, int) func()) (ofFew, ofMany time.Duration) {
	t.Helper()
	if testing.Short() {
		t.Skip("compares CPU times: nightly ring only")
	}
	measure := func(n int) time.Duration {
		run := prepare(indexer.New(), n)
		before := cpuTime()
		run()
		return cpuTime() - before
	}
	ofFew = min(measure(few), measure(few), measure(few))
	for try := range 4 {
		if took := measure(many); try == 0 || took < ofMany {
			ofMany = took
		}
		if ofMany <= time.Duration(factor)*ofFew {
			break
		}
	}
	return ofFew, ofMany
}

// TestHotPrefix proves that moving the border of a run costs nothing per child
// of it: every rank that evicts the end of a shared system prompt does that.
func TestHotPrefix(t *testing.T) {
	prefix := func(s *indexer.Space, n int) func() {
		system := number(1, 64)
		for slot := range uint32(2) {
			s.Store(&indexer.Store{Slot: slot, EngineHashes: system, Local: system})
		}
		for _, chat := range number(2, n) {
			s.Store(&indexer.Store{Parent: system[63], HasParent: true, EngineHashes: []uint64{chat}, Local: []uint64{chat}})
		}
		return func() {
			for range 20 {
				s.Remove(1, indexer.Device, system[63:])
				s.Store(&indexer.Store{Slot: 1, Parent: system[62], HasParent: true, EngineHashes: system[63:], Local: system[63:]})
			}
		}
	}
	if few, many := cost(t, 100, 10000, 20, prefix); many > 20*few {
		t.Errorf("below a prefix with 100 children: %v, with 10,000: %v", few, many)
	}
}
