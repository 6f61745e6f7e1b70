package indexer

// restoreBatch asks what a slot remembers of blocks that it removed, before it
// claims them: a store that moves a block to another medium says first that it
// left the one that it was in, and nobody else may hold it. What was known from
// tokens comes back as what it was. It returns how many blocks of the batch,
// which was located, that were, and how many of them are newly held; where there
// were any, the values of the batch and the tree have changed.
func (s *Space) restoreBatch(b *batch) (found, stored int) {
	r := &s.ranks[b.by.slot()].removed
	if !r.verified {
		return 0, 0
	}
	t := &s.tree
	b.remembered = b.remembered[:0]
	for i, cell := range b.cells {
		if cell != 0 && !t.node(t.cells.nodeOf(cell)).unverified {
			continue
		}
		r.indexByName()
		if at, ok := r.byName[b.names[i]]; ok && !r.ring[at].unverified && r.ring[at].seed == b.key {
			b.remembered = append(b.remembered, i)
		}
	}
	for _, i := range b.remembered {
		gone := r.ring[r.byName[b.names[i]]]
		stored += s.restoreBlock(b.by, b.names[i], b.engineHashes[i], gone)
		b.values[i] = gone.local
	}
	return len(b.remembered), stored
}

// restoreByValue is recall for sequence Spaces.
func (s *Space) restoreByValue(by holder, name uint64) bool {
	r := &s.ranks[by.slot()].removed
	at, ok := r.byName[name]
	if ok {
		s.restoreBlock(by, name, name, r.ring[at])
	}
	return ok
}

// restoreBlock makes by a holder, under a name, of a block that its rank gave up, and
// returns 1 if it was none. title is an engine's name of the block, for the
// table.
func (s *Space) restoreBlock(by holder, name, title uint64, gone removedBlock) int {
	t := &s.tree
	if old := s.findInTier(by, name); old != 0 && t.cells.local(old) != gone.local {
		s.removeName(by, name, old)
	}
	blocks := &s.ranks[by.slot()].blocks[by.tier()]
	before := *blocks
	if cell := t.cellOf(gone.local); cell != 0 {
		if t.node(t.cells.nodeOf(cell)).unverified && !gone.unverified {
			s.confirm(cell, gone.depth, []uint64{title})
		}
		s.holdCell(by, cell, name)
		return *blocks - before
	}
	t.ensureRoot()
	var p position
	if gone.parentKnown {
		if up := t.cellOf(gone.parent ^ gone.seed); up != 0 {
			p = s.positionAfter(up)
		}
	}
	b := newBatch(by, []uint64{name})
	defer b.done()
	b.key, b.hashOnly, b.engineNamed, b.engineHashes = gone.seed, true, true, []uint64{title}
	b.values, b.cells = append(b.values, gone.local), append(b.cells, 0)
	seed := t.seeds.take(gone.seed)
	s.addLeaf(b, 0, p, seed, gone.depth, gone.unverified)
	t.seeds.release(seed)
	return *blocks - before
}
