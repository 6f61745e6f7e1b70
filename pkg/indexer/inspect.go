package indexer

import "github.com/select-service/select-service/pkg/hashing"

// DepthOf returns how many blocks are before the one that a slot holds under a
// name in a tier, where that is known.
func (s *Space) DepthOf(slot uint32, t Tier, name uint64) (depth uint32, known bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if int(slot) >= len(s.ranks) {
		return 0, false
	}
	cell := s.findInTier(holderOf(slot, t), name)
	if cell == 0 {
		return 0, false
	}
	depth = s.tree.depthOf(cell)
	return depth, depth < unknownDepth
}

// Empty tells whether a slot holds nothing: no block in any tier, and none that
// waits for its parent.
func (s *Space) Empty(slot uint32) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if int(slot) >= len(s.ranks) {
		return true
	}
	r := &s.ranks[slot]
	return r.blocks == [NumTiers]int{} && r.orphans.len() == 0
}

// HasSeed tells whether a block seed (the key of a namespace) is in use: by a
// block in the tree or by one that waits for its parent.
func (s *Space) HasSeed(seed uint64) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.tree.usesSeed(seed) {
		return true
	}
	for i := range s.ranks {
		if s.ranks[i].orphans.seeds[seed] > 0 {
			return true
		}
	}
	return false
}

// usesSeed tells whether a run has this block seed.
func (t *tree) usesSeed(seed uint64) bool {
	if seed != hashing.Seed {
		_, ok := t.seeds.of[seed]
		return ok
	}
	counted := 0
	for i := range t.seeds.rows {
		counted += t.seeds.rows[i].refs
	}
	return t.live > counted
}

// Seeds appends to dst the block seeds (the keys of namespaces) of the blocks in
// the tree, in no order.
func (s *Space) Seeds(dst []uint64) []uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.tree.usesSeed(hashing.Seed) {
		dst = append(dst, hashing.Seed)
	}
	for seed := range s.tree.seeds.of {
		dst = append(dst, seed)
	}
	return dst
}

// OrphanSlots appends to dst the slots that keep a block with this true local hash
// back, because its parent is unknown. In a sequence Space those of another
// namespace than the seed's do not count; one without a seed of its own has its
// parent's, whichever that will be. A local hash has the seed in it. All blocks
// that wait are looked at.
func (s *Space) OrphanSlots(seed, local uint64, dst []uint32) []uint32 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for slot := range s.ranks {
		o := &s.ranks[slot].orphans
		for id := o.first; id != 0; id = o.rows[id].younger {
			if b := &o.rows[id]; b.local == local && (!s.sequence || !b.seedKnown || b.seed == seed) {
				dst = append(dst, uint32(slot))
				break
			}
		}
	}
	return dst
}
