package indexer_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
)

// seqHistory drives a sequence Space and the model with the same random events
// and compares every answer.
type seqHistory struct {
	rnd   *rand.Rand
	space *indexer.Space
	model *seqModel
	slots uint32
	kind  seqKind
	keys  []uint64 // of the namespaces
	doubt map[seqBlock]bool
	seeds map[uint32]uint64    // by slot that was cleared: its engine's hash seed
	own   map[uint32]*ownStore // by slot: its last event by names of an engine
	match indexer.Match
}

// seqKind says what a history has beside what all have.
type seqKind int

const (
	// mixed: publishers with tokens and without, that hash by the standard.
	mixed seqKind = iota
	// odd: engines that reuse names for other blocks; all send tokens.
	odd
	// engines: publishers without tokens that go by the engines' own names.
	engines
	seqKinds
)

const chainSeed = 4711

func newSeqHistory(rnd *rand.Rand, slots uint32, kind seqKind) *seqHistory {
	return &seqHistory{
		rnd: rnd, space: indexer.NewSequence(chainSeed), model: newSeqModel(), slots: slots, kind: kind,
		keys: []uint64{hashing.Seed, rnd.Uint64(), rnd.Uint64()}, doubt: map[seqBlock]bool{}, seeds: map[uint32]uint64{},
		own: map[uint32]*ownStore{},
	}
}

// prompt is a random chain: few hashes per level, so that prompts share prefixes
// and part ways at any depth; the same ones in every namespace.
func (h *seqHistory) prompt(n int) []uint64 {
	locals := make([]uint64, n)
	for i := range locals {
		locals[i] = 100
		if h.rnd.IntN(6) == 0 {
			locals[i] += uint64(h.rnd.IntN(3))
		}
	}
	return locals
}

// hashSeeds is how many hash seeds engines have where others go by their names.
const hashSeeds = 3

// hashSeed returns the hash seed of a slot's engine; every third slot has one
// of its own. If others use the engines' names, there are few seeds, and an
// engine that was cleared may have restarted with another one.
func (h *seqHistory) hashSeed(slot uint32) uint64 {
	if h.kind == engines {
		if seed, ok := h.seeds[slot]; ok {
			return seed
		}
		return uint64(slot % hashSeeds)
	}
	if slot%3 == 1 {
		return uint64(slot)
	}
	return 0
}

// names gives an engine's hashes of a chain.
func (h *seqHistory) names(hashSeed, key uint64, locals []uint64) []uint64 {
	names := make([]uint64, len(locals))
	acc := 17 + key + hashSeed*1000003
	for i, l := range locals {
		acc = acc*6364136223846793005 + l
		names[i] = acc
		if h.kind == odd && h.rnd.IntN(50) == 0 {
			names[i] = uint64(h.rnd.IntN(30)) + 1
		}
	}
	return names
}

// blocks returns the model's blocks of a chain.
func (h *seqHistory) blocks(key uint64, locals []uint64) []seqBlock {
	out := make([]seqBlock, len(locals))
	at := 0
	for i, l := range locals {
		at = h.model.chain(at, l)
		out[i] = seqBlock{key, at}
	}
	return out
}

func folded(hashes []uint64, key uint64) []uint64 {
	out := slices.Clone(hashes)
	for i := range out {
		out[i] ^= key
	}
	return out
}

func (h *seqHistory) tier() indexer.Tier {
	if h.rnd.IntN(3) > 0 {
		return indexer.Device
	}
	return indexer.Tier(h.rnd.IntN(indexer.NumTiers))
}

func (h *seqHistory) step(t testing.TB) {
	slot, tier := h.rnd.Uint32N(h.slots), h.tier()
	key := h.keys[h.rnd.IntN(len(h.keys))]
	locals := h.prompt(1 + h.rnd.IntN(24))
	names := h.names(h.hashSeed(slot), key, locals)
	from := 0
	if h.rnd.IntN(2) == 0 {
		from = h.rnd.IntN(len(locals))
	}
	switch k := h.rnd.IntN(100); {
	case k < 30 || k < 50 && h.kind == odd:
		h.store(slot, tier, key, names, locals, from)
	case k < 50:
		h.storeHashed(t, slot, tier, key, names, locals, from)
	case k < 86:
		gone := names[from:]
		if h.kind != odd && h.rnd.IntN(2) == 0 { // the names of publishers without tokens
			gone = folded(hashing.AppendSequenceSeed(nil, locals, chainSeed), key)[from:]
			if h.kind == engines && h.rnd.IntN(2) == 0 {
				names = h.names(h.rnd.Uint64N(hashSeeds), key, locals)
				gone = folded(names[from:], key^uint64(h.rnd.IntN(2)*99))
			}
		}
		if h.rnd.IntN(2) == 0 { // engines evict tails
			slices.Reverse(gone)
		}
		if h.rnd.IntN(3) == 0 {
			gone = gone[:1]
		}
		h.remove(slot, tier, gone)
	case k < 90:
		if h.kind != odd { // a name recalled after it changed its meaning has no right answer
			h.space.StoreByEngineHash(slot, tier, names[from:])
			h.model.storeNamed(slot, tier, names[from:])
		}
	case k < 91:
		h.space.Clear(slot)
		h.model.clear(slot)
		h.seeds[slot] = h.rnd.Uint64N(hashSeeds)
	case k < 92:
		h.space.Forget(slot)
		h.model.clear(slot)
		h.seeds[slot] = h.rnd.Uint64N(hashSeeds)
	case k < 94:
		h.space.ClearTier(slot, tier, key)
		h.model.clearTier(slot, tier, key)
	default:
		h.compare(t, key)
	}
	h.noteDoubt()
}

func (h *seqHistory) store(slot uint32, tier indexer.Tier, key uint64, names, locals []uint64, from int) {
	if h.kind == engines {
		from = 0
	}
	ev := &indexer.Store{Slot: slot, Tier: tier, EngineHashes: names[from:], Local: locals[from:], Seed: key, SeedKnown: true}
	if from > 0 {
		ev.Parent, ev.HasParent = names[from-1], true
		ev.SeedKnown = h.rnd.IntN(2) == 0
	} else if h.rnd.IntN(4) == 0 {
		ev.HasParent = true // 0: the root by another name
	}
	if key == hashing.Seed && h.rnd.IntN(2) == 0 {
		ev.SeedKnown = false
	}
	if distinct(ev.EngineHashes, ev.Parent, ev.HasParent) {
		h.space.Store(ev)
		h.model.store(ev)
		for _, b := range h.blocks(key, locals) {
			delete(h.doubt, b)
		}
	}
}

// storeHashed announces blocks by their sequence hashes, with a parent or a base
// or both or none, or by an engine's own names of them.
func (h *seqHistory) storeHashed(t testing.TB, slot uint32, tier indexer.Tier, key uint64, names, locals []uint64, from int) {
	rolling := hashing.AppendSequenceSeed(nil, locals, chainSeed)
	blocks := h.blocks(key, locals)[from:]
	ev := &indexer.SequenceStore{Slot: slot, Tier: tier, Seed: key, Hashes: rolling[from:]}
	if h.kind == engines && h.rnd.IntN(2) == 0 {
		h.storeOwn(t, slot, tier, key, locals, from)
		return
	}
	if h.rnd.IntN(2) == 0 && from > 0 {
		ev.Parent, ev.HasParent = rolling[from-1], true
	}
	if h.rnd.IntN(2) == 0 {
		ev.Base, ev.HasBase = uint32(from), true
	}
	ev.PublisherHashes = folded(ev.Hashes, key)
	if h.kind == mixed && h.rnd.IntN(2) == 0 { // a publisher that leaves tokens out now and then
		ev.PublisherHashes = names[from:]
	}
	out := h.space.StoreSequence(ev)
	h.model.storeHashed(slot, tier, ev.PublisherHashes, blocks)
	if out.BaseMismatch {
		t.Fatalf("base %d of %d blocks does not fit", ev.Base, len(locals))
	}
	if n := len(ev.PublisherHashes); out.Stored+out.Known != n || out.Confirmed+out.Resolved+out.Unverified != n {
		t.Fatalf("%d blocks: %+v", n, out)
	}
}

// noteDoubt records the blocks with tokens that no slot holds: the model does
// not know whether they are still in the tree to connect others.
func (h *seqHistory) noteDoubt() {
	if h.kind != engines {
		return
	}
	held := map[seqBlock]bool{}
	for _, r := range h.model.ranks {
		for t := range r.named {
			for _, b := range r.named[t] {
				held[b] = true
			}
		}
	}
	for b := range h.model.tokens {
		if !held[b] {
			h.doubt[b] = true
		}
	}
}

func (h *seqHistory) compare(t testing.TB, key uint64) {
	t.Helper()
	locals := h.prompt(1 + h.rnd.IntN(30))
	chain := folded(hashing.AppendSequenceSeed(nil, locals, chainSeed), key)
	h.match.ThroughGaps = h.rnd.IntN(4) == 0
	h.space.Match(chain, &h.match)
	got := expand(&h.match)
	for i, b := range h.blocks(key, locals) {
		want := h.model.holders(b)
		if len(want) == 0 && !h.match.ThroughGaps {
			if len(got) != i {
				t.Fatalf("prompt %v: %d blocks match, nobody holds number %d", locals, len(got), i)
			}
			return
		}
		if i >= len(got) {
			t.Fatalf("prompt %v: %d blocks match, number %d is held by %v", locals, len(got), i, want)
		}
		if fmt.Sprint(got[i]) != fmt.Sprint(want) {
			t.Fatalf("prompt %v, block %d: index says %v, model %v", locals, i, got[i], want)
		}
	}
	if len(got) != len(locals) {
		t.Fatalf("%d of %d blocks", len(got), len(locals))
	}
}

// expand returns (slot, tier) of the holders per block.
func expand(m *indexer.Match) (out []map[[2]uint32]bool) {
	for _, st := range m.Steps {
		held := map[[2]uint32]bool{}
		for tier, set := range st.Holders {
			for slot := range uint32(len(set) * 64) {
				if set[slot/64]>>(slot%64)&1 == 1 {
					held[[2]uint32{slot, uint32(tier)}] = true
				}
			}
		}
		for range st.Blocks {
			out = append(out, held)
		}
	}
	return out
}

func (h *seqHistory) verify(t testing.TB) {
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
	for _, key := range h.keys {
		if got, want := h.space.HasSeed(key), h.used(key); want && !got {
			t.Fatalf("namespace %d is not in use, model says it is", key)
		}
	}
}

// used reports whether anybody has a block of a namespace.
func (h *seqHistory) used(key uint64) bool {
	for _, r := range h.model.ranks {
		for t := range r.named {
			for _, b := range r.named[t] {
				if b.key == key {
					return true
				}
			}
		}
		for _, o := range r.waiting {
			if o.keyKnown && o.key == key {
				return true
			}
		}
	}
	return false
}

// leave lets every rank go: nothing may be left.
func (h *seqHistory) leave(t testing.TB) {
	t.Helper()
	for slot := range h.slots {
		h.space.Forget(slot)
	}
	if st := h.space.Stats(); st != (indexer.Stats{}) {
		t.Fatalf("after the last rank: %+v", st)
	}
	for _, key := range h.keys {
		if h.space.HasSeed(key) {
			t.Errorf("namespace %d is in use", key)
		}
	}
}

// TestSequenceAgainstModel proves that every answer of a sequence Space equals
// the naive sets per namespace, for histories of stores with tokens and without,
// by parent, base, unknown parent or engine name, of evictions, holes, orphans,
// recalls and clears, over more ranks than a machine word has bits, and that an
// index without workers holds no memory.
func TestSequenceAgainstModel(t *testing.T) {
	steps := 3_000
	if testing.Short() {
		steps = 600
	}
	for kind := range seqKinds {
		for seed := range uint64(8) {
			t.Run(fmt.Sprintf("kind=%d/seed=%d", kind, seed), func(t *testing.T) {
				t.Parallel()
				slots := []uint32{1, 3, 71, 150}[seed%4]
				h := newSeqHistory(rand.New(rand.NewPCG(seed, 2)), slots, kind)
				steps := steps
				if kind == engines {
					steps /= 4 // the model is slow there
				}
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

// FuzzSequence lets the fuzzer choose the histories.
func FuzzSequence(f *testing.F) {
	f.Add(uint64(1), uint64(2), uint16(300), uint8(70), uint8(0))
	f.Add(uint64(7), uint64(9), uint16(500), uint8(2), uint8(2))
	f.Fuzz(func(t *testing.T, a, b uint64, steps uint16, slots, kind uint8) {
		ranks := uint32(slots)%130 + 1
		h := newSeqHistory(rand.New(rand.NewPCG(a, b)), ranks, seqKind(kind)%seqKinds)
		// The more ranks, the fewer steps: what the naive model takes grows with both,
		// and a fuzzer gives an input up after some seconds.
		for range min(uint32(steps)%3000, 20_000/ranks) {
			h.step(t)
		}
		h.verify(t)
		h.compare(t, h.keys[a%uint64(len(h.keys))])
		h.leave(t)
	})
}

// ownStore is an event by an engine's own names, and its blocks.
type ownStore struct {
	indexer.SequenceStore
	blocks []seqBlock
}

// part returns blocks [i, j) of an event.
func (o *ownStore) part(i, j int) *ownStore {
	p := *o
	p.PublisherHashes, p.Hashes, p.blocks = o.PublisherHashes[i:j], o.Hashes[i:j], o.blocks[i:j]
	if o.EngineHashes != nil {
		p.EngineHashes = o.EngineHashes[i:j]
	}
	return &p
}

// storeOwn announces blocks by an engine's own names of them, or moves what the
// slot announced so the last time.
func (h *seqHistory) storeOwn(t testing.TB, slot uint32, tier indexer.Tier, key uint64, locals []uint64, from int) {
	if last := h.own[slot]; last != nil && h.rnd.IntN(3) > 0 {
		h.move(t, last, tier)
		return
	}
	ev := &ownStore{blocks: h.blocks(key, locals)[from:]}
	ev.Slot, ev.Tier, ev.Seed = slot, tier, key
	ev.Hashes = h.names(h.rnd.Uint64N(hashSeeds), key, locals)[from:]
	if h.rnd.IntN(2) == 0 { // hashes of the publisher's own, and the engine's beside them
		ev.Hashes, ev.EngineHashes = folded(ev.Hashes, 99), ev.Hashes
	}
	ev.PublisherHashes = folded(ev.Hashes, key)
	h.announceOwn(t, ev)
	h.own[slot] = ev
}

// move announces blocks in another tier before or after they leave their
// present one, all at once or one by one. Often no other slot holds them.
func (h *seqHistory) move(t testing.TB, ev *ownStore, to indexer.Tier) {
	if h.rnd.IntN(2) == 0 {
		h.evict(ev)
	}
	size := len(ev.blocks)
	if h.rnd.IntN(2) == 0 {
		size = 1
	}
	late := h.rnd.IntN(3) == 0
	for i := 0; i < len(ev.blocks); i += size {
		part := ev.part(i, i+size)
		if !late {
			h.remove(ev.Slot, ev.Tier, part.PublisherHashes)
		}
		next := *part
		next.Tier = to
		h.announceOwn(t, &next)
		if late && ev.Tier != to {
			h.remove(ev.Slot, ev.Tier, part.PublisherHashes)
		}
	}
	ev.Tier = to
}

// evict takes the blocks of an event from everybody else.
func (h *seqHistory) evict(ev *ownStore) {
	gone := map[seqBlock]bool{}
	for _, b := range ev.blocks {
		gone[b] = true
	}
	for slot := range h.slots {
		r := h.model.ranks[slot]
		if r == nil || slot == ev.Slot {
			continue
		}
		for tier := range r.named {
			var names []uint64
			for name, b := range r.named[tier] {
				if gone[b] {
					names = append(names, name)
				}
			}
			slices.Sort(names)
			h.remove(slot, indexer.Tier(tier), names)
		}
	}
}

func (h *seqHistory) remove(slot uint32, tier indexer.Tier, names []uint64) {
	h.space.Remove(slot, tier, names)
	h.model.remove(slot, tier, names)
	h.noteDoubt()
}

// announceOwn leaves events out of which the model does not know whether the
// index still has the names.
func (h *seqHistory) announceOwn(t testing.TB, ev *ownStore) {
	engine := ev.EngineHashes
	if engine == nil {
		engine = ev.Hashes
	}
	blocks := slices.Clone(ev.blocks)
	known := 0
	for i, b := range blocks {
		switch h.model.known(ev.Slot, b, ev.PublisherHashes[i], engine[i], h.doubt[b]) {
		case seqKnown:
			known++
		case seqUnknown:
			blocks[i] = h.model.claim(ev.Seed, ev.Hashes[i], engine[i])
		default:
			return
		}
	}
	out := h.space.StoreSequence(&ev.SequenceStore)
	h.model.storeHashed(ev.Slot, ev.Tier, ev.PublisherHashes, blocks)
	h.noteDoubt()
	if n := len(blocks); out.Stored < 0 || out.Stored+out.Known != n || out.Resolved != known || out.Unverified != n-known {
		t.Fatalf("%d of %d blocks are known: %+v", known, n, out)
	}
}

// seqKnowledge is what the index knows of a block by an engine's name.
type seqKnowledge int

const (
	seqUnknown seqKnowledge = iota
	seqKnown
	seqPerhaps
)

// known reports whether an index finds a block with tokens by a name that an
// engine has for it, or that slots have which were told that name, or by what
// the slot itself remembers of its own name. doubt: no slot held the block for
// some time.
func (m *seqModel) known(slot uint32, b seqBlock, own, engine uint64, doubt bool) seqKnowledge {
	if m.rank(slot).gone[own] == b {
		return seqKnown
	}
	called := false
	for _, r := range m.ranks {
		for t := range r.named {
			if r.named[t][own] == b {
				return seqKnown
			}
			called = called || r.named[t][engine] == b
		}
	}
	switch {
	case called && !doubt:
		return seqKnown
	case m.told[engine]:
		return seqPerhaps // as the table's name
	}
	return seqUnknown
}
