package indexer

// aliases are the names by which one rank calls blocks otherwise than the table
// does, which has the name that a block was first announced under. The maps
// exist only while there are any.
type aliases struct {
	cells  map[aliasKey]uint32    // the block that a name stands for
	states map[heldKey]aliasState // a block without an entry is held under the table's name
	links  map[aliasKey]aliasLink // where a block has several in a tier, which few have
}

type aliasKey struct {
	name uint64
	tier Tier
}

// heldKey is a block in a tier. As one number it is looked up in less time.
type heldKey uint64

func heldIn(cell uint32, t Tier) heldKey { return heldKey(cell)<<2 | heldKey(t) }

// aliasState says under which names a rank holds a block in a tier.
type aliasState struct {
	name    uint64 // the latest of the aliases
	count   uint32 // of aliases
	primary bool   // announced under the table's name too
}

// aliasLink links the aliases of a block in a ring, by age.
type aliasLink struct {
	older, newer uint64
}

// findInTier returns the block that by holds under a name, or 0.
func (s *Space) findInTier(by holder, name uint64) uint32 {
	a := &s.ranks[by.slot()].aliases
	if len(a.cells) > 0 {
		if cell, ok := a.cells[aliasKey{name, by.tier()}]; ok {
			return cell
		}
	}
	return s.findByName(name, func(cell uint32, nd *node) bool {
		return s.tree.sets.has(nd.holders[by.tier()], by.slot()) && a.underTableName(cell, by.tier())
	})
}

// findInAnyTier returns the block that a rank holds under a name, in the first tier
// in which it does, or 0.
func (s *Space) findInAnyTier(slot uint32, name uint64) uint32 {
	a := &s.ranks[slot].aliases
	found, tier := uint32(0), Tier(NumTiers)
	if len(a.cells) > 0 {
		for t := Tier(0); t < tier; t++ {
			if cell, ok := a.cells[aliasKey{name, t}]; ok {
				found, tier = cell, t
			}
		}
	}
	s.findByName(name, func(cell uint32, nd *node) bool {
		for t := Tier(0); t < tier; t++ {
			if s.tree.sets.has(nd.holders[t], slot) && a.underTableName(cell, t) {
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
	st, ok := a.states[heldIn(cell, t)]
	return !ok || st.primary
}

// findByName returns the first block with that name in the table that suits.
func (s *Space) findByName(name uint64, suits func(cell uint32, nd *node) bool) uint32 {
	t := &s.tree
	tag := t.byName.tag(name)
	sh := t.byName.shard(tag)
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

// addName records that by calls a block it holds by a name that stands for no
// other of its blocks. table is the block's name in the table; fresh says that
// by became a holder only now.
func (s *Space) addName(by holder, name uint64, cell uint32, table uint64, fresh bool) {
	a := &s.ranks[by.slot()].aliases
	key := heldIn(cell, by.tier())
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
	if !ok {
		st.primary = !fresh
	}
	if st.count > 0 {
		a.link(by.tier(), st.name, name)
	}
	st.count++
	st.name = name
	s.addAlias(by.slot(), alias, cell)
	a.states[key] = st
}

// removeName takes a name from a block; with the last of its names by no longer
// holds it.
func (s *Space) removeName(by holder, name uint64, cell uint32) {
	a := &s.ranks[by.slot()].aliases
	key := heldIn(cell, by.tier())
	st, ok := a.states[key]
	if !ok {
		s.removeHolder(by, cell)
		return
	}
	alias := aliasKey{name, by.tier()}
	if c, is := a.cells[alias]; is && c == cell {
		st = s.withoutAlias(by, st, name)
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
		s.removeHolder(by, cell)
	}
}

// link puts an alias behind the latest one of the same block.
func (a *aliases) link(t Tier, latest, name uint64) {
	if a.links == nil {
		a.links = make(map[aliasKey]aliasLink)
	}
	l, several := a.links[aliasKey{latest, t}]
	if !several {
		l = aliasLink{latest, latest}
	}
	oldest := l.newer
	l.newer = name
	a.links[aliasKey{latest, t}] = l
	l = a.links[aliasKey{oldest, t}]
	l.older = name
	a.links[aliasKey{oldest, t}] = l
	a.links[aliasKey{name, t}] = aliasLink{latest, oldest}
}

// unlink takes one of several aliases out and returns the one before it.
func (a *aliases) unlink(t Tier, name uint64) (older uint64) {
	out := a.links[aliasKey{name, t}]
	delete(a.links, aliasKey{name, t})
	if out.older == out.newer { // the only other one
		delete(a.links, aliasKey{out.older, t})
		return out.older
	}
	l := a.links[aliasKey{out.older, t}]
	l.newer = out.newer
	a.links[aliasKey{out.older, t}] = l
	l = a.links[aliasKey{out.newer, t}]
	l.older = out.older
	a.links[aliasKey{out.newer, t}] = l
	return out.older
}

// nameOf returns the name by which by's rank calls a block: in by's tier, else
// in the first in which it holds it. Of several names it is the table's, else
// the latest alias.
func (s *Space) nameOf(by holder, cell uint32) uint64 {
	t := &s.tree
	name := t.cells.name(cell)
	a := &s.ranks[by.slot()].aliases
	if len(a.states) == 0 {
		return name
	}
	nd := t.node(t.cells.nodeOf(cell))
	if t.sets.has(nd.holders[by.tier()], by.slot()) {
		return a.name(cell, by.tier(), name)
	}
	for tier := range Tier(NumTiers) {
		if t.sets.has(nd.holders[tier], by.slot()) {
			return a.name(cell, tier, name)
		}
	}
	return name
}

// name returns the name of a block that is held in a tier; table is its name in
// the table.
func (a *aliases) name(cell uint32, t Tier, table uint64) uint64 {
	if st, ok := a.states[heldIn(cell, t)]; ok && !st.primary {
		return st.name
	}
	return table
}
