package indexer

// find returns the block that by holds under a name, or 0.
func (s *Space) find(by holder, name uint64) uint32 {
	aliased := s.ranks[by.slot()].aliases > 0
	if aliased {
		if cell, ok := s.alias[aliasKey{name, by}]; ok {
			return cell
		}
	}
	return s.lookup(name, func(cell uint32, nd *node) bool {
		return s.tree.sets.has(nd.owners[by.tier()], by.slot()) && (!aliased || s.underTableName(by, cell))
	})
}

// findAny returns the block that a rank holds under a name in any tier, or 0.
func (s *Space) findAny(slot uint32, name uint64) uint32 {
	aliased := s.ranks[slot].aliases > 0
	if aliased {
		for t := range Tier(NumTiers) {
			if cell, ok := s.alias[aliasKey{name, holderOf(slot, t)}]; ok {
				return cell
			}
		}
	}
	return s.lookup(name, func(cell uint32, nd *node) bool {
		for t, h := range nd.owners {
			if s.tree.sets.has(h, slot) && (!aliased || s.underTableName(holderOf(slot, Tier(t)), cell)) {
				return true
			}
		}
		return false
	})
}

// underTableName tells whether a holder of a block announced it under the name
// that stands in the table.
func (s *Space) underTableName(by holder, cell uint32) bool {
	st, ok := s.names[nameKey{cell, by}]
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

// name records that by calls a block it holds by a name. table is the block's
// name in the table; fresh says that by became a holder only now.
func (s *Space) name(by holder, name uint64, cell uint32, table uint64, fresh bool) {
	key := nameKey{cell, by}
	st, ok := s.names[key]
	if name == table {
		if ok && !st.primary {
			st.primary = true
			s.names[key] = st
		}
		return
	}
	if _, dup := s.alias[aliasKey{name, by}]; dup {
		return // by rename it can only be this block
	}
	if s.alias == nil {
		s.alias, s.names = make(map[aliasKey]uint32), make(map[nameKey]nameState)
	}
	if !ok {
		st.primary = !fresh
	}
	st.aliases++
	s.alias[aliasKey{name, by}] = cell
	s.names[key] = st
	s.ranks[by.slot()].aliases++
}

// unname takes a name from a block; with the last of its names by no longer
// holds it.
func (s *Space) unname(by holder, name uint64, cell uint32) {
	key := nameKey{cell, by}
	st, ok := s.names[key]
	if !ok {
		s.disown(by, cell)
		return
	}
	if c, aliased := s.alias[aliasKey{name, by}]; aliased && c == cell {
		delete(s.alias, aliasKey{name, by})
		s.ranks[by.slot()].aliases--
		st.aliases--
	} else {
		st.primary = false
	}
	switch {
	case st.aliases > 0:
		s.names[key] = st
		return
	case st.primary:
		delete(s.names, key)
		s.dropEmptyAliases()
		return
	}
	delete(s.names, key)
	s.dropEmptyAliases()
	s.disown(by, cell)
}

func (s *Space) dropEmptyAliases() {
	if len(s.alias) == 0 && len(s.names) == 0 {
		s.alias, s.names = nil, nil
	}
}

// aliasOf returns one of the names that by has for a cell beside the table's.
// It is used only for engines whose hash seeds differ, when they evict.
func (s *Space) aliasOf(cell uint32, by holder) uint64 {
	for k, c := range s.alias {
		if c == cell && k.by == by {
			return k.name
		}
	}
	return s.tree.cells.name(cell)
}
