package indexer

import "slices"

// Remove applies a removed event: the rank no longer holds the blocks of these
// names in the tier.
func (s *Space) Remove(slot uint32, t Tier, names []uint64) (removed, unknown int) {
	for part := range slices.Chunk(names, maxHold) {
		removed += s.removePart(slot, t, part)
	}
	return removed, len(names) - removed
}

func (s *Space) removePart(slot uint32, t Tier, names []uint64) (removed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.ensureSlot(slot)
	by := holderOf(slot, t)
	for _, name := range names {
		if cell := s.findInTier(by, name); cell != 0 {
			s.rememberRemoved(by, name, cell)
			s.removeName(by, name, cell)
			removed++
		} else if r.orphans.remove(name, t) {
			removed++
		}
	}
	return removed
}

// removeHolder ends by's ownership of one block.
func (s *Space) removeHolder(by holder, cell uint32) {
	t := &s.tree
	s.addBlocks(by, -1)
	id := t.cells.nodeOf(cell)
	nd := t.node(id)
	at := cell - nd.off
	s.removals.push(&s.mem, removal{key: s.removalKeyAt(nd, at), by: by})
	mine := [NumTiers]holderSet{}
	mine[by.tier()] = onlyHolder(by.slot())
	if nd.n > 1 && at == nd.n-1 && nd.first == 0 && nd.holders == mine {
		t.trim(id, 1) // the usual eviction: the tail of a chain of its own
		return
	}
	if at > 0 {
		_, id = t.split(id, at)
	}
	if t.node(id).n > 1 {
		id, _ = t.split(id, 1)
	}
	nd = t.node(id)
	nd.holders[by.tier()] = t.sets.remove(nd.holders[by.tier()], by.slot())
	t.normalize(id)
}
