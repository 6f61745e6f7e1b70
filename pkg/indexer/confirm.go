package indexer

// confirmReached records what a chain of tokens tells of the n blocks that it has come
// to, its i-th and the next in the same run, and returns the depth of the first
// and whether the chain is still only claimed there.
func (s *Space) confirmReached(b *batch, i int, n, depth uint32, claimed bool) (uint32, bool) {
	t := &s.tree
	cell := b.cells[i]
	switch {
	case !t.node(t.cells.nodeOf(cell)).unverified:
		return t.depthOf(cell), false // equal hashes, equal chains
	case !claimed:
		s.confirm(cell, depth, b.names[i:i+int(n)])
		return depth, false
	}
	return knownDepth(depth, t.depthOf(cell)), true
}

// confirm records that blocks of one run, which were claimed, are known from
// tokens now, and takes over the names that came with them: by these, other
// publishers' blocks without tokens are found.
func (s *Space) confirm(cell, depth uint32, names []uint64) {
	t := &s.tree
	for i, name := range names {
		s.setTableName(cell+uint32(i), name)
	}
	id, n := t.cells.nodeOf(cell), uint32(len(names))
	if at := cell - t.node(id).off; at > 0 {
		_, id = t.split(id, at)
	}
	if n < t.node(id).n {
		id, _ = t.split(id, n)
	}
	nd := t.node(id)
	nd.depth = depth
	t.setUnverified(nd, false)
	id = t.join(id)
	t.join(t.node(id).parent)
}

// setTableName gives a block another name in the table. Who holds it under the old
// one has that as an alias now.
func (s *Space) setTableName(cell uint32, name uint64) {
	t := &s.tree
	old := t.cells.name(cell)
	if old == name {
		return
	}
	for tier, h := range t.node(t.cells.nodeOf(cell)).holders {
		t.sets.each(h, func(slot uint32) {
			s.followTableName(holderOf(slot, Tier(tier)), cell, old, name)
		})
	}
	t.byName.remove(old, cell)
	t.cells.names(cell, 1)[0] = name
	t.byName.insert(name, cell)
}

// followTableName follows a block's new name in the table.
func (s *Space) followTableName(by holder, cell uint32, old, name uint64) {
	a, t := &s.ranks[by.slot()].aliases, by.tier()
	key := heldIn(cell, t)
	st, ok := a.states[key]
	primary := !ok || st.primary
	st.primary = false
	if c, is := a.cells[aliasKey{name, t}]; is && c == cell {
		st = s.withoutAlias(by, st, name)
		st.primary = true
	}
	if primary {
		if st.count > 0 {
			a.link(t, st.name, old)
		}
		st.count++
		st.name = old
		s.addAlias(by.slot(), aliasKey{old, t}, cell)
	}
	if st.count > 0 {
		a.states[key] = st
		return
	}
	delete(a.states, key)
	if len(a.cells) == 0 {
		*a = aliases{}
	}
}

// withoutAlias takes an alias from a block and returns the block's new state.
func (s *Space) withoutAlias(by holder, st aliasState, name uint64) aliasState {
	s.removeAlias(by.slot(), aliasKey{name, by.tier()})
	if st.count--; st.count > 0 {
		if older := s.ranks[by.slot()].aliases.unlink(by.tier(), name); st.name == name {
			st.name = older
		}
	}
	return st
}

// names appends to dst the names by which a rank calls a block that it holds in
// a tier; table is its name in the table.
func (a *aliases) names(dst []uint64, cell uint32, t Tier, table uint64) []uint64 {
	st, ok := a.states[heldIn(cell, t)]
	if !ok || st.primary {
		dst = append(dst, table)
	}
	for name, left := st.name, st.count; left > 0; left-- {
		dst = append(dst, name)
		name = a.links[aliasKey{name, t}].older
	}
	return dst
}

// maxUnverifiedMerges is how many blocks that were announced by one name are looked for.
const maxUnverifiedMerges = 4

// mergeUnverified finds blocks that were announced by the names of an event's blocks
// alone, before their tokens came, and gives their holders to the latter.
func (s *Space) mergeUnverified(b *batch) {
	t := &s.tree
	// Only claimed blocks are freed below: the cells of others stay good.
	for i, cell := range b.cells {
		if t.node(t.cells.nodeOf(cell)).unverified {
			b.cells[i] = 0
		}
	}
	for i, cell := range b.cells {
		if cell == 0 {
			continue
		}
		for range maxUnverifiedMerges {
			other := s.findUnverified(b, b.names[i])
			if other == 0 {
				break
			}
			s.mergeHolders(other, cell)
		}
	}
}

// findUnverified returns a block of the event's namespace of which only a name is
// known, or 0: its hash is the name, as it comes or folded, or it is called so.
func (s *Space) findUnverified(b *batch, name uint64) uint32 {
	t := &s.tree
	claimed := func(_ uint32, nd *node) bool {
		return nd.unverified && nd.holders != [NumTiers]holderSet{} && t.seeds.seed(nd.seed) == b.key
	}
	for _, value := range [...]uint64{name ^ b.key, name} {
		if cell := t.cellOf(value); cell != 0 && claimed(cell, t.node(t.cells.nodeOf(cell))) {
			return cell
		}
	}
	return s.findByAnyName(name, claimed)
}

// mergeHolders moves the holders of a block to another one, each under the names that
// it has for it.
func (s *Space) mergeHolders(from, to uint32) {
	t := &s.tree
	var holders []holder
	for tier, h := range t.node(t.cells.nodeOf(from)).holders {
		t.sets.each(h, func(slot uint32) { holders = append(holders, holderOf(slot, Tier(tier))) })
	}
	var names []uint64
	for _, by := range holders {
		names = s.ranks[by.slot()].aliases.names(names[:0], from, by.tier(), t.cells.name(from))
		for _, name := range names {
			s.holdCell(by, to, name)
		}
	}
}
