package indexer

// clearPages is how many pages of nodes Clear looks at before it lets others in.
const clearPages = 4

// Clear ends a rank's ownership of everything, in all tiers. Queries see it at
// once; the rank's own events must wait until it returns.
func (s *Space) Clear(slot uint32) {
	s.mu.Lock()
	r := s.admit(slot)
	s.hidden[slot/64] |= 1 << (slot % 64)
	s.dropAliases(slot)
	r.orphans = orphans{}
	r.recent.clear(&s.mem)
	for page := 0; s.ranks[slot].blocks != [NumTiers]int{}; {
		for range clearPages {
			if page >= len(s.tree.pages) {
				page = 0 // others moved runs to nodes that were looked at
				break
			}
			s.clearPage(slot, page)
			page++
		}
		s.mu.Unlock()
		s.mu.Lock()
	}
	s.hidden[slot/64] &^= 1 << (slot % 64)
	s.mu.Unlock()
}

// Forget clears a rank that has left and drops what is remembered of it.
func (s *Space) Forget(slot uint32) {
	s.Clear(slot)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ranks[slot] = rank{}
}

func (s *Space) clearPage(slot uint32, page int) {
	t := &s.tree
	for i := range uint32(pageNodes) {
		if page >= len(t.pages) {
			return // the last node went
		}
		id := uint32(page)<<pageBits + i
		nd := t.node(id)
		if !nd.used || id == root {
			continue
		}
		held := false
		for tier, h := range nd.owners {
			if t.sets.has(h, slot) {
				nd.owners[tier] = t.sets.remove(h, slot)
				s.count(holderOf(slot, Tier(tier)), -int(nd.n))
				held = true
			}
		}
		if held {
			t.tidy(id)
		}
	}
}

func (s *Space) dropAliases(slot uint32) {
	if s.ranks[slot].aliases == 0 {
		return
	}
	for k := range s.alias {
		if k.by.slot() == slot {
			delete(s.alias, k)
		}
	}
	for k := range s.names {
		if k.by.slot() == slot {
			delete(s.names, k)
		}
	}
	s.ranks[slot].aliases = 0
	s.dropEmptyAliases()
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
	for i := range s.tree.names.shards {
		st.Unique += s.tree.names.shards[i].n
	}
	for i := range s.ranks {
		st.Orphans += len(s.ranks[i].orphans.byName)
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
