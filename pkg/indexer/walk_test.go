package indexer_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
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
		bytes, seeds = 1_000, 2
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
