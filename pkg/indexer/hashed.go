package indexer

// HashedStore is a "stored" event of blocks that are known by rolling hash
// alone, in a sequence Space.
type HashedStore struct {
	Slot   uint32
	Tier   Tier
	Seed   uint64   // the namespace's key
	Keys   []uint64 // by which the slot removes the blocks, no two equal
	Hashes []uint64 // rolling hashes, consecutive, as many
	// EngineHashes has the engine's own names of the blocks, as many, where the
	// publisher states them; if nil, Hashes are tried as such names.
	EngineHashes []uint64
	Parent       uint64 // rolling hash of the block before the first
	HasParent    bool
	Base         uint32 // blocks before the first
	HasBase      bool
}

// HashedOutcome counts what became of the blocks of a HashedStore.
type HashedOutcome struct {
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

// StoreHashed applies a stored event without tokens. A block whose hash is in
// the index is that block. Else, or if nothing but hashes is known of that block
// either, a block with tokens is meant: one that an engine of the namespace
// calls so, or what the slot itself removed by the same name not long ago. Else
// the block is new. Where it stands before it has no need of a parent: a query
// joins the prefix.
func (s *Space) StoreHashed(ev *HashedStore) HashedOutcome {
	var out HashedOutcome
	part := *ev
	part.HasBase = ev.HasBase && ev.Base < unknownDepth
	for len(part.Keys) > 0 {
		n := min(maxHold, len(part.Keys))
		rest := part
		rest.Keys, rest.Hashes = part.Keys[n:], part.Hashes[n:]
		part.Keys, part.Hashes = part.Keys[:n], part.Hashes[:n]
		if part.EngineHashes != nil {
			rest.EngineHashes, part.EngineHashes = part.EngineHashes[n:], part.EngineHashes[:n]
		}
		more := s.storeHashedPart(&part)
		out.add(more)
		rest.Parent, rest.HasParent = part.Hashes[n-1], true
		rest.Base += uint32(n)
		rest.HasBase = part.HasBase && !more.BaseMismatch && rest.Base < unknownDepth
		part = rest
	}
	return out
}

func (o *HashedOutcome) add(more HashedOutcome) {
	o.Outcome.add(more.Outcome)
	o.Confirmed += more.Confirmed
	o.Resolved += more.Resolved
	o.Unverified += more.Unverified
	o.BaseMismatch = o.BaseMismatch || more.BaseMismatch
}

func (s *Space) storeHashedPart(ev *HashedStore) (out HashedOutcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ensureSlot(ev.Slot)
	b := newBatch(holderOf(ev.Slot, ev.Tier), ev.Keys)
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
	out.Known = len(ev.Keys) - out.Stored
	s.joinOrphans(b.by, ev.Keys)
	return out
}

// positionAfterHash returns the place behind an event's parent, the root if it is unknown,
// and sets the depth of the first block. mismatch: the parent's is another.
func (s *Space) positionAfterHash(b *batch, ev *HashedStore) (p position, mismatch bool) {
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
func (s *Space) countKnown(b *batch, ev *HashedStore, out *HashedOutcome) {
	t := &s.tree
	for i, cell := range b.cells {
		switch {
		case cell == 0 || t.node(t.cells.nodeOf(cell)).unverified:
			out.Unverified++
		case t.cells.local(cell) == ev.Hashes[i]^ev.Seed:
			out.Confirmed++
		default:
			out.Resolved++
		}
	}
}
