package indexer_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/select-service/select-service/pkg/indexer"
)

// history drives the index and the model with the same random events and
// compares every answer.
type history struct {
	rnd   *rand.Rand
	space *indexer.Space
	model *model
	slots uint32
	// odd engines reuse a name for another block now and then.
	odd bool
	o   indexer.Overlap
}

func newHistory(rnd *rand.Rand, slots uint32, odd bool) *history {
	return &history{rnd: rnd, space: indexer.New(), model: newModel(), slots: slots, odd: odd}
}

// chain is a random prompt: few hashes per level, so that prompts share
// prefixes and part ways at any depth.
func (h *history) chain(n int) []uint64 {
	locals := make([]uint64, n)
	for i := range locals {
		locals[i] = 100
		if h.rnd.IntN(6) == 0 {
			locals[i] += uint64(h.rnd.IntN(3))
		}
	}
	return locals
}

// names gives an engine's hashes of a chain. Odd engines have hash seeds of
// their own in every second slot.
func (h *history) names(slot uint32, locals []uint64) []uint64 {
	names := make([]uint64, len(locals))
	acc := uint64(17)
	if h.odd && slot%2 == 1 {
		acc = uint64(slot) * 1000003
	}
	for i, l := range locals {
		acc = acc*6364136223846793005 + l
		names[i] = acc
		if h.odd && h.rnd.IntN(50) == 0 {
			names[i] = uint64(h.rnd.IntN(30)) + 1
		}
	}
	return names
}

func (h *history) slot() uint32 { return h.rnd.Uint32N(h.slots) }

func (h *history) tier() indexer.Tier {
	if h.rnd.IntN(3) > 0 {
		return indexer.Device
	}
	return indexer.Tier(h.rnd.IntN(indexer.NumTiers))
}

func distinct(names []uint64, parent uint64, hasParent bool) bool {
	seen := map[uint64]bool{}
	if hasParent {
		seen[parent] = true
	}
	for _, n := range names {
		if seen[n] {
			return false
		}
		seen[n] = true
	}
	return true
}

func (h *history) step(t testing.TB) {
	slot, tier := h.slot(), h.tier()
	locals := h.chain(1 + h.rnd.IntN(24))
	names := h.names(slot, locals)
	switch k := h.rnd.IntN(100); {
	case k < 50:
		from := 0
		if h.rnd.IntN(2) == 0 {
			from = h.rnd.IntN(len(locals))
		}
		ev := &indexer.Store{Slot: slot, Tier: tier, EngineHashes: names[from:], Local: locals[from:]}
		if from > 0 {
			ev.Parent, ev.HasParent = names[from-1], true
		} else if h.rnd.IntN(4) == 0 {
			ev.HasParent = true // 0: the root by another name
		}
		switch h.rnd.IntN(20) {
		case 0, 1, 2:
			ev.Provisional = !h.odd // names of blocks with several ones stay doubtful for longer
		case 3, 4, 5:
		default:
			ev.Counted = true
		}
		if distinct(ev.EngineHashes, ev.Parent, ev.HasParent) {
			h.space.Store(ev)
			h.model.store(ev)
		}
	case k < 88:
		from := h.rnd.IntN(len(names))
		gone := names[from:]
		if h.rnd.IntN(2) == 0 { // engines evict tails
			for i, j := 0, len(gone)-1; i < j; i, j = i+1, j-1 {
				gone[i], gone[j] = gone[j], gone[i]
			}
		}
		if h.rnd.IntN(3) == 0 {
			gone = gone[:1]
		}
		h.space.Remove(slot, tier, gone)
		h.model.remove(slot, tier, gone)
	case k < 94:
		if h.odd {
			return // a name recalled after it changed its meaning has no right answer
		}
		from := h.rnd.IntN(len(names))
		h.space.StoreByEngineHash(slot, tier, names[from:])
		h.model.storeNamed(slot, tier, names[from:])
	case k < 95:
		h.space.Clear(slot)
		h.model.clear(slot)
	case k < 96:
		h.space.MakeProvisional(slot)
		h.model.rank(slot).doubt()
	case k < 97:
		h.space.Forget(slot)
		h.model.clear(slot)
	default:
		h.compare(t)
	}
}

func (h *history) compare(t testing.TB) {
	t.Helper()
	locals := h.chain(1 + h.rnd.IntN(30))
	h.space.Overlap(locals, &h.o)
	for slot := range h.slots {
		d, ho, k := h.o.At(slot)
		md, mh, mk := h.model.overlap(slot, locals)
		if d != md || ho != mh || k != mk {
			t.Fatalf("slot %d, prompt %v: index says %d/%d/%d, model %d/%d/%d", slot, locals, d, ho, k, md, mh, mk)
		}
		most := h.rnd.IntN(40)
		held := h.space.AppendNames([]uint64{1}, slot, locals, most)[1:]
		if want := min(int(md+mh), most); len(held) != want || !h.model.hold(slot, locals, held, md) {
			t.Fatalf("slot %d, prompt %v: the index names %x, of %d blocks on the device and %d after them", slot, locals, held, md, mh)
		}
	}
}

func (h *history) verify(t testing.TB) {
	t.Helper()
	if err := h.space.Check(); err != nil {
		t.Fatal(err)
	}
	st := h.space.Stats()
	for tier := range indexer.Tier(indexer.NumTiers) {
		if got, want := st.Blocks[tier], h.model.blocks(tier); got != want {
			t.Fatalf("%v: %d entries, model has %d", tier, got, want)
		}
	}
	if want := h.model.copies(); st.Copies != want {
		t.Fatalf("%d further copies, model has %d", st.Copies, want)
	}
}

// leave lets every rank go: nothing may be left.
func (h *history) leave(t testing.TB) {
	t.Helper()
	for slot := range h.slots {
		h.space.Forget(slot)
	}
	if st := h.space.Stats(); st != (indexer.Stats{}) {
		t.Fatalf("after the last rank: %+v", st)
	}
}

// TestAgainstModel proves that every answer equals the naive per-block walk,
// for histories of stores, evictions, holes, renames, orphans, recalls, clears
// and removals over more ranks than a machine word has bits, and that an
// index without workers holds no memory.
func TestAgainstModel(t *testing.T) {
	steps := 5_000
	if testing.Short() {
		steps = 1_000
	}
	for _, odd := range []bool{false, true} {
		for seed := range uint64(10) {
			t.Run(fmt.Sprintf("odd=%v/seed=%d", odd, seed), func(t *testing.T) {
				t.Parallel()
				slots := []uint32{1, 3, 71, 150}[seed%4]
				h := newHistory(rand.New(rand.NewPCG(seed, 1)), slots, odd)
				for i := range steps {
					h.step(t)
					if i%500 == 0 {
						h.verify(t)
					}
				}
				h.verify(t)
				h.leave(t)
			})
		}
	}
}

// FuzzSpace lets the fuzzer choose the histories.
func FuzzSpace(f *testing.F) {
	f.Add(uint64(1), uint64(2), uint16(300), uint8(70))
	f.Add(uint64(7), uint64(9), uint16(2000), uint8(2))
	f.Fuzz(func(t *testing.T, a, b uint64, steps uint16, slots uint8) {
		h := newHistory(rand.New(rand.NewPCG(a, b)), uint32(slots)%130+1, a%2 == 0)
		for range steps % 4000 {
			h.step(t)
		}
		h.verify(t)
		h.compare(t)
		h.leave(t)
	})
}
