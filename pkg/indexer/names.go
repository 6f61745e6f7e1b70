package indexer

// aliases are the names by which one rank calls blocks otherwise than the table
// does, which has the name that a block was first announced under. The maps
// exist only while there are any.
type aliases struct {
	cells  map[aliasKey]uint32    // the block that a name stands for
	states map[heldKey]aliasState // a block without an entry is held under the table's name
}

type aliasKey struct {
	name uint64
	tier Tier
}

type heldKey struct {
	cell uint32
	tier Tier
}

// aliasState says under which names a rank holds a block in a tier.
type aliasState struct {
	name    uint64 // one of the aliases, if named
	count   uint32 // of aliases
	named   bool
	primary bool // announced under the table's name too
}

// find returns the block that by holds under a name, or 0.
func (s *Space) find(by holder, name uint64) uint32 {
	a := &s.ranks[by.slot()].aliases
	if len(a.cells) > 0 {
		if cell, ok := a.cells[aliasKey{name, by.tier()}]; ok {
			return cell
		}
	}
	return s.lookup(name, func(cell uint32, nd *node) bool {
		return s.tree.sets.has(nd.owners[by.tier()], by.slot()) && a.underTableName(cell, by.tier())
	})
}

// findAny returns the block that a rank holds under a name, in the first tier
// in which it does, or 0.
func (s *Space) findAny(slot uint32, name uint64) uint32 {
	a := &s.ranks[slot].aliases
	found, tier := uint32(0), Tier(NumTiers)
	if len(a.cells) > 0 {
		for t := Tier(0); t < tier; t++ {
			if cell, ok := a.cells[aliasKey{name, t}]; ok {
				found, tier = cell, t
			}
		}
	}
	s.lookup(name, func(cell uint32, nd *node) bool {
		for t := Tier(0); t < tier; t++ {
			if s.tree.sets.has(nd.owners[t], slot) && a.underTableName(cell, t) {
				found, tier = cell, t
			}
		}
		return tier == 0
	})
	return found
}

// underTableName tells whether a rank announced a block that it holds under the
// name that stands in the table.
func (a *aliases) underTableName(cell uint32, t Tier) bool {
	if len(a.states) == 0 {
		return true
	}
	st, ok := a.states[heldKey{cell, t}]
	return !ok || st.primary
}

// lookup returns the first block with that name in the table that suits.
func (s *Space) lookup(name uint64, suits func(cell uint32, nd *node) bool) uint32 {
	t := &s.tree
	tag := t.names.tag(name)
	sh := t.names.shard(tag)
	if sh.n == 0 {
		return 0
	}
	for i := sh.first(tag); ; i = sh.next(i) {
		cell, same := sh.at(i, tag)
		if cell == 0 {
			return 0
		}
		if same && t.cells.name(cell) == name && suits(cell, t.node(t.cells.nodeOf(cell))) {
			return cell
		}
	}
}

// name records that by calls a block it holds by a name that stands for no
// other of its blocks. table is the block's name in the table; fresh says that
// by became a holder only now.
func (s *Space) name(by holder, name uint64, cell uint32, table uint64, fresh bool) {
	a := &s.ranks[by.slot()].aliases
	key := heldKey{cell, by.tier()}
	st, ok := a.states[key]
	if name == table {
		if ok && !st.primary {
			st.primary = true
			a.states[key] = st
		}
		return
	}
	alias := aliasKey{name, by.tier()}
	if _, known := a.cells[alias]; known {
		return
	}
	if a.cells == nil {
		a.cells, a.states = make(map[aliasKey]uint32), make(map[heldKey]aliasState)
	}
	if !ok {
		st.primary = !fresh
	}
	st.count++
	st.name, st.named = name, true
	a.cells[alias] = cell
	a.states[key] = st
}

// unname takes a name from a block; with the last of its names by no longer
// holds it.
func (s *Space) unname(by holder, name uint64, cell uint32) {
	a := &s.ranks[by.slot()].aliases
	key := heldKey{cell, by.tier()}
	st, ok := a.states[key]
	if !ok {
		s.disown(by, cell)
		return
	}
	alias := aliasKey{name, by.tier()}
	if c, is := a.cells[alias]; is && c == cell {
		delete(a.cells, alias)
		st.count--
		st.named = st.named && st.name != name
	} else {
		st.primary = false
	}
	if st.count > 0 {
		a.states[key] = st
		return
	}
	delete(a.states, key)
	if len(a.cells) == 0 {
		*a = aliases{}
	}
	if !st.primary {
		s.disown(by, cell)
	}
}

// nameOf returns one of the names by which a rank calls a block that it holds
// in any tier; the table's if it does not hold it. It is false if none of
// several names is at hand.
func (s *Space) nameOf(slot, cell uint32) (uint64, bool) {
	a := &s.ranks[slot].aliases
	if len(a.states) > 0 {
		for t := range Tier(NumTiers) {
			if st, ok := a.states[heldKey{cell, t}]; ok && !st.primary {
				return st.name, st.named
			}
		}
	}
	return s.tree.cells.name(cell), true
}
