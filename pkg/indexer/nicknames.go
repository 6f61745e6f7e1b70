package indexer

// nicknames finds blocks by the aliases that slots have for them, whichever slot
// it is: a publisher without tokens knows a block by one engine's name, and the
// table may have another's. Only in sequence Spaces; the maps exist only while
// there are any.
type nicknames struct {
	blocks map[uint64]nickname   // by name
	more   map[uint64][]nickname // further blocks of a name, which few names have
}

// nickname is a block and how many slots and tiers have it by the name.
type nickname struct {
	cell, count uint32
}

func (n *nicknames) add(name uint64, cell uint32) {
	first, ok := n.blocks[name]
	switch {
	case !ok:
		if n.blocks == nil {
			n.blocks = make(map[uint64]nickname)
		}
		first.cell = cell
		fallthrough
	case first.cell == cell:
		first.count++
		n.blocks[name] = first
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
		n.more = make(map[uint64][]nickname)
	}
	n.more[name] = append(more, nickname{cell, 1})
}

func (n *nicknames) remove(name uint64, cell uint32) {
	first := n.blocks[name]
	more := n.more[name]
	if first.cell == cell {
		if first.count--; first.count > 0 {
			n.blocks[name] = first
			return
		}
		if len(more) == 0 {
			if delete(n.blocks, name); len(n.blocks) == 0 {
				*n = nicknames{}
			}
			return
		}
		n.blocks[name] = more[len(more)-1]
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
func (n *nicknames) shorten(name uint64, more []nickname) {
	if len(more) > 0 {
		n.more[name] = more
		return
	}
	if delete(n.more, name); len(n.more) == 0 {
		n.more = nil
	}
}

// named returns a block that suits of those that the table or any slot calls
// so, the table's first; 0 if there is none.
func (s *Space) named(name uint64, suits func(cell uint32, nd *node) bool) uint32 {
	if cell := s.lookup(name, suits); cell != 0 {
		return cell
	}
	first, ok := s.nicknames.blocks[name]
	if !ok {
		return 0
	}
	t := &s.tree
	if suits(first.cell, t.node(t.cells.nodeOf(first.cell))) {
		return first.cell
	}
	for _, n := range s.nicknames.more[name] {
		if suits(n.cell, t.node(t.cells.nodeOf(n.cell))) {
			return n.cell
		}
	}
	return 0
}

// dub makes a name an alias of a block; what goes with it is the caller's.
func (s *Space) dub(slot uint32, alias aliasKey, cell uint32) {
	a := &s.ranks[slot].aliases
	if a.cells == nil {
		a.cells, a.states = make(map[aliasKey]uint32), make(map[heldKey]aliasState)
	}
	if s.sequence {
		if old, ok := a.cells[alias]; ok { // only of an event that has a name twice
			s.nicknames.remove(alias.name, old)
		}
		s.nicknames.add(alias.name, cell)
	}
	a.cells[alias] = cell
}

// undub undoes dub.
func (s *Space) undub(slot uint32, alias aliasKey) {
	a := &s.ranks[slot].aliases
	if s.sequence {
		if cell, ok := a.cells[alias]; ok {
			s.nicknames.remove(alias.name, cell)
		}
	}
	delete(a.cells, alias)
}
