package indexer

import "github.com/select-service/select-service/pkg/hashing"

// In a sequence Space a block is its value: its rolling hash, folded with the
// key of its namespace (value = rolling ^ key), so that namespaces share one
// Space and nothing of one is ever met from another. Values stand where a local
// Space has local hashes. A table finds every block by its value, so that a walk
// goes on wherever the next block stands: blocks that came by hash alone are
// runs of their own below the root.

// unknownDepth and all above it say that the depth of a block is not known: a
// publisher announced it by hash, without its place. Blocks behind it count on.
const unknownDepth = 1 << 31

// cellOf returns the cell of a value, or 0.
func (t *tree) cellOf(value uint64) uint32 {
	tag := t.byValue.tag(value)
	sh := t.byValue.shard(tag)
	if sh.n == 0 {
		return 0
	}
	for i := sh.first(tag); ; i = sh.next(i) {
		cell, same := sh.at(i, tag)
		if cell == 0 || same && t.cells.local(cell) == value {
			return cell
		}
	}
}

// removeValues takes n cells out of the table of values.
func (t *tree) removeValues(off, n uint32) {
	for i, value := range t.cells.locals(off, n) {
		t.byValue.remove(value, off+uint32(i))
	}
}

// positionOf returns the place before a block.
func (t *tree) positionOf(cell uint32) position {
	id := t.cells.nodeOf(cell)
	return position{id, cell - t.node(id).off}
}

// step returns the place before the given block where it follows p. At the
// root's place it is a first block.
func (t *tree) step(p position, local uint64) (position, bool) {
	nd := t.node(p.id)
	switch {
	case p.at < nd.n && t.cells.local(nd.off+p.at) == local:
		return p, true
	case t.byValue != nil:
		if cell := t.cellOf(local); cell != 0 {
			return t.positionOf(cell), true
		}
	case p.at == nd.n:
		if c := t.child(p.id, local); c != 0 {
			return position{c, 0}, true
		}
	}
	return position{}, false
}

// rollingHash returns the rolling hash of a block.
func (t *tree) rollingHash(cell uint32) uint64 {
	return t.cells.local(cell) ^ t.seeds.seed(t.nodeAt(cell).seed)
}

// previousHash returns the rolling hash of the block before a block. It is false
// for a first block, and where it is not known.
func (t *tree) previousHash(cell uint32) (rolling uint64, known bool) {
	up, ok := t.parentCell(cell)
	if !ok || t.depthOf(cell) == 0 {
		return 0, false
	}
	return t.rollingHash(up), true
}

func (t *tree) depthOf(cell uint32) uint32 {
	nd := t.nodeAt(cell)
	return nd.depth + cell - nd.off
}

// hasLocalHash tells whether a block has a local hash. Of a block whose predecessor
// nobody told, a rank's own name for it has to do.
func (s *Space) hasLocalHash(cell uint32, local, key uint64, keyKnown bool) bool {
	t := &s.tree
	if !s.sequence {
		return t.cells.local(cell) == local
	}
	seed := t.seeds.seed(t.nodeAt(cell).seed)
	if keyKnown && key != seed {
		return false
	}
	prior, known := t.previousHash(cell)
	if !known {
		return t.depthOf(cell) != 0 || t.cells.local(cell) == local^seed
	}
	var pair [2]uint64
	return hashing.AppendSequenceSeed(pair[:0], []uint64{prior, local}, s.chain)[1]^seed == t.cells.local(cell)
}

// setUnverified sets whether the hashes of a run are only said.
func (t *tree) setUnverified(nd *node, claimed bool) {
	switch {
	case claimed && !nd.unverified:
		t.unverifiedRuns++
	case !claimed && nd.unverified:
		t.unverifiedRuns--
	}
	nd.unverified = claimed
}

// SequenceStore is a "stored" event of blocks that are known by rolling hash
// alone, in a sequence Space.
type SequenceStore struct {
	Slot            uint32
	Tier            Tier
	Seed            uint64   // the namespace's key
	PublisherHashes []uint64 // by which the slot removes the blocks, no two equal
	Hashes          []uint64 // rolling hashes, consecutive, as many
	// EngineHashes has the engine's own names of the blocks, as many, where the
	// publisher states them; if nil, Hashes are tried as such names.
	EngineHashes []uint64
	Parent       uint64 // rolling hash of the block before the first
	HasParent    bool
	Base         uint32 // blocks before the first
	HasBase      bool
}

// SequenceOutcome counts what became of the blocks of a HashedStore.
type SequenceOutcome struct {
	Outcome
	// Of all blocks: Confirmed ones have a hash that is known from tokens, so
	// the publisher hashes by the standard. Resolved ones have an engine's own
	// name of a block that was announced with tokens, now or when the slot
	// removed it, and are stored as that block. Of Unverified ones nothing says
	// yet that the hash is a standard one.
	Confirmed, Resolved, Unverified int
	// BaseMismatch: Base contradicts the depth that is known of the parent or of
	// the first block, and was not used.
	BaseMismatch bool
}

// StoreSequence applies a stored event without tokens. A block whose hash is in
// the index is that block. Else, or if nothing but hashes is known of that block
// either, a block with tokens is meant: one that an engine of the namespace
// calls so, or what the slot itself removed by the same name not long ago. Else
// the block is new. Where it stands before it has no need of a parent: a query
// joins the prefix.
func (s *Space) StoreSequence(ev *SequenceStore) SequenceOutcome {
	var out SequenceOutcome
	part := *ev
	part.HasBase = ev.HasBase && ev.Base < unknownDepth
	for len(part.PublisherHashes) > 0 {
		n := min(maxHold, len(part.PublisherHashes))
		rest := part
		rest.PublisherHashes, rest.Hashes = part.PublisherHashes[n:], part.Hashes[n:]
		part.PublisherHashes, part.Hashes = part.PublisherHashes[:n], part.Hashes[:n]
		if part.EngineHashes != nil {
			rest.EngineHashes, part.EngineHashes = part.EngineHashes[n:], part.EngineHashes[:n]
		}
		more := s.storeSequencePart(&part)
		out.add(more)
		rest.Parent, rest.HasParent = part.Hashes[n-1], true
		rest.Base += uint32(n)
		rest.HasBase = part.HasBase && !more.BaseMismatch && rest.Base < unknownDepth
		part = rest
	}
	return out
}

func (o *SequenceOutcome) add(more SequenceOutcome) {
	o.Outcome.add(more.Outcome)
	o.Confirmed += more.Confirmed
	o.Resolved += more.Resolved
	o.Unverified += more.Unverified
	o.BaseMismatch = o.BaseMismatch || more.BaseMismatch
}

func (s *Space) storeSequencePart(ev *SequenceStore) (out SequenceOutcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ensureSlot(ev.Slot)
	b := newBatch(holderOf(ev.Slot, ev.Tier), ev.PublisherHashes)
	defer b.done()
	b.key, b.hashOnly, b.unverified, b.engineHashes = ev.Seed, true, true, ev.EngineHashes
	if b.engineNamed = ev.EngineHashes != nil; !b.engineNamed {
		b.engineHashes = ev.Hashes
	}
	b.values = append(b.values, ev.Hashes...)
	b.applyKey()
	var p position
	for again, asked := true, false; again; {
		s.tree.ensureRoot()
		p, out.BaseMismatch = s.positionAfterHash(b, ev)
		if again = s.locate(b, p); again || asked {
			continue
		}
		// Once only: what comes back is found from now on.
		found, stored := s.restoreBatch(b)
		asked, again, out.Stored = true, found > 0, stored
	}
	s.countKnown(b, ev, &out)
	if cell := b.cells[0]; cell != 0 && ev.HasBase {
		depth := s.tree.depthOf(cell)
		out.BaseMismatch = out.BaseMismatch || depth < unknownDepth && depth != ev.Base
	}
	out.Stored += s.insertBatch(b, p)
	out.Known = len(ev.PublisherHashes) - out.Stored
	s.joinOrphans(b.by, ev.PublisherHashes)
	return out
}

// positionAfterHash returns the place behind an event's parent, the root if it is unknown,
// and sets the depth of the first block. mismatch: the parent's is another.
func (s *Space) positionAfterHash(b *batch, ev *SequenceStore) (p position, mismatch bool) {
	t := &s.tree
	b.depth = unknownDepth
	if ev.HasBase {
		b.depth = ev.Base
	}
	if !ev.HasParent {
		return position{}, false
	}
	cell := t.cellOf(ev.Parent ^ ev.Seed)
	if cell == 0 {
		return position{}, false
	}
	depth := t.depthOf(cell) + 1
	mismatch = ev.HasBase && depth < unknownDepth && depth != ev.Base
	if depth < unknownDepth || !ev.HasBase {
		b.depth = depth
	}
	return s.positionAfter(cell), mismatch
}

// countKnown counts what is known of the hashes of a batch that was located.
func (s *Space) countKnown(b *batch, ev *SequenceStore, out *SequenceOutcome) {
	t := &s.tree
	for i, cell := range b.cells {
		switch {
		case cell == 0 || t.nodeAt(cell).unverified:
			out.Unverified++
		case t.cells.local(cell) == ev.Hashes[i]^ev.Seed:
			out.Confirmed++
		default:
			out.Resolved++
		}
	}
}
