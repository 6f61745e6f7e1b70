package indexer_test

import (
	"testing"

	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/test/helpers/length"
)

// TestCraftedHashes: an engine knows the numbers of the nodes that its blocks become,
// and can choose tokens for nearly every local hash, as XXH3 can be inverted. Pairs of
// node and local hash that cancel each other out in a hash without a secret key, or
// in one that only adds a secret, are as far from their places as any others.
func TestCraftedHashes(t *testing.T) {
	const n = 20_000
	const golden = 0x9e3779b97f4a7c15
	s := indexer.New()
	for i := range uint64(n) { // a chain of two blocks each
		s.Store(&indexer.Store{EngineHashes: []uint64{3*i + 1, 3*i + 2}, Local: []uint64{i << 32, 1<<63 | i}})
	}
	for i := range uint64(n) { // the first block of each gets a node of its own, with a second child
		head := uint64(s.NextNode())
		s.Store(&indexer.Store{
			Parent: 3*i + 1, HasParent: true, EngineHashes: []uint64{3*i + 3}, Local: []uint64{12345 ^ head*golden},
		})
	}
	if got := s.Stats().Runs; got != 3*n {
		t.Fatalf("%d runs, want %d", got, 3*n)
	}
	if longest := s.LongestSearch(); longest > 500 {
		t.Errorf("a look-up passes %d places", longest)
	}
}

// TestOneName: an engine that gives one name to block after block does not make a
// look-up of the name pass them all, whether it keeps the blocks under other names, or
// they stay in the tree because of a block below them.
func TestOneName(t *testing.T) {
	length.Sequential(t)
	const n = 2000
	for name, step := range map[string]func(s *indexer.Space, i uint64){
		"kept under other names": func(s *indexer.Space, i uint64) {
			s.Store(&indexer.Store{EngineHashes: []uint64{7}, Local: []uint64{i}})
			s.Store(&indexer.Store{EngineHashes: []uint64{1000 + i}, Local: []uint64{i}})
		},
		"kept by a block below": func(s *indexer.Space, i uint64) {
			s.Store(&indexer.Store{EngineHashes: []uint64{7, 1000 + i}, Local: []uint64{i, i}})
		},
		"removed, and kept by a block below": func(s *indexer.Space, i uint64) {
			s.Store(&indexer.Store{EngineHashes: []uint64{7, 1000 + i}, Local: []uint64{i, i}})
			s.Remove(0, indexer.Device, []uint64{7})
		},
		"kept by another rank": func(s *indexer.Space, i uint64) {
			s.Store(&indexer.Store{EngineHashes: []uint64{7}, Local: []uint64{i}})
			s.Store(&indexer.Store{Slot: 1, EngineHashes: []uint64{1000 + i}, Local: []uint64{i}})
		},
	} {
		t.Run(name, func(t *testing.T) { storeUnderOneName(t, indexer.New(), n, step) })
		t.Run(name+", in a sequence Space", func(t *testing.T) { storeUnderOneName(t, indexer.NewSequence(9), n, step) })
	}
	for name, step := range map[string]func(s *indexer.Space, i uint64){
		"without tokens": func(s *indexer.Space, i uint64) {
			s.StoreSequence(&indexer.SequenceStore{PublisherHashes: []uint64{7}, Hashes: []uint64{i + 1}})
			s.StoreSequence(&indexer.SequenceStore{PublisherHashes: []uint64{1000 + i}, Hashes: []uint64{i + 1}})
		},
		"as the engine's hash": func(s *indexer.Space, i uint64) {
			s.StoreSequence(&indexer.SequenceStore{PublisherHashes: []uint64{1000 + i}, Hashes: []uint64{i + 1}, EngineHashes: []uint64{7}})
		},
		"in another namespace": func(s *indexer.Space, i uint64) {
			s.Store(&indexer.Store{EngineHashes: []uint64{7}, Local: []uint64{i}, Seed: 5, SeedKnown: true})
			s.Store(&indexer.Store{EngineHashes: []uint64{1000 + i}, Local: []uint64{i}, Seed: 5, SeedKnown: true})
			s.StoreSequence(&indexer.SequenceStore{Seed: 6, PublisherHashes: []uint64{1<<40 + i}, Hashes: []uint64{1<<50 + i}, EngineHashes: []uint64{7}})
		},
	} {
		t.Run(name, func(t *testing.T) { storeUnderOneName(t, indexer.NewSequence(9), n, step) })
	}
}

func storeUnderOneName(t *testing.T, s *indexer.Space, n int, step func(s *indexer.Space, i uint64)) {
	for i := range uint64(n) {
		step(s, i)
	}
	if got := s.Stats().Unique; got < n {
		t.Fatalf("%d blocks, want %d at least", got, n)
	}
	if longest := s.LongestSearch(); longest > 200 {
		t.Errorf("a look-up passes %d places", longest)
	}
	if err := s.Check(); err != nil {
		t.Error(err)
	}
}
