package indexer

// AppendNames appends to dst the names under which a slot holds the leading blocks of a prompt now, given
// the prompt's local hashes: those on the device, and then as far as the host tier continues them, as in Overlap;
// at most most of them. Of several names it is the table's, if that is one of them, else the latest. It is for
// local Spaces.
func (s *Space) AppendNames(dst []uint64, slot uint32, local []uint64, most int) []uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := &s.tree
	if int(slot) >= len(s.ranks) || t.live == 0 || s.clearing[slot/64]>>(slot%64)&1 == 1 {
		return dst
	}
	local = local[:min(len(local), most)]
	tier := Device
	for id := uint32(root); len(local) > 0; {
		if id = t.child(id, local[0]); id == 0 {
			break
		}
		nd := t.node(id)
		if tier == Device && !t.sets.has(nd.holders[Device], slot) {
			tier = Host
		}
		if !t.sets.has(nd.holders[tier], slot) {
			break
		}
		n := t.match(position{id, 0}, local)
		dst = s.appendRunNames(dst, holderOf(slot, tier), nd.off, uint32(n))
		if local = local[n:]; n < int(nd.n) {
			break
		}
	}
	return dst
}

// appendRunNames appends the names that by has for n cells that it holds.
func (s *Space) appendRunNames(dst []uint64, by holder, off, n uint32) []uint64 {
	names, a := s.tree.cells.names(off, n), &s.ranks[by.slot()].aliases
	if len(a.states) == 0 {
		return append(dst, names...)
	}
	for i, name := range names {
		dst = append(dst, a.name(off+uint32(i), by.tier(), name))
	}
	return dst
}
