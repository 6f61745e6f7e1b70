package indexer

import "github.com/select-service/select-service/pkg/hashing"

// clearWork is how many blocks and nodes Clear deals with before it lets others
// in: about a millisecond.
const clearWork = 16384

// aliasWork is what taking one alias from a block costs, in blocks.
const aliasWork = 8

// Clear ends a rank's ownership of everything, in all tiers. Queries see it at
// once. Events of the rank that come before it returns may be cleared as well.
func (s *Space) Clear(slot uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear(slot)
}

// Forget clears a rank that has left and drops what is remembered of it.
func (s *Space) Forget(slot uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.tree.walks {
		w.forget(slot)
	}
	s.clear(slot)
	s.ranks[slot].removed.clear(&s.mem)
	s.ranks[slot] = rank{}
	s.removals.forget(&s.mem, slot)
}

// clear lets go of the lock now and then.
func (s *Space) clear(slot uint32) {
	r := s.ensureSlot(slot)
	s.clearing[slot/64] |= 1 << (slot % 64)
	r.orphans = orphans{}
	r.removed.clear(&s.mem)
	told := 0
	for id := uint32(1); s.ranks[slot].blocks != [NumTiers]int{}; {
		if !s.sequence {
			// Names go before what they name: until then the rank's blocks are called
			// by the table's. In a sequence Space others find blocks by them, so that
			// they go with their blocks.
			s.ranks[slot].aliases = aliases{}
		}
		for work := 0; work < clearWork && id < s.tree.next; id++ {
			work += s.clearNode(slot, id, &told)
		}
		if id >= s.tree.next {
			id = 1 // others moved runs to nodes that were looked at
		}
		s.mu.Unlock()
		s.mu.Lock()
	}
	s.clearing[slot/64] &^= 1 << (slot % 64)
}

// clearNode takes a run from a rank and returns how much work that was. told
// counts the departures that are kept of this clear.
func (s *Space) clearNode(slot, id uint32, told *int) (work int) {
	t := &s.tree
	nd := t.node(id)
	n := int(nd.n)
	for tier, h := range nd.holders {
		if t.sets.has(h, slot) {
			by := holderOf(slot, Tier(tier))
			work = max(work, n) + aliasWork*s.dropRunAliases(by, nd)
			nd.holders[tier] = t.sets.remove(h, slot)
			s.addBlocks(by, -n)
			s.logCleared(by, nd, told)
		}
	}
	if work > 0 {
		t.normalize(id)
	}
	return work + 1
}

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
