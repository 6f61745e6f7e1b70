package indexer

import "github.com/select-service/select-service/pkg/hashing"

// clearWork is how many blocks and nodes Clear processes under one hold of the
// lock: about a millisecond.
const clearWork = 16384

// aliasWork is the cost of removing one alias, in blocks.
const aliasWork = 8

// Clear removes everything that a rank holds, from all tiers. Queries see that
// at once. Events of the rank that are applied before Clear returns may be
// cleared as well.
func (s *Space) Clear(slot uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear(slot)
}

// Forget clears a rank that has left and drops everything that is kept about its
// slot, so that the slot can be given to another rank.
func (s *Space) Forget(slot uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tree.leaveOut(slot)
	s.clear(slot)
	s.ranks[slot].removed.clear(&s.mem)
	s.forgetGroups(slot)
	s.ranks[slot] = rank{charged: s.ranks[slot].charged}
	s.removals.forget(&s.mem, slot)
	s.settle(slot)
}

// clear removes everything that a rank holds. It releases s.mu between parts of
// its work.
func (s *Space) clear(slot uint32) {
	r := s.ensureSlot(slot)
	s.clearing[slot/64] |= 1 << (slot % 64)
	r.orphans = orphans{}
	r.groups.clear()
	r.removed.clear(&s.mem)
	logged := 0
	for id := uint32(1); s.ranks[slot].blocks != [NumTiers]int{}; {
		if !s.sequence {
			// Aliases are dropped at once: until its blocks are cleared, the rank has
			// them under the names of the table. In a sequence Space other slots find
			// blocks by these aliases, so that each is dropped with its block.
			s.ranks[slot].aliases = aliases{}
		}
		for work := 0; work < clearWork && id < s.tree.next; id++ {
			work += s.clearNode(slot, id, &logged)
		}
		if id >= s.tree.next {
			id = 1 // events have moved runs to nodes that the loop had already passed
		}
		s.settle(slot)
		s.mu.Unlock()
		s.mu.Lock()
	}
	s.clearing[slot/64] &^= 1 << (slot % 64)
	s.ranks[slot].copies = copies{}
	s.settle(slot)
}

// clearNode removes a rank from the holders of a run and returns how much work
// that was. logged counts the removals that this clear has logged.
func (s *Space) clearNode(slot, id uint32, logged *int) (work int) {
	t := &s.tree
	nd := t.node(id)
	n := int(nd.n)
	for tier, h := range nd.holders {
		if t.sets.has(h, slot) {
			by := holderOf(slot, Tier(tier))
			work = max(work, n) + aliasWork*s.dropRunAliases(by, nd)
			nd.holders[tier] = t.sets.remove(h, slot)
			s.addBlocks(by, -n)
			s.logCleared(by, nd, logged)
		}
	}
	if work > 0 {
		t.normalize(id)
	}
	return work + 1
}

// ClearTier removes the blocks of one seed (in a sequence Space, of one
// namespace) that a slot holds in a tier, and returns how many these were.
// Orphans of that seed no longer wait in the tier. Queries see the change in
// parts. Events of the slot that are applied before ClearTier returns may be
// cleared as well.
func (s *Space) ClearTier(slot uint32, t Tier, seed uint64) (cleared int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	by := holderOf(slot, t)
	r := s.ensureSlot(slot)
	r.orphans.clear(t, seed)
	r.copies.forgetTier(t)
	defer s.settle(slot)
	logged := 0
	var runs []uint32
	for no := 0; no < len(s.tree.cells.segments) && s.ranks[slot].blocks[t] > 0; no++ {
		if no > 0 {
			// A segment takes about a millisecond. Blocks never change their cells.
			s.mu.Unlock()
			s.mu.Lock()
			if no >= len(s.tree.cells.segments) {
				break
			}
		}
		runs = s.tree.runsHeld(runs[:0], uint32(no), by, seed)
		for _, id := range runs {
			cleared += s.clearRun(by, id, &logged)
		}
	}
	return cleared
}

// runsHeld appends to dst the runs of a segment that have the seed and that by
// holds.
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

// clearRun removes by from the holders of a run and returns the number of its
// blocks. The caller's list of runs held by by stays usable: such runs are joined
// only with each other, and the node that a join frees has no holders, so that
// clearing it does nothing.
func (s *Space) clearRun(by holder, id uint32, logged *int) int {
	t := &s.tree
	nd := t.node(id)
	h := nd.holders[by.tier()]
	if !t.sets.has(h, by.slot()) {
		return 0
	}
	s.logCleared(by, nd, logged)
	s.dropRunAliases(by, nd)
	n := int(nd.n)
	nd.holders[by.tier()] = t.sets.remove(h, by.slot())
	s.addBlocks(by, -n)
	t.normalize(id)
	return n
}
