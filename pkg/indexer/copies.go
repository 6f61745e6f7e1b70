package indexer

// An engine may hold equal blocks several times, under one engine hash: vLLM's
// block pool does not merge them, and announces each copy and the end of each. A
// rank therefore holds a block in a tier until as many removals of a name have come
// as counted stores (Store.Counted); a clear ends all copies. Most blocks have one
// copy, for which the tree is enough; only names with more copies are kept here.
//
// Where messages have been lost, or a rank's blocks come from another replica, the
// number of copies is not known: such blocks are provisional. The first counted store
// of a provisional block sets its count to one, a removal ends the block. An index
// thus never counts more copies than the engine has.

// maxCopies bounds the names of one rank whose copies are counted. Beyond it a block
// counts as one copy, or stays provisional.
const maxCopies = 1 << 18

// copies counts the copies of one rank's blocks by name and tier. Only names of
// blocks that the rank holds are in it.
type copies struct {
	// counts has the names with more than one copy. While provisional is set it has
	// those with one copy too, and a name that is missing is of a provisional block.
	counts      map[aliasKey]uint32
	largest     int           // the largest size of counts so far: a map does not shrink
	further     [NumTiers]int // copies beyond the first of each name
	provisional bool
}

// add counts one more copy of a block that is held under a name, and reports whether
// the block had a counted copy before. While c is provisional it may have had none.
func (c *copies) add(name uint64, t Tier) (further bool) {
	key := aliasKey{name, t}
	n, ok := c.counts[key]
	switch {
	case ok:
	case len(c.counts) >= maxCopies:
		return false
	case !c.provisional:
		n = 1
	}
	if c.counts == nil {
		c.counts = make(map[aliasKey]uint32)
	}
	c.counts[key] = n + 1
	c.largest = max(c.largest, len(c.counts))
	if n > 0 {
		c.further[t]++
	}
	return n > 0
}

// addFirst counts the first copy of a block, which has just become held under a
// name.
func (c *copies) addFirst(name uint64, t Tier) {
	if c.provisional {
		c.add(name, t)
	}
}

// set sets the number of copies of a block that has just become held under a name.
func (c *copies) set(name uint64, t Tier, n uint32) {
	c.drop(name, t)
	if c.counts == nil {
		c.counts = make(map[aliasKey]uint32)
	}
	c.counts[aliasKey{name, t}] = n
	c.largest = max(c.largest, len(c.counts))
	c.further[t] += int(max(n, 1)) - 1
}

// take counts a removal, and reports whether the block has copies left.
func (c *copies) take(name uint64, t Tier) (left bool) {
	key := aliasKey{name, t}
	n := c.counts[key]
	if n <= 1 {
		return false
	}
	c.further[t]--
	if n--; n > 1 || c.provisional {
		c.counts[key] = n
	} else {
		c.delete(key)
	}
	return true
}

// drop forgets the copies of a block that is no longer held under a name.
func (c *copies) drop(name uint64, t Tier) {
	if len(c.counts) == 0 {
		return
	}
	key := aliasKey{name, t}
	if n, ok := c.counts[key]; ok {
		c.further[t] -= int(max(n, 1)) - 1
		c.delete(key)
	}
}

func (c *copies) delete(key aliasKey) {
	if delete(c.counts, key); len(c.counts) == 0 {
		c.counts, c.largest = nil, 0
	}
}

// forgetTier sets the count of all blocks in a tier to one copy.
func (c *copies) forgetTier(t Tier) {
	for key := range c.counts {
		if key.tier == t {
			c.drop(key.name, t)
		}
	}
}

// MakeProvisional makes all blocks of a slot provisional, orphans included: the number
// of their copies is unknown, because messages about them were lost or will be repeated.
func (s *Space) MakeProvisional(slot uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if int(slot) >= len(s.ranks) {
		return
	}
	s.ranks[slot].makeProvisional()
	s.ranks[slot].groups.makeProvisional()
	s.settle(slot)
}

func (r *rank) makeProvisional() {
	r.copies = copies{provisional: r.blocks != [NumTiers]int{} || r.orphans.len() > 0}
	r.orphans.makeProvisional()
}

// holdUncounted makes by a holder of one block under a name, as holdCell does, without
// counting a copy. A block that by did not hold before gets one copy, or is provisional.
func (s *Space) holdUncounted(by holder, cell uint32, name uint64, provisional bool) {
	r := &s.ranks[by.slot()]
	switch fresh := s.holdCell(by, cell, name); {
	case fresh && !provisional:
		r.copies.addFirst(name, by.tier())
	case fresh && !r.copies.provisional:
		r.makeProvisional()
	}
}

// countCopies counts the copies of an event's blocks, which by now are held. known are
// the names under which blocks were held before the event, in the event's order.
func (s *Space) countCopies(ev *Store, known []uint64) (further int) {
	r := &s.ranks[ev.Slot]
	c := &r.copies
	if !c.provisional {
		if ev.Provisional && len(known) < len(ev.EngineHashes) {
			r.makeProvisional()
		}
		for _, name := range known {
			if ev.Counted && !ev.Provisional && c.add(name, ev.Tier) {
				further++
			}
		}
		return further
	}
	for _, name := range ev.EngineHashes {
		isKnown := len(known) > 0 && known[0] == name
		if isKnown {
			known = known[1:]
		}
		if isKnown && !ev.Counted || ev.Provisional {
			continue
		}
		if c.add(name, ev.Tier) {
			further++
		}
	}
	return further
}

// endProvisional ends the provisional state of a rank once each of its blocks is counted.
func (r *rank) endProvisional() {
	if !r.copies.provisional {
		return
	}
	names := len(r.aliases.cells) // becomes an upper bound of the number of names
	for _, n := range r.blocks {
		names += n
	}
	r.copies.provisional = len(r.copies.counts) < names || r.orphans.len() > 0
}
