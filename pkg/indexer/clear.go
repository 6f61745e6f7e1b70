package indexer

import "slices"

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

// Stats describes the size of an index.
type Stats struct {
	Blocks [NumTiers]int // (rank, block) entries per tier
	// Unique counts blocks once however many ranks hold them; blocks that only
	// bridge a hole count too.
	Unique  int
	Runs    int
	Orphans int
	Bytes   int64 // flat memory
}

// Stats returns the size of the index.
func (s *Space) Stats() Stats {
	s.mu.RLock()
	defer s.mu.RUnlock()
	st := Stats{Blocks: s.blocks, Runs: s.tree.live, Bytes: s.mem.bytes.Load()}
	for i := range s.tree.byName.shards {
		st.Unique += s.tree.byName.shards[i].n
	}
	for i := range s.ranks {
		st.Orphans += s.ranks[i].orphans.len()
	}
	return st
}

// Held returns how many blocks a rank holds per tier.
func (s *Space) Held(slot uint32) [NumTiers]int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if int(slot) >= len(s.ranks) {
		return [NumTiers]int{}
	}
	return s.ranks[slot].blocks
}

// DeviceBlocks appends to dst how many blocks each slot holds on the device, in the
// order of the slots. Slots beyond its end hold none.
func (s *Space) DeviceBlocks(dst []int) []int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	dst = slices.Grow(dst, len(s.ranks))
	for i := range s.ranks {
		dst = append(dst, s.ranks[i].blocks[Device])
	}
	return dst
}
