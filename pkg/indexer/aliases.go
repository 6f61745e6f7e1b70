package indexer

// aliases are the names that one rank has for blocks, where they differ from
// the names in the table. The table has the name under which a block was first
// announced. The maps exist only while there are any aliases.
type aliases struct {
	cells  map[aliasKey]uint32    // the block that a name stands for
	states map[heldKey]aliasState // without an entry, a block is held under the table's name
	links  map[aliasKey]aliasLink // of blocks with several aliases in a tier, which are few
}

type aliasKey struct {
	name uint64
	tier Tier
}

// heldKey is a block in a tier, as one number because that is looked up faster.
type heldKey uint64

func heldIn(cell uint32, t Tier) heldKey { return heldKey(cell)<<2 | heldKey(t) }

// aliasState describes the names under which a rank holds a block in a tier.
type aliasState struct {
	name    uint64 // the latest of the aliases
	count   uint32 // of aliases
	primary bool   // announced under the table's name as well
}

// aliasLink links the aliases of one block in a ring, by age.
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
	cell, _ := s.findHeld(by, name)
	return cell
}

// findHeld returns the block that by holds under its name in the table, or 0, and
// how many blocks of that name the search has looked at.
func (s *Space) findHeld(by holder, name uint64) (cell uint32, passed int) {
	a := &s.ranks[by.slot()].aliases
	cell = s.tree.findByName(name, func(cell uint32, nd *node) bool {
		passed++
		return s.tree.sets.has(nd.holders[by.tier()], by.slot()) && a.underTableName(cell, by.tier())
	})
	return cell, passed
}

// findInAnyTier returns the block that a rank holds under a name, in the first
// tier in which it holds one, or 0. It leaves out unidentified blocks.
func (s *Space) findInAnyTier(slot uint32, name uint64) uint32 {
	a := &s.ranks[slot].aliases
	found, tier := uint32(0), Tier(NumTiers)
	if len(a.cells) > 0 {
		for t := Tier(0); t < tier; t++ {
			if cell, ok := a.cells[aliasKey{name, t}]; ok && !s.tree.isUnidentified(s.tree.nodeAt(cell)) {
				found, tier = cell, t
			}
		}
	}
	s.tree.findByName(name, func(cell uint32, nd *node) bool {
		if s.tree.isUnidentified(nd) {
			return false
		}
		for t := Tier(0); t < tier; t++ {
			if s.tree.sets.has(nd.holders[t], slot) && a.underTableName(cell, t) {
				found, tier = cell, t
			}
		}
		return tier == 0
	})
	return found
}

// underTableName reports whether a rank announced a block that it holds under
// the block's name in the table.
func (a *aliases) underTableName(cell uint32, t Tier) bool {
	if len(a.states) == 0 {
		return true
	}
	st, ok := a.states[heldIn(cell, t)]
	return !ok || st.primary
}

// findByName returns the first block with that name in the table for which
// suits is true, or 0.
func (t *tree) findByName(name uint64, suits func(cell uint32, nd *node) bool) uint32 {
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

// addName records that by, which holds a block, has a name for it. No other
// block of by may have that name. tableName is the block's name in the table;
// newHolder: by has just become a holder of the block.
func (s *Space) addName(by holder, name uint64, cell uint32, tableName uint64, newHolder bool) {
	a := &s.ranks[by.slot()].aliases
	key := heldIn(cell, by.tier())
	st, ok := a.states[key]
	if name == tableName {
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
		st.primary = !newHolder
	}
	if st.count > 0 {
		a.link(by.tier(), st.name, name)
	}
	st.count++
	st.name = name
	s.addAlias(by.slot(), alias, cell)
	a.states[key] = st
}

// removeName removes a name from a block, with all copies. When the last of by's
// names for the block is removed, by no longer holds it.
func (s *Space) removeName(by holder, name uint64, cell uint32) {
	s.ranks[by.slot()].copies.drop(name, by.tier())
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

// link adds an alias to the ring of a block; latest is the alias that was added
// before it.
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

// unlink removes one of several aliases from its ring and returns the next
// older one.
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

// nameOf returns the name that by's rank has for a block in by's tier, else in
// the first tier in which the rank holds the block. Of several names it is the
// table's, if that is one of them, else the latest alias.
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

// name returns the name that a rank has for a block that it holds in a tier.
// tableName is the block's name in the table.
func (a *aliases) name(cell uint32, t Tier, tableName uint64) uint64 {
	if st, ok := a.states[heldIn(cell, t)]; ok && !st.primary {
		return st.name
	}
	return tableName
}

// maxNamesakes is how many blocks with the same table name a search may look at. Beyond
// it renameNamesakes renames those that no rank holds under that name. Otherwise an
// engine that gives one name to block after block would make every search for it pass
// them all.
const maxNamesakes = 64

// renameNamesakes gives another table name to the blocks that have this one although
// no rank holds them under it: a name that a holder uses, or an unused number. In a
// sequence Space events without tokens then no longer find these blocks by the name,
// which has stood for too many blocks to identify one.
func (s *Space) renameNamesakes(name uint64) {
	t := &s.tree
	var idle []uint32
	s.tree.findByName(name, func(cell uint32, nd *node) bool {
		if !s.heldUnderTableName(cell, nd) {
			idle = append(idle, cell)
		}
		return false
	})
	for _, cell := range idle {
		other := t.byName.key.Pair(name, uint64(cell))
		for tier, h := range t.nodeAt(cell).holders {
			t.sets.each(h, func(slot uint32) { other = s.nameOf(holderOf(slot, Tier(tier)), cell) })
		}
		s.setTableName(cell, other)
	}
}

// heldUnderTableName reports whether any rank holds a block under its name in the
// table.
func (s *Space) heldUnderTableName(cell uint32, nd *node) (held bool) {
	for tier, h := range nd.holders {
		s.tree.sets.each(h, func(slot uint32) {
			held = held || s.ranks[slot].aliases.underTableName(cell, Tier(tier))
		})
	}
	return held
}

// setTableName changes the name of a block in the table. The old name becomes an
// alias of those holders that announced the block under it.
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

// followTableName updates by's aliases of a block whose name in the table
// changes from old to name.
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

// withoutAlias removes one alias of a block and returns the block's new state.
func (s *Space) withoutAlias(by holder, st aliasState, name uint64) aliasState {
	s.removeAlias(by.slot(), aliasKey{name, by.tier()})
	if st.count--; st.count > 0 {
		if older := s.ranks[by.slot()].aliases.unlink(by.tier(), name); st.name == name {
			st.name = older
		}
	}
	return st
}

// names appends to dst all names that a rank has for a block that it holds in a
// tier. tableName is the block's name in the table.
func (a *aliases) names(dst []uint64, cell uint32, t Tier, tableName uint64) []uint64 {
	st, ok := a.states[heldIn(cell, t)]
	if !ok || st.primary {
		dst = append(dst, tableName)
	}
	for name, left := st.name, st.count; left > 0; left-- {
		dst = append(dst, name)
		name = a.links[aliasKey{name, t}].older
	}
	return dst
}

// dropRunAliases removes all aliases that a holder has for the blocks of a run
// and returns how many there were.
func (s *Space) dropRunAliases(by holder, nd *node) (dropped int) {
	a := &s.ranks[by.slot()].aliases
	for cell := nd.off; cell < nd.off+nd.n && len(a.states) > 0; cell++ {
		dropped += s.dropAliases(by, cell)
	}
	return dropped
}

// dropAliases removes all aliases that a holder has for a block and returns how
// many there were.
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

// aliasIndex finds blocks by the aliases of all slots. A publisher without
// tokens knows a block by one engine's hash, while the table may have another
// engine's. It is used in sequence Spaces only; the maps exist only while there
// are any aliases.
type aliasIndex struct {
	first map[uint64]aliasedBlock   // by name
	more  map[uint64][]aliasedBlock // further blocks of a name, which few names have
}

// aliasedBlock is a block and the number of slots and tiers that have it under
// one alias.
type aliasedBlock struct {
	cell, count uint32
}

func (a *aliasIndex) add(name uint64, cell uint32) {
	first, ok := a.first[name]
	switch {
	case !ok:
		if a.first == nil {
			a.first = make(map[uint64]aliasedBlock)
		}
		first.cell = cell
		fallthrough
	case first.cell == cell:
		first.count++
		a.first[name] = first
		return
	}
	more := a.more[name]
	for i := range more {
		if more[i].cell == cell {
			more[i].count++
			return
		}
	}
	if a.more == nil {
		a.more = make(map[uint64][]aliasedBlock)
	}
	a.more[name] = append(more, aliasedBlock{cell, 1})
}

func (a *aliasIndex) remove(name uint64, cell uint32) {
	first := a.first[name]
	more := a.more[name]
	if first.cell == cell {
		if first.count--; first.count > 0 {
			a.first[name] = first
			return
		}
		if len(more) == 0 {
			if delete(a.first, name); len(a.first) == 0 {
				*a = aliasIndex{}
			}
			return
		}
		a.first[name] = more[len(more)-1]
		a.shorten(name, more[:len(more)-1])
		return
	}
	for i := range more {
		if more[i].cell != cell {
			continue
		}
		if more[i].count--; more[i].count == 0 {
			more[i] = more[len(more)-1]
			a.shorten(name, more[:len(more)-1])
		}
		return
	}
}

// shorten replaces the further blocks of a name by fewer.
func (a *aliasIndex) shorten(name uint64, more []aliasedBlock) {
	if len(more) > 0 {
		a.more[name] = more
		return
	}
	if delete(a.more, name); len(a.more) == 0 {
		a.more = nil
	}
}

// findByAnyName returns a block for which suits is true among those that have
// the name in the table or as an alias of any slot, the table's first; 0 if
// there is none.
func (s *Space) findByAnyName(name uint64, suits func(cell uint32, nd *node) bool) uint32 {
	if cell := s.tree.findByName(name, suits); cell != 0 {
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

// addAlias adds an alias to both indexes. The block's state and links are the
// caller's.
func (s *Space) addAlias(slot uint32, alias aliasKey, cell uint32) {
	a := &s.ranks[slot].aliases
	if a.cells == nil {
		a.cells, a.states = make(map[aliasKey]uint32), make(map[heldKey]aliasState)
	}
	if s.sequence {
		if old, ok := a.cells[alias]; ok { // only if an event has a name twice
			s.byAlias.remove(alias.name, old)
		}
		s.byAlias.add(alias.name, cell)
	}
	a.cells[alias] = cell
}

// removeAlias undoes addAlias.
func (s *Space) removeAlias(slot uint32, alias aliasKey) {
	a := &s.ranks[slot].aliases
	if s.sequence {
		if cell, ok := a.cells[alias]; ok {
			s.byAlias.remove(alias.name, cell)
		}
	}
	delete(a.cells, alias)
}
