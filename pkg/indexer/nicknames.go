package indexer

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
	if suits(first.cell, t.node(t.cells.nodeOf(first.cell))) {
		return first.cell
	}
	for _, n := range s.byAlias.more[name] {
		if suits(n.cell, t.node(t.cells.nodeOf(n.cell))) {
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
