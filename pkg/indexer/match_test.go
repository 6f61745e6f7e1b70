package indexer_test

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/test/helpers/length"
)

// tierWalk follows one slot through the tiers of a Match.
func tierWalk(held []map[[2]uint32]bool, slot uint32) (device, host, disk uint32) {
	var ends [indexer.NumTiers]uint32
	at := uint32(0)
	for t := range ends {
		for int(at) < len(held) && held[at][[2]uint32{slot, uint32(t)}] {
			at++
		}
		ends[t] = at
	}
	return ends[0], ends[1] - ends[0], ends[3] - ends[1]
}

// TestMatchLocal proves that the holders which Match finds in a local Space
// are those that Overlap counts, also while a slot is being cleared, and that
// MatchSequence finds the same from sequence hashes.
func TestMatchLocal(t *testing.T) {
	for seed := range uint64(6) {
		h := newHistory(rand.New(rand.NewPCG(seed, 6)), []uint32{2, 70, 130}[seed%3], seed%2 == 0)
		for range length.Of(1500, 1500, 300) {
			h.step(t)
		}
		if seed >= 3 {
			h.space.Hide(1)
		}
		var m, byHash indexer.Match
		for range length.Of(500, 500, 100) {
			locals := h.chain(1 + h.rnd.IntN(30))
			h.space.Overlap(locals, &h.o)
			h.space.Match(locals, &m)
			held := expand(&m)
			for slot := range h.slots {
				d, ho, k := h.o.At(slot)
				if fd, fh, fk := tierWalk(held, slot); fd != d || fh != ho || fk != k {
					t.Fatalf("slot %d, prompt %v: Follow %d/%d/%d, Overlap %d/%d/%d", slot, locals, fd, fh, fk, d, ho, k)
				}
			}
			m.ThroughGaps = h.rnd.IntN(2) == 0
			byHash.ThroughGaps = m.ThroughGaps
			h.space.Match(locals, &m)
			h.space.MatchSequence(hashing.AppendSequence(nil, locals), &byHash)
			if !slices.EqualFunc(expand(&m), expand(&byHash), maps.Equal) {
				t.Fatalf("prompt %v: %v by local hashes, %v by rolling ones", locals, m.Steps, byHash.Steps)
			}
			m.ThroughGaps = false
		}
	}
}

// A walk by sequence hashes ends where a hash differs: at the root, inside a run
// and between runs. Nothing is found in an empty index.
func TestMatchSequenceEnds(t *testing.T) {
	local := number(1, 20)
	rolling := hashing.AppendSequence(nil, local)
	s := indexer.New()
	var m indexer.Match
	s.MatchSequence(rolling, &m)
	s.Match(local, &m)
	if len(m.Steps) != 0 {
		t.Errorf("empty index: %v", m.Steps)
	}
	s.Store(&indexer.Store{EngineHashes: local, Local: local})
	s.Store(&indexer.Store{Slot: 1, EngineHashes: local[:10], Local: local[:10]})
	for at := range rolling {
		other := slices.Clone(rolling)
		other[at]++
		if s.MatchSequence(other, &m); m.Blocks() != at {
			t.Errorf("other hash at %d: %d blocks", at, m.Blocks())
		}
	}
	if s.MatchSequence(append(rolling, 5), &m); m.Blocks() != 20 {
		t.Errorf("%d blocks", m.Blocks())
	}
	if s.MatchSequence(nil, &m); m.Blocks() != 0 {
		t.Errorf("%d blocks", m.Blocks())
	}
}

// A Match that was used for a wide answer gives a right narrow one, and the
// walk itself takes no memory then.
func TestMatchIsUsedAgain(t *testing.T) {
	s := indexer.NewSequence(hashing.Seed)
	local := number(1, 200)
	chain := hashing.AppendSequence(nil, local)
	for slot := range uint32(200) {
		s.Store(&indexer.Store{Slot: slot, EngineHashes: local[:slot+1], Local: local[:slot+1], Seed: 0, SeedKnown: true})
	}
	var m indexer.Match
	s.Match(chain, &m)
	if m.Blocks() != 200 || len(m.Steps) != 200 {
		t.Errorf("%d blocks in %d steps", m.Blocks(), len(m.Steps))
	}
	for i, st := range m.Steps {
		if n := len(expand(&indexer.Match{Steps: m.Steps[i : i+1]})[0]); n != 200-i || st.Blocks != 1 {
			t.Errorf("block %d: %d holders", i, n)
		}
	}
	if n := testing.AllocsPerRun(10, func() { s.Match(chain, &m) }); n != 0 && !length.Race {
		t.Errorf("%v allocations", n)
	}
	s.Match(chain[:1], &m)
	if len(m.Steps) != 1 || m.Blocks() != 1 {
		t.Errorf("%v", m.Steps)
	}
}

// TestSequenceReadsDuringWrites proves, under the race detector, that whatever
// reads a sequence Space may run at any time, and that a walk never finds more
// than was asked for.
func TestSequenceReadsDuringWrites(t *testing.T) {
	h := newSeqHistory(rand.New(rand.NewPCG(3, 3)), 80, mixed)
	ctx, stop := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	for i := range uint64(3) {
		readers.Go(func() {
			r := &seqHistory{rnd: rand.New(rand.NewPCG(i, 9)), space: h.space, keys: h.keys}
			for n := 0; ctx.Err() == nil; n++ {
				locals := r.prompt(30)
				key := r.keys[r.rnd.IntN(len(r.keys))]
				chain := folded(hashing.AppendSequenceSeed(nil, locals, chainSeed), key)
				r.match.ThroughGaps = n%2 == 0
				r.space.Match(chain, &r.match)
				if m := r.match.Blocks(); m > len(chain) || r.match.ThroughGaps && m != len(chain) {
					t.Errorf("%d of %d blocks", m, len(chain))
				}
				if n%50 == 0 {
					r.space.Removals(chain, 3, nil)
					r.space.OrphanSlots(key, locals[5], nil)
					r.space.DepthOf(uint32(n)%80, indexer.Device, 5)
					r.space.Seeds(nil)
					r.space.HasSeed(key)
					r.space.Stats()
					for range r.space.Walk().Runs {
						t.Error("a sequence Space has no walk")
					}
				}
			}
		})
	}
	steps := 3000
	if testing.Short() {
		steps = 1000
	}
	for range steps {
		h.step(t)
	}
	stop()
	readers.Wait()
	h.verify(t)
	h.leave(t)
}
