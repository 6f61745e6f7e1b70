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
		if same && t.cells.name(cell) == name && suits(cell, t.nodeAt(cell)) {
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
	nd := t.nodeAt(cell)
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

// setTableName gives a block another name in the table. Who holds it under the old
// one has that as an alias now.
func (s *Space) setTableName(cell uint32, name uint64) {
	t := &s.tree
	old := t.cells.name(cell)
	if old == name {
		return
	}
	for tier, h := range t.nodeAt(cell).holders {
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

// dropRunAliases takes all aliases of a holder from a run and returns how many there
// were.
func (s *Space) dropRunAliases(by holder, nd *node) (dropped int) {
	a := &s.ranks[by.slot()].aliases
	for cell := nd.off; cell < nd.off+nd.n && len(a.states) > 0; cell++ {
		dropped += s.dropAliases(by, cell)
	}
	return dropped
}

// dropAliases takes all aliases from a block and returns how many there were.
func (s *Space) dropAliases(by holder, cell uint32) int {
	a, t := &s.ranks[by.slot()].aliases, by.tier()
	key := heldIn(cell, t)
	st, ok := a.states[key]
	if !ok {
		return 0
	}
	for name, left := st.name, st.count; left > 0; left-- {
		alias := aliasKey{name, t}
		name = a.links[alias].older
		s.removeAlias(by.slot(), alias)
		delete(a.links, alias)
	}
	delete(a.states, key)
	if len(a.cells) == 0 {
		*a = aliases{}
	}
	return int(st.count)
}

// aliasIndex finds blocks by the aliases that slots have for them, whichever slot
// it is: a publisher without tokens knows a block by one engine's name, and the
// table may have another's. Only in sequence Spaces; the maps exist only while
// there are any.
type aliasIndex struct {
	first map[uint64]aliasedBlock   // by name
	more  map[uint64][]aliasedBlock // further blocks of a name, which few names have
}

// aliasedBlock is a block and how many slots and tiers have it by the name.
type aliasedBlock struct {
	cell, count uint32
}

func (n *aliasIndex) add(name uint64, cell uint32) {
	first, ok := n.first[name]
	switch {
	case !ok:
		if n.first == nil {
			n.first = make(map[uint64]aliasedBlock)
		}
		first.cell = cell
		fallthrough
	case first.cell == cell:
		first.count++
		n.first[name] = first
		return
	}
	more := n.more[name]
	for i := range more {
		if more[i].cell == cell {
			more[i].count++
			return
		}
	}
	if n.more == nil {
		n.more = make(map[uint64][]aliasedBlock)
	}
	n.more[name] = append(more, aliasedBlock{cell, 1})
}

func (n *aliasIndex) remove(name uint64, cell uint32) {
	first := n.first[name]
	more := n.more[name]
	if first.cell == cell {
		if first.count--; first.count > 0 {
			n.first[name] = first
			return
		}
		if len(more) == 0 {
			if delete(n.first, name); len(n.first) == 0 {
				*n = aliasIndex{}
			}
			return
		}
		n.first[name] = more[len(more)-1]
		n.shorten(name, more[:len(more)-1])
		return
	}
	for i := range more {
		if more[i].cell != cell {
			continue
		}
		if more[i].count--; more[i].count == 0 {
			more[i] = more[len(more)-1]
			n.shorten(name, more[:len(more)-1])
		}
		return
	}
}

// shorten sets the further blocks of a name, which are fewer than they were.
func (n *aliasIndex) shorten(name uint64, more []aliasedBlock) {
	if len(more) > 0 {
		n.more[name] = more
		return
	}
	if delete(n.more, name); len(n.more) == 0 {
		n.more = nil
	}
}

// findByAnyName returns a block that suits of those that the table or any slot calls
// so, the table's first; 0 if there is none.
func (s *Space) findByAnyName(name uint64, suits func(cell uint32, nd *node) bool) uint32 {
	if cell := s.findByName(name, suits); cell != 0 {
		return cell
	}
	first, ok := s.byAlias.first[name]
	if !ok {
		return 0
	}
	t := &s.tree
	if suits(first.cell, t.nodeAt(first.cell)) {
		return first.cell
	}
	for _, n := range s.byAlias.more[name] {
		if suits(n.cell, t.nodeAt(n.cell)) {
			return n.cell
		}
	}
	return 0
}

// addAlias makes a name an alias of a block; what goes with it is the caller's.
func (s *Space) addAlias(slot uint32, alias aliasKey, cell uint32) {
	a := &s.ranks[slot].aliases
	if a.cells == nil {
		a.cells, a.states = make(map[aliasKey]uint32), make(map[heldKey]aliasState)
	}
	if s.sequence {
		if old, ok := a.cells[alias]; ok { // only of an event that has a name twice
			s.byAlias.remove(alias.name, old)
		}
		s.byAlias.add(alias.name, cell)
	}
	a.cells[alias] = cell
}

// removeAlias undoes dub.
func (s *Space) removeAlias(slot uint32, alias aliasKey) {
	a := &s.ranks[slot].aliases
	if s.sequence {
		if cell, ok := a.cells[alias]; ok {
			s.byAlias.remove(alias.name, cell)
		}
	}
	delete(a.cells, alias)
}
