package indexer

import "github.com/select-service/select-service/pkg/hashing"

// ClearTier ends a slot's ownership of the blocks of one seed (one namespace) in
// a tier, and returns how many blocks that were. Blocks of that seed that wait
// for their parent there go, too. Queries see it piece by piece. Events of the
// slot that come before it returns may be cleared as well.
func (s *Space) ClearTier(slot uint32, t Tier, seed uint64) (cleared int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	by := holderOf(slot, t)
	s.ensureSlot(slot).orphans.clear(t, seed)
	told := 0
	var runs []uint32
	for no := 0; no < len(s.tree.cells.segments) && s.ranks[slot].blocks[t] > 0; no++ {
		if no > 0 {
			// A segment is about a millisecond. Blocks stay where they are.
			s.mu.Unlock()
			s.mu.Lock()
			if no >= len(s.tree.cells.segments) {
				break
			}
		}
		runs = s.tree.runsHeld(runs[:0], uint32(no), by, seed)
		for _, id := range runs {
			cleared += s.clearRun(by, id, &told)
		}
	}
	return cleared
}

// runsHeld appends to dst the runs in a segment that by holds and that have the seed.
func (t *tree) runsHeld(dst []uint32, no uint32, by holder, seed uint64) []uint32 {
	number, used := t.seeds.of[seed]
	if !used && seed != hashing.Seed {
		return dst
	}
	seg := &t.cells.segments[no]
	for i := uint32(1); int(i) < len(seg.node); {
		if seg.node[i] == freeCell {
			i += uint32(seg.local[i])
			continue
		}
		nd := t.node(seg.node[i])
		if nd.seed == number && t.sets.has(nd.holders[by.tier()], by.slot()) {
			dst = append(dst, seg.node[i])
		}
		i += nd.cap
	}
	return dst
}

// clearRun takes a run from a holder. Runs that are yet to be taken from it are
// not lost: they join none that it no longer holds. Of two that join each other
// one is no run any more, which nobody holds.
func (s *Space) clearRun(by holder, id uint32, told *int) int {
	t := &s.tree
	nd := t.node(id)
	h := nd.holders[by.tier()]
	if !t.sets.has(h, by.slot()) {
		return 0
	}
	s.logCleared(by, nd, told)
	s.dropRunAliases(by, nd)
	n := int(nd.n)
	nd.holders[by.tier()] = t.sets.remove(h, by.slot())
	s.addBlocks(by, -n)
	t.normalize(id)
	return n
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

// clear ends the stay of blocks of one seed in a tier.
func (o *orphans) clear(t Tier, seed uint64) {
	if o.seeds[seed] == 0 {
		return
	}
	for id := o.first; id != 0; {
		row := o.rows[id]
		if row.seedKnown && row.seed == seed && row.tiers>>t&1 == 1 {
			o.remove(row.name, t)
		}
		id = row.younger
	}
}
