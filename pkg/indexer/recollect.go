package indexer

// recollect asks what a slot remembers of blocks that it removed, before it
// claims them: a store that moves a block to another medium says first that it
// left the one that it was in, and nobody else may hold it. What was known from
// tokens comes back as what it was. It returns how many blocks of the batch,
// which was located, that were, and how many of them are newly held; where there
// were any, the values of the batch and the tree have changed.
func (s *Space) recollect(b *batch) (found, stored int) {
	r := &s.ranks[b.by.slot()].recent
	if !r.known {
		return 0, 0
	}
	t := &s.tree
	b.lost = b.lost[:0]
	for i, cell := range b.cells {
		if cell != 0 && !t.node(t.cells.nodeOf(cell)).claimed {
			continue
		}
		r.index()
		if at, ok := r.at[b.names[i]]; ok && !r.ring[at].claimed && r.ring[at].seed == b.key {
			b.lost = append(b.lost, i)
		}
	}
	for _, i := range b.lost {
		gone := r.ring[r.at[b.names[i]]]
		stored += s.restore(b.by, b.names[i], b.engine[i], gone)
		b.values[i] = gone.local
	}
	return len(b.lost), stored
}

// recallValue is recall for sequence Spaces.
func (s *Space) recallValue(by holder, name uint64) bool {
	r := &s.ranks[by.slot()].recent
	at, ok := r.at[name]
	if ok {
		s.restore(by, name, name, r.ring[at])
	}
	return ok
}

// restore makes by a holder, under a name, of a block that its rank gave up, and
// returns 1 if it was none. title is an engine's name of the block, for the
// table.
func (s *Space) restore(by holder, name, title uint64, gone removed) int {
	t := &s.tree
	if old := s.find(by, name); old != 0 && t.cells.local(old) != gone.local {
		s.unname(by, name, old)
	}
	blocks := &s.ranks[by.slot()].blocks[by.tier()]
	before := *blocks
	if cell := t.standing(gone.local); cell != 0 {
		if t.node(t.cells.nodeOf(cell)).claimed && !gone.claimed {
			s.confirm(cell, gone.depth, []uint64{title})
		}
		s.hold(by, cell, name)
		return *blocks - before
	}
	t.ready()
	var p place
	if gone.behind {
		if up := t.standing(gone.parent ^ gone.seed); up != 0 {
			p = s.behind(up)
		}
	}
	b := newBatch(by, []uint64{name})
	defer b.done()
	b.key, b.said, b.stated, b.engine = gone.seed, true, true, []uint64{title}
	b.values, b.cells = append(b.values, gone.local), append(b.cells, 0)
	seed := t.seeds.take(gone.seed)
	s.attach(b, 0, p, seed, gone.depth, gone.claimed)
	t.seeds.release(seed)
	return *blocks - before
}
