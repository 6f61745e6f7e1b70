package indexer_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/select-service/select-service/pkg/indexer"
)

// copyOf makes an index from a walk.
func copyOf(t testing.TB, s *indexer.Space, work int) *indexer.Space {
	t.Helper()
	to := indexer.New()
	for r := range s.WalkBy(work).Runs {
		for tier, slots := range r.Slots {
			for _, slot := range slots {
				to.Store(&indexer.Store{
					Slot: slot, Tier: indexer.Tier(tier), Parent: r.Parent, HasParent: r.HasParent,
					EngineHashes: r.EngineHashes, Local: r.Local, Seed: r.Seed, SeedKnown: true,
				})
			}
		}
	}
	if n := to.Stats().Orphans; n != 0 {
		t.Fatalf("%d blocks came before their parents", n)
	}
	return to
}

// rebuild proves that an index made from a walk answers as the walked one does,
// and goes on to when ranks remove blocks under all their own names: in the end
// nothing is left of them.
func (s *script) rebuild() {
	s.t.Helper()
	to := copyOf(s.t, s.space, []int{1, 300, 16384}[s.byte()%3])
	alike := func() {
		s.t.Helper()
		var o indexer.Overlap
		for _, local := range s.prompts[max(0, len(s.prompts)-10):] {
			s.query(local)
			to.Overlap(local, &o)
			for slot := range s.slots {
				d, h, k := s.o.At(slot)
				if cd, ch, ck := o.At(slot); d != cd || h != ch || k != ck {
					s.t.Fatalf("slot %d, prompt %v: %d/%d/%d, its copy says %d/%d/%d", slot, local, d, h, k, cd, ch, ck)
				}
			}
		}
	}
	alike()
	rnd := uint64(s.byte())
	for _, all := range []bool{false, true} {
		for slot := range s.slots {
			for tier, named := range s.model.rank(slot).named {
				var gone []uint64
				for name, p := range named {
					if all || (uint64(p)*0x9e3779b97f4a7c15+rnd)>>62 == 0 {
						gone = append(gone, name)
					}
				}
				slices.Sort(gone)
				s.space.Remove(slot, indexer.Tier(tier), gone)
				s.model.remove(slot, indexer.Tier(tier), gone)
				to.Remove(slot, indexer.Tier(tier), gone)
			}
		}
		alike()
	}
	if err := to.Check(); err != nil {
		s.t.Fatal(err)
	}
	if st := to.Stats(); st.Blocks != [indexer.NumTiers]int{} || st.Unique != 0 {
		s.t.Fatalf("ranks cannot name %+v", st)
	}
}

// TestWalkPicksAName proves which of several names of a block comes: the one in
// the table while the rank goes by it, else the latest that is left.
func TestWalkPicksAName(t *testing.T) {
	const table = 100
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		s := indexer.New()
		local := []uint64{1}
		s.Store(&indexer.Store{Slot: 0, EngineHashes: []uint64{table}, Local: local})
		var names [indexer.NumTiers][]uint64 // of slot 1, by age
		for range 200 {
			tier := indexer.Tier(rnd.IntN(indexer.NumTiers))
			name := []uint64{table - rnd.Uint64N(6)}
			if i := slices.Index(names[tier], name[0]); i >= 0 {
				s.Remove(1, tier, name)
				names[tier] = slices.Delete(names[tier], i, i+1)
			} else {
				s.Store(&indexer.Store{Slot: 1, Tier: tier, EngineHashes: name, Local: local})
				names[tier] = append(names[tier], name[0])
			}
			var came [indexer.NumTiers]uint64
			for r := range s.Walk().Runs {
				for tier, slots := range r.Slots {
					if slices.Contains(slots, 1) {
						came[tier] = r.EngineHashes[0]
					}
				}
			}
			for tier, names := range names {
				want := uint64(0)
				if slices.Contains(names, table) {
					want = table
				} else if len(names) > 0 {
					want = names[len(names)-1]
				}
				if came[tier] != want {
					t.Fatalf("seed %d, tier %d: %d came of %v", seed, tier, came[tier], names)
				}
			}
			if err := s.Check(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A parent comes under the name that it has in the tier of its children: in
// another tier that may stand for another block.
func TestWalkParentOfTier(t *testing.T) {
	s := indexer.New()
	for _, ev := range []*indexer.Store{
		{EngineHashes: []uint64{1}, Local: []uint64{10}},
		{Tier: indexer.Host, EngineHashes: []uint64{2}, Local: []uint64{10}},
		{Tier: indexer.Host, EngineHashes: []uint64{1}, Local: []uint64{11}},
		{Tier: indexer.Host, Parent: 2, HasParent: true, EngineHashes: []uint64{3}, Local: []uint64{20}},
	} {
		s.Store(ev)
	}
	to := copyOf(t, s, 1)
	for _, prompt := range [][]uint64{{10, 20}, {11, 20}} {
		if from, to := depths(s, 0, prompt...), depths(to, 0, prompt...); from != to {
			t.Errorf("prompt %v: %v became %v", prompt, from, to)
		}
	}
}
