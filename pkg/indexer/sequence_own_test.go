package indexer_test

import (
	"slices"
	"testing"

	"github.com/select-service/select-service/pkg/indexer"
)

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

// move announces blocks in another tier before or after they leave the one that
// they are in, all at once or one by one. Often nobody else has them any more.
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

// known tells whether an index finds a block with tokens by a name that an engine
// has for it, or that others have who were told so, or by what the slot itself
// remembers of its own name. doubt: nobody had the block for a while.
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
