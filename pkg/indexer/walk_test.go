package indexer_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/indexer/hybrid"
)

// entry is one block of one rank in one tier; paths are the model's.
type entry struct {
	slot uint32
	tier indexer.Tier
	path int
}

// each calls f for every name of every block that a rank holds; reached says
// that no hole is before it.
func (m *model) each(slot uint32, f func(e entry, name uint64, reached bool)) {
	r := m.ranks[slot]
	if r == nil {
		return
	}
	blocks := map[int]bool{}
	for tier := range r.named {
		for _, p := range r.named[tier] {
			blocks[p] = true
		}
	}
	open := map[int]bool{0: true}
	var reached func(p int) bool
	reached = func(p int) bool {
		if _, known := open[p]; !known {
			open[p] = blocks[p] && reached(m.up[p].parent)
		}
		return open[p]
	}
	for tier := range r.named {
		for name, p := range r.named[tier] {
			f(entry{slot, indexer.Tier(tier), p}, name, reached(p))
		}
	}
}

// watch compares a walk with what the model held meanwhile.
type watch struct {
	m      *model
	ever   map[entry]map[uint64]bool // held at some moment of the walk: under which names
	always map[uint32]map[entry]bool // reached all the time, by slot
	gone   map[uint32]bool
	paths  map[called]int // what came
	came   map[entry]bool
	passed map[entry]bool // came in any tier; the entry's is 0
}

// called is a name that a rank gave a block.
type called struct {
	slot uint32
	name uint64
}

func newWatch(m *model) *watch {
	w := &watch{
		m: m, ever: map[entry]map[uint64]bool{}, always: map[uint32]map[entry]bool{}, gone: map[uint32]bool{},
		paths: map[called]int{}, came: map[entry]bool{}, passed: map[entry]bool{},
	}
	for slot := range m.ranks {
		w.always[slot] = w.holds(slot)
	}
	return w
}

// holds notes what a slot holds now and returns what it reaches.
func (w *watch) holds(slot uint32) map[entry]bool {
	all := map[entry]bool{}
	w.m.each(slot, func(e entry, name uint64, reached bool) {
		if !w.gone[slot] {
			if w.ever[e] == nil {
				w.ever[e] = map[uint64]bool{}
			}
			w.ever[e][name] = true
		}
		if reached {
			all[e] = true
		}
	})
	return all
}

// forget ends what the slots that are gone may come with.
func (w *watch) forget() {
	for e := range w.ever {
		if w.gone[e.slot] {
			delete(w.ever, e)
		}
	}
}

// changed is called after every change of a slot.
func (w *watch) changed(slot uint32) {
	now := w.holds(slot)
	for e := range w.always[slot] {
		if !now[e] {
			delete(w.always[slot], e)
		}
	}
}

// take checks one run of the walk: every slot that comes with it came with its
// parent, under the name that it calls the parent, held the blocks under these
// names, and never came with them before.
func (w *watch) take(t testing.TB, r *indexer.Run) {
	t.Helper()
	came := 0
	for tier, slots := range r.Slots {
		for _, slot := range slots {
			at := 0
			if r.HasParent {
				p, ok := w.paths[called{slot, r.Parent}]
				if !ok {
					t.Fatalf("slot %d: the parent %d did not come", slot, r.Parent)
				}
				at = p
			}
			for i, l := range r.Local {
				if want := hashing.Seed + l/1000; r.Seed != want {
					t.Fatalf("block %d: seed %d, want %d", at, r.Seed, want)
				}
				parent := at
				at = w.m.path(parent, l)
				e := entry{slot, indexer.Tier(tier), at}
				switch {
				case parent != 0 && !w.passed[entry{slot, 0, parent}]:
					t.Fatalf("%+v came without its parent", e)
				case !w.ever[e][r.EngineHashes[i]]:
					t.Fatalf("%+v was never held under the name %d", e, r.EngineHashes[i])
				case w.came[e]:
					t.Fatalf("%+v came twice", e)
				}
				w.came[e], w.passed[entry{slot, 0, at}] = true, true
				w.paths[called{slot, r.EngineHashes[i]}] = at
			}
			came++
		}
	}
	if came == 0 || len(r.EngineHashes) == 0 || len(r.EngineHashes) != len(r.Local) {
		t.Fatalf("a run without slots or blocks: %+v", r)
	}
}

func (w *watch) end(t testing.TB) {
	t.Helper()
	for _, all := range w.always {
		for e := range all {
			if !w.came[e] {
				t.Fatalf("%+v was held all the time and did not come", e)
			}
		}
	}
}

func (w *watch) reached() (n int) {
	for _, all := range w.always {
		n += len(all)
	}
	return n
}

// walk passes over the index and lets the script go on for some steps after
// every run.
func (s *script) walk(work, steps int) {
	s.t.Helper()
	if s.renames {
		steps = 0 // a parent may have come under the name before
	}
	w := newWatch(s.model)
	s.forgot = func(slot uint32) { w.gone[slot] = true }
	defer func() { s.forgot = nil }()
	for runs := range s.space.WalkBy(work).Pieces {
		for i := range runs {
			w.take(s.t, &runs[i])
			for range steps {
				if op, more := s.next(); more {
					s.step(op)
					w.changed(s.touched)
				}
			}
		}
		w.forget() // they are in no piece that is copied from now on
	}
	w.end(s.t)
	if reached := w.reached(); steps == 0 && len(w.came) != reached {
		s.t.Fatalf("%d entries came, %d are reached", len(w.came), reached)
	}
}

// runWithWalks plays the history to its end, and walks now and then.
func (s *script) runWithWalks() {
	works := []int{1, 1, 40, 300, 16384}
	for n := 1; ; n++ {
		op, more := s.next()
		if !more {
			break
		}
		s.step(op)
		if n%40 == 0 {
			mode := s.byte()
			s.walk(works[int(mode)%len(works)], int(mode>>3)%4)
			if err := s.space.Check(); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	s.walk(1, 0)
	s.rebuild()
}

// TestWalks proves what Walk promises for long random histories that go on
// between its pieces, of one run or of many: splits, joins, evictions, blocks
// that come back, clears, ranks that leave their slots to others, and ranks that
// name blocks otherwise than others do. An index that is made from a walk goes
// on like the one that was walked.
func TestWalks(t *testing.T) {
	bytes, seeds := 3_000, uint64(4)
	if testing.Short() {
		bytes, seeds = 600, 1
	}
	for _, mode := range []byte{0, 1, 4, 5} {
		for _, slots := range []uint32{1, 3, 9, 70} {
			for seed := range seeds {
				t.Run(fmt.Sprintf("mode=%d/slots=%d/seed=%d", mode, slots, seed), func(t *testing.T) {
					t.Parallel()
					rnd := rand.New(rand.NewPCG(seed, uint64(slots)<<8|uint64(mode)))
					left := bytes
					newScript(t, func() (byte, bool) {
						if left--; left == bytes-1 {
							return mode, true
						}
						return byte(rnd.Uint32()), left > 0
					}, slots).runWithWalks()
				})
			}
		}
	}
}

// FuzzWalk lets the fuzzer write the histories.
func FuzzWalk(f *testing.F) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for _, mode := range []byte{0, 1, 4, 5} {
		for _, n := range []int{100, 300} {
			seed := []byte{mode}
			for range n {
				seed = append(seed, byte(rnd.Uint32()))
			}
			f.Add(seed, 3+mode*20)
		}
	}
	f.Fuzz(func(t *testing.T, history []byte, slots byte) {
		if len(history) > 300 {
			return // the model is slow
		}
		if len(history) > 0 {
			history[0] &^= 2 // equal names of different blocks: a peer cannot tell them apart
		}
		newScript(t, func() (b byte, more bool) {
			if len(history) == 0 {
				return 0, false
			}
			b, history = history[0], history[1:]
			return b, true
		}, uint32(slots)%130+1).runWithWalks()
	})
}

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
	for slot := range s.slots { // a walk does not say how many copies there are
		s.space.MakeProvisional(slot)
		s.model.rank(slot).doubt()
	}
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

// chain stores blocks that are named by their local hashes.
func chain(s *indexer.Space, slot uint32, parent uint64, blocks ...uint64) {
	s.Store(&indexer.Store{Slot: slot, Parent: parent, HasParent: parent != 0, EngineHashes: blocks, Local: blocks})
}

// walked walks in pieces of one run, calls then with the number of each run,
// and returns what came as "slots blocks".
func walked(s *indexer.Space, then func(n int)) (came []string) {
	for r := range s.WalkBy(1).Runs {
		came = append(came, fmt.Sprint(r.Slots[indexer.Device], r.Local))
		then(len(came))
	}
	return came
}

// TestWalkKeepsItsPlace proves that a walk goes on rightly where the blocks at
// its place have moved into another run, or are gone. Slot 1 first shares blocks
// 1 and 2 with slot 0, and leaves them when they came: the walk then stands
// before block 3, inside of a run from 1 to 4.
func TestWalkKeepsItsPlace(t *testing.T) {
	cases := []struct {
		name string
		then func(s *indexer.Space)
		want []string
	}{
		{"only joined", func(*indexer.Space) {}, []string{"[0] [3 4]", "[0] [9]"}},
		{"the end is evicted", func(s *indexer.Space) {
			s.Remove(0, indexer.Device, []uint64{4})
		}, []string{"[0] [3]", "[0] [9]"}},
		{"all that is left is evicted", func(s *indexer.Space) {
			s.Remove(0, indexer.Device, []uint64{4, 3})
		}, []string{"[0] [9]"}},
		{"evicted, and other blocks get their memory", func(s *indexer.Space) {
			s.Remove(0, indexer.Device, []uint64{4, 3})
			chain(s, 0, 2, 5, 6)
		}, []string{"[0] [9]"}},
		{"the whole chain goes", func(s *indexer.Space) {
			s.Remove(0, indexer.Device, []uint64{4, 3, 2, 1})
		}, []string{"[0] [9]"}},
		{"the next chain goes, too", func(s *indexer.Space) {
			s.Remove(0, indexer.Device, []uint64{4, 3, 2, 1, 9})
		}, nil},
		{"everything goes and comes back", func(s *indexer.Space) {
			s.Forget(0)
			chain(s, 0, 0, 1, 2, 3, 4)
		}, nil},
		{"another chain begins", func(s *indexer.Space) {
			chain(s, 0, 0, 8)
		}, []string{"[0] [3 4]", "[0] [9]"}},
		{"the rank is being cleared", func(s *indexer.Space) {
			s.Hide(0)
		}, nil},
		{"the rank's engine turns out to be hybrid", func(s *indexer.Space) {
			newHybridEngine(s, 0, 0, hybrid.Group{BlockSize: mainSize}).store(0, 0, mainSize, nil)
		}, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := indexer.New()
			chain(s, 0, 0, 9)
			chain(s, 0, 0, 1, 2, 3, 4)
			chain(s, 1, 0, 1, 2)
			came := walked(s, func(n int) {
				if n == 1 {
					s.Remove(1, indexer.Device, []uint64{2, 1})
					c.then(s)
				}
			})
			if want := append([]string{"[0 1] [1 2]"}, c.want...); !slices.Equal(came, want) {
				t.Errorf("came %q, want %q", came, want)
			}
		})
	}
}

// TestWalkLeavesOutHybrid: of a rank with further groups the main one's blocks would
// promise too much. When its engine is another one it is listed again.
func TestWalkLeavesOutHybrid(t *testing.T) {
	s := indexer.New()
	chain(s, 0, 0, 1, 2)
	chain(s, 70, 0, 1, 2)
	newHybridEngine(s, 70, 0, hybrid.Group{BlockSize: mainSize}).store(0, 0, mainSize, nil)
	for _, want := range []string{"[0] [1 2]", "[0 70] [1 2]"} {
		if came := walked(s, func(int) {}); !slices.Equal(came, []string{want}) {
			t.Errorf("came %q, want %q", came, want)
		}
		s.ForgetGroups(70)
	}
}

// TestWalkEnds proves that a walk ends although every run that came is removed
// and stored again, another chain comes each time, and the run grows.
func TestWalkEnds(t *testing.T) {
	const n = 100
	s := indexer.New()
	for i := range uint64(n) {
		chain(s, 0, 0, 1+i)
	}
	fresh := uint64(1000)
	came := 0
	for r := range s.WalkBy(1).Runs {
		last := r.EngineHashes[len(r.EngineHashes)-1]
		s.Remove(0, indexer.Device, []uint64{last})
		chain(s, 0, 0, last)
		chain(s, 0, 0, fresh)
		chain(s, 0, last, fresh+1)
		chain(s, 1, last, fresh+1)
		fresh += 2
		if came++; came > n {
			t.Fatalf("%d runs came", came)
		}
	}
	if came != n {
		t.Errorf("%d of %d runs came", came, n)
	}
}

// TestWalkStops proves that a walk that is broken off leaves nothing behind.
func TestWalkStops(t *testing.T) {
	s := indexer.New()
	for range s.Walk().Runs {
		t.Error("an empty index has a run")
	}
	chain(s, 0, 0, 1)
	chain(s, 0, 0, 2)
	for range s.WalkBy(1).Runs {
		break
	}
	if n := s.Walks(); n != 0 {
		t.Errorf("%d walks are still under way", n)
	}
}
