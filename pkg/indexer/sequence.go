package indexer

import "github.com/select-service/select-service/pkg/hashing"

// In a sequence Space a block is identified by its value: its sequence hash xor
// the key of its namespace. So namespaces share one Space, and no prompt of one
// matches a block of another. The arena's local column has the values. A table
// finds every block by its value, so that a chain is followed wherever its next
// block is: blocks that came by hash alone are runs of their own below the root.

// unknownDepth and all greater depths say that the depth of a block is not known:
// a publisher announced it by hash, without its place. The depths of blocks after
// it count on from there.
const unknownDepth = 1 << 31

// cellOf returns the cell of the block with a value, or 0.
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

// removeValues removes n cells from the table of values.
func (t *tree) removeValues(off, n uint32) {
	for i, value := range t.cells.locals(off, n) {
		t.byValue.remove(value, off+uint32(i))
	}
}

// positionOf returns the position directly before a block.
func (t *tree) positionOf(cell uint32) position {
	id := t.cells.nodeOf(cell)
	return position{id, cell - t.node(id).off}
}

// step returns the position before the block with the given local hash, or
// value, that follows p. At the root's position it is the first block of a
// chain. It is false if there is no such block.
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

// sequenceHash returns the sequence hash of a block.
func (t *tree) sequenceHash(cell uint32) uint64 {
	return t.cells.local(cell) ^ t.seeds.seed(t.nodeAt(cell).seed)
}

// previousHash returns the sequence hash of the block before a block. known is
// false for the first block of a chain, and if the block before is not in the
// index.
func (t *tree) previousHash(cell uint32) (hash uint64, known bool) {
	up, ok := t.parentCell(cell)
	if !ok || t.depthOf(cell) == 0 {
		return 0, false
	}
	return t.sequenceHash(up), true
}

// depthOf returns how many blocks precede a block.
func (t *tree) depthOf(cell uint32) uint32 {
	nd := t.nodeAt(cell)
	return nd.depth + cell - nd.off
}

// hasLocalHash reports whether a block has a local hash. In a sequence Space
// this cannot be checked if the block before is not in the index; then it is
// assumed.
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

// setUnverified sets whether a run is unverified; see node.
func (t *tree) setUnverified(nd *node, unverified bool) {
	switch {
	case unverified && !nd.unverified:
		t.unverifiedRuns++
	case !unverified && nd.unverified:
		t.unverifiedRuns--
	}
	nd.unverified = unverified
}

// SequenceStore is a "stored" event of blocks that are known by sequence hash
// alone, in a sequence Space.
type SequenceStore struct {
	Slot uint32
	Tier Tier
	Seed uint64 // the namespace's key
	// PublisherHashes are the slot's names of the blocks, by which it will remove
	// them: one per block, no two equal.
	PublisherHashes []uint64
	Hashes          []uint64 // sequence hashes of consecutive blocks, one per block
	// EngineHashes are the engine's own hashes, one per block, if the publisher
	// states them. If nil, Hashes are looked up as such.
	EngineHashes []uint64
	Parent       uint64 // sequence hash of the block before the first
	HasParent    bool
	Base         uint32 // number of blocks before the first
	HasBase      bool
}

// SequenceOutcome counts the blocks of a SequenceStore by what was done with
// them.
type SequenceOutcome struct {
	Outcome
	// All blocks are in one of three groups. Confirmed: the hash is that of a block
	// known from tokens, so the publisher hashes by the standard. Resolved: the
	// hash, or EngineHashes, is an engine's name of a block that was announced with
	// tokens, now or when the slot removed it; it is stored as that block.
	// Unverified: no tokens have shown yet that the hash is a standard one.
	Confirmed, Resolved, Unverified int
	// BaseMismatch: Base contradicts the known depth of the parent or of the first
	// block, and was ignored.
	BaseMismatch bool
}

// StoreSequence applies a stored event without tokens. A block whose hash is in
// the index and confirmed by tokens is that block. Otherwise it is the block
// with tokens that an engine of the namespace names by this hash, or that the
// slot itself removed under the same name not long ago. Otherwise it is an
// unverified block, which is added if it is not in the index. That takes no
// parent: a query finds the block by its value.
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
	if !s.admits(ev.Slot) {
		out.Refused = len(ev.PublisherHashes)
		return out
	}
	defer s.settle(ev.Slot)
	b := newBatch(holderOf(ev.Slot, ev.Tier), ev.PublisherHashes)
	defer b.done()
	b.key, b.hashOnly, b.unverified, b.engineHashes = ev.Seed, true, true, ev.EngineHashes
	if b.engineNamed = ev.EngineHashes != nil; !b.engineNamed {
		b.engineHashes = ev.Hashes
	}
	b.values = append(b.values, ev.Hashes...)
	b.applyKey()
	var p position
	p, out.BaseMismatch = s.locateSequence(b, ev)
	restored, stored := s.restoreBatch(b)
	if restored > 0 {
		p, out.BaseMismatch = s.locateSequence(b, ev)
	}
	out.Stored = stored
	s.tree.countKnown(b, ev, &out)
	if cell := b.cells[0]; cell != 0 && ev.HasBase {
		depth := s.tree.depthOf(cell)
		out.BaseMismatch = out.BaseMismatch || depth < unknownDepth && depth != ev.Base
	}
	out.Stored += s.insertBatch(b, p)
	out.Known = len(ev.PublisherHashes) - out.Stored
	s.joinOrphans(b.by, ev.PublisherHashes)
	return out
}

// locateSequence is locate for a batch without tokens; see positionAfterHash for
// the results.
func (s *Space) locateSequence(b *batch, ev *SequenceStore) (p position, mismatch bool) {
	for {
		s.tree.ensureRoot()
		p, mismatch = s.tree.positionAfterHash(b, ev)
		if !s.locate(b, p) {
			return p, mismatch
		}
		// The tree has changed.
	}
}

// positionAfterHash returns the position after an event's parent, or the root
// if the parent is not in the index, and sets the depth of the batch. mismatch
// reports whether the parent's depth contradicts the event's Base.
func (t *tree) positionAfterHash(b *batch, ev *SequenceStore) (p position, mismatch bool) {
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
	return t.positionAfter(cell), mismatch
}

// countKnown counts the blocks of a located batch as Confirmed, Resolved or
// Unverified.
func (t *tree) countKnown(b *batch, ev *SequenceStore, out *SequenceOutcome) {
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
