package indexer

import "slices"

// Store is one "stored" event: consecutive blocks that a rank now holds in a
// tier.
type Store struct {
	Slot uint32
	Tier Tier
	// Parent is the engine's hash of the block before the first one. A parent 0
	// that names no block is the root (decision K10).
	Parent       uint64
	HasParent    bool
	EngineHashes []uint64 // one per block, no two equal
	Local        []uint64 // the local block hashes, one per block
	// Seed is the block seed of Local (hashing.LocalSeed), in a sequence Space
	// the namespace's key. Without SeedKnown the parent's seed is used.
	Seed      uint64
	SeedKnown bool
	// Counted: a block that the rank already holds in the tier under the same engine
	// hash gets one more copy; it is held until as many removals have come. Otherwise
	// the event changes nothing for such a block. Only for local Spaces.
	Counted bool
	// KeysOmitted: the event does not say which keys its blocks have beside their tokens.
	// Once keys were shown (Space.ShowKeys), a name that the rank has announced, and whose
	// seed is accepted by Fits, is that block, and the others become Unidentified. Before,
	// Local says which blocks these are.
	KeysOmitted bool
	// Fits, if not nil, reports whether a block with that seed has the keys that an event
	// with KeysOmitted states all the same. It is called with the lock held.
	Fits func(seed uint64) bool
	// ShowsKeys: some of the blocks have keys, even if Seed does not show it.
	ShowsKeys bool
	// Provisional: the event does not come from the engine, so the number of copies of
	// the blocks that it adds is unknown. It counts no copies.
	Provisional bool
}

// Outcome counts the blocks of a stored event by what was done with them.
type Outcome struct {
	Stored   int // now held, and not before
	Known    int // held before
	Copies   int // the part of Known that was counted as further copies
	Orphaned int // wait for their parent (decision K7)
	Dropped  int // older orphans that were dropped to make room
	Refused  int // not kept: the Account has no room
	// Unidentified is the number of blocks that are kept but never matched, because only
	// their names are known.
	Unidentified int
	// Held is the number of blocks that the rank now holds in the tier, each copy
	// counted. It is set only if Copies > 0.
	Held int
}

// maxHold bounds the blocks of one event that are applied under one hold of the
// lock: about a millisecond.
const maxHold = 4096

// Store applies a stored event. A block that the rank already holds costs one
// look-up. A block whose parent the rank has not announced becomes an orphan: it
// is in no answer until the parent is announced.
func (s *Space) Store(ev *Store) Outcome {
	if len(ev.EngineHashes) <= maxHold {
		return s.storePart(ev)
	}
	var out Outcome
	for part := *ev; len(part.EngineHashes) > 0; {
		n := min(maxHold, len(part.EngineHashes))
		for n < len(part.EngineHashes) && part.EngineHashes[n-1] == 0 {
			n++ // as a parent, 0 may mean the root
		}
		names, local := part.EngineHashes[n:], part.Local[n:]
		part.EngineHashes, part.Local = part.EngineHashes[:n], part.Local[:n]
		out.add(s.storePart(&part))
		part.Parent, part.HasParent = part.EngineHashes[n-1], true
		part.EngineHashes, part.Local = names, local
	}
	return out
}

func (o *Outcome) add(more Outcome) {
	o.Stored += more.Stored
	o.Known += more.Known
	o.Orphaned += more.Orphaned
	o.Dropped += more.Dropped
	o.Refused += more.Refused
	o.Copies += more.Copies
	o.Unidentified += more.Unidentified
	o.Held = max(o.Held, more.Held)
}

func (s *Space) storePart(ev *Store) Outcome {
	if len(ev.EngineHashes) == 0 {
		return Outcome{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ensureSlot(ev.Slot)
	if !s.admits(ev.Slot) {
		return Outcome{Refused: len(ev.EngineHashes)}
	}
	defer s.settle(ev.Slot)
	return s.store(ev)
}

// store applies an event of at least one block.
func (s *Space) store(ev *Store) Outcome {
	s.noteKeys(ev)
	if s.namesOnly(ev) {
		return s.storeNames(ev)
	}
	r := &s.ranks[ev.Slot]
	r.unkeyedCopies = r.unkeyedCopies || ev.KeysOmitted
	stored, copies, ok := s.insert(ev)
	if !ok {
		return s.storeOrphan(ev)
	}
	if r.unkeyedCopies {
		s.identify(ev)
	}
	s.joinOrphans(holderOf(ev.Slot, ev.Tier), ev.EngineHashes)
	out := Outcome{Stored: stored, Known: len(ev.EngineHashes) - stored, Copies: copies}
	if copies > 0 {
		out.Held = r.blocks[ev.Tier] + r.copies.further[ev.Tier]
	}
	return out
}

// insert adds an event's blocks after its parent. stored counts those that the
// holder did not hold before, copies the further copies of the others. ok is false
// if the parent is unknown.
func (s *Space) insert(ev *Store) (stored, copies int, ok bool) {
	if s.sequence {
		stored, ok = s.insertSequence(ev)
		return stored, 0, ok
	}
	at, ok := s.prepareInsert(ev)
	if !ok {
		return 0, 0, false
	}
	r := &s.ranks[ev.Slot]
	before := r.blocks[ev.Tier]
	s.insertBlocks(holderOf(ev.Slot, ev.Tier), at, ev)
	if len(s.knownNames) > 0 || r.copies.provisional || ev.Provisional {
		copies = s.countCopies(ev, s.knownNames)
	}
	return r.blocks[ev.Tier] - before, copies, true
}

// prepareInsert returns the position for an event's blocks, after freeing their
// names, and sets knownNames. ok is false if the parent is unknown.
func (s *Space) prepareInsert(ev *Store) (at position, ok bool) {
	at, ok = s.positionAfterParent(ev)
	for ok && s.freeNames(holderOf(ev.Slot, ev.Tier), at, ev) {
		at, ok = s.positionAfterParent(ev) // the tree has changed
	}
	return at, ok
}

// storeOrphan applies an event whose parent is unknown. The blocks up to the first
// that the rank already has, in any tier, become orphans; from that one on the
// chain's place in the tree is known.
func (s *Space) storeOrphan(ev *Store) Outcome {
	anchor, cell := len(ev.EngineHashes), uint32(0)
	for i, name := range ev.EngineHashes {
		if c := s.findInAnyTier(ev.Slot, name); c != 0 && s.hasLocalHash(c, ev.Local[i], ev.Seed, ev.SeedKnown) {
			anchor, cell = i, c
			break
		}
	}
	var out Outcome
	r := &s.ranks[ev.Slot]
	out.Orphaned, out.Dropped = r.orphans.put(ev, anchor)
	if ev.Provisional && out.Orphaned > 0 && !r.copies.provisional {
		r.makeProvisional() // now, so that the order in which orphans join does not matter
	}
	if cell == 0 {
		return out
	}
	by := holderOf(ev.Slot, ev.Tier)
	if s.tree.holds(by, cell) {
		out.Known = 1
	} else {
		out.Stored = 1
	}
	name := ev.EngineHashes[anchor : anchor+1]
	var known []uint64
	if !s.holdCell(by, cell, name[0]) {
		known = name
	}
	out.Copies = s.countCopies(&Store{Slot: ev.Slot, Tier: ev.Tier, EngineHashes: name, Counted: ev.Counted, Provisional: ev.Provisional}, known)
	s.joinOrphans(by, name)
	if rest := anchor + 1; rest < len(ev.EngineHashes) {
		out.add(s.store(&Store{
			Slot: ev.Slot, Tier: ev.Tier, Parent: ev.EngineHashes[anchor], HasParent: true,
			EngineHashes: ev.EngineHashes[rest:], Local: ev.Local[rest:], Seed: ev.Seed, SeedKnown: ev.SeedKnown,
			Counted: ev.Counted, Provisional: ev.Provisional, KeysOmitted: ev.KeysOmitted, Fits: ev.Fits,
		}))
	}
	return out
}

// position is a place between blocks of the tree: after the first at blocks of a
// node's run. The zero position is the root.
type position struct {
	id, at uint32
}

// positionAfter returns the position directly after a block.
func (t *tree) positionAfter(cell uint32) position {
	id := t.cells.nodeOf(cell)
	return position{id, cell - t.node(id).off + 1}
}

// positionAfterParent returns the position after an event's parent: the block
// that the rank holds under that name in the event's tier, else in any.
func (s *Space) positionAfterParent(ev *Store) (position, bool) {
	if !ev.HasParent {
		return position{}, true
	}
	cell := s.findInTier(holderOf(ev.Slot, ev.Tier), ev.Parent)
	if cell == 0 || s.keyed.Load() && s.tree.isUnidentified(s.tree.nodeAt(cell)) {
		cell = s.findInAnyTier(ev.Slot, ev.Parent)
	}
	if cell == 0 {
		return position{}, ev.Parent == 0
	}
	return s.tree.positionAfter(cell), true
}

// match returns how many of locals follow p within p's run.
func (t *tree) match(p position, locals []uint64) int {
	nd := t.node(p.id)
	run := t.cells.locals(nd.off+p.at, nd.n-p.at)
	n := min(len(run), len(locals))
	run, locals = run[:n], locals[:n]
	for i, l := range run {
		if l != locals[i] {
			return i
		}
	}
	return n
}

// freeNames frees the event's names: where the holder has another block under one of
// them, that block loses the name, because a holder's name stands for one block. It
// reports whether any did; then the tree may have changed. Otherwise it sets
// knownNames to those of the event's names under which the holder already has the
// event's blocks.
func (s *Space) freeNames(by holder, p position, ev *Store) bool {
	t := &s.tree
	s.knownNames = s.knownNames[:0]
	if t.live == 0 {
		return false
	}
	s.staleNames = s.staleNames[:0]
	s.touch(ev.EngineHashes)
	i := 0
	for i < len(ev.Local) {
		nd := t.node(p.id)
		if p.at == nd.n {
			c := t.child(p.id, ev.Local[i])
			if c == 0 {
				break
			}
			p, nd = position{c, 0}, t.node(c)
		}
		m := t.match(p, ev.Local[i:])
		held := t.sets.has(nd.holders[by.tier()], by.slot()) && len(s.ranks[by.slot()].aliases.cells) == 0
		names := t.cells.names(nd.off+p.at, uint32(m))
		for k, name := range names {
			if held && name == ev.EngineHashes[i+k] || s.markStaleName(by, ev.EngineHashes[i+k], nd.off+p.at+uint32(k)) {
				s.knownNames = append(s.knownNames, ev.EngineHashes[i+k])
			}
		}
		i += m
		if p.at += uint32(m); p.at < nd.n {
			break
		}
	}
	for ; i < len(ev.Local); i++ {
		s.markStaleName(by, ev.EngineHashes[i], 0)
	}
	return s.removeStaleNames(by)
}

// touch brings the table's entries for names into the processor's caches; see cellTable.touch.
func (s *Space) touch(names []uint64) {
	if len(names) > 1 {
		s.touches += s.tree.byName.touch(names, &s.tree.cells)
	}
}

// removeStaleNames removes the marked names from their blocks and reports whether
// there were any.
func (s *Space) removeStaleNames(by holder) bool {
	for _, name := range s.staleNames {
		if cell := s.findInTier(by, name); cell != 0 { // a name may be marked twice
			s.removeName(by, name, cell)
		}
	}
	return len(s.staleNames) > 0
}

// markStaleName marks a name if the holder has another block than cell under it, and
// reports whether it has that one.
func (s *Space) markStaleName(by holder, name uint64, cell uint32) (known bool) {
	old := uint32(0)
	if a := &s.ranks[by.slot()].aliases; len(a.cells) > 0 {
		old = a.cells[aliasKey{name, by.tier()}]
	}
	if old == 0 {
		var passed int
		if old, passed = s.findHeld(by, name); passed > maxNamesakes {
			s.renameNamesakes(name)
		}
	}
	if old != 0 && old != cell {
		s.staleNames = append(s.staleNames, name)
	}
	return old != 0 && old == cell
}

// insertBlocks adds the event's blocks to the tree from p on and makes by their
// holder.
func (s *Space) insertBlocks(by holder, p position, ev *Store) {
	t := &s.tree
	t.ensureRoot()
	seed := t.node(p.id).seed
	if ev.SeedKnown {
		seed = t.seeds.take(ev.Seed)
		defer func() { t.seeds.release(seed) }()
	}
	locals, names := ev.Local, ev.EngineHashes
	for len(locals) > 0 {
		var k int
		if p.at < t.node(p.id).n {
			if k = t.match(p, locals); k == 0 {
				head, _ := t.split(p.id, p.at)
				p = position{head, t.node(head).n}
				continue
			}
			p = s.addHolder(by, p, names[:k])
		} else if c := t.child(p.id, locals[0]); c != 0 {
			p = position{c, 0}
			continue
		} else {
			p, k = s.extend(by, p, locals, names, seed)
		}
		locals, names = locals[k:], names[k:]
	}
}

// extend adds blocks after p, which is the end of a run that has no child
// starting with the first of them. It returns the position after the added blocks
// and their number: as many as go into one run.
func (s *Space) extend(by holder, p position, locals, names []uint64, seed uint32) (position, int) {
	t := &s.tree
	nd := t.node(p.id)
	mine := [NumTiers]holderSet{}
	mine[by.tier()] = onlyHolder(by.slot())
	k := 0
	if p.id != root && nd.first == 0 && nd.holders == mine && nd.seed == seed {
		k = t.growLeaf(p.id, locals, names)
	}
	if k == 0 {
		p.id, k = t.newLeaf(p.id, locals, names, t.seeds.share(seed))
		nd = t.node(p.id)
		nd.holders = mine
	}
	s.addBlocks(by, k)
	return position{p.id, nd.n}, k
}

func (s *Space) addBlocks(by holder, n int) {
	s.ranks[by.slot()].blocks[by.tier()] += n
	s.blocks[by.tier()] += n
}

// addHolder makes by a holder of the blocks after p under the given names and
// returns the position after them. All of them are in p's run.
func (s *Space) addHolder(by holder, p position, names []uint64) position {
	t := &s.tree
	nd := t.node(p.id)
	first, n := nd.off+p.at, uint32(len(names))
	fresh := !t.sets.has(nd.holders[by.tier()], by.slot())
	if fresh {
		id := p.id
		if p.at > 0 {
			_, id = t.split(id, p.at)
		}
		if n < t.node(id).n {
			id, _ = t.split(id, n)
		}
		nd = t.node(id)
		nd.holders[by.tier()] = t.sets.add(nd.holders[by.tier()], by.slot())
		s.addBlocks(by, len(names))
		id = t.join(id)
		t.join(t.node(id).parent)
	}
	for i, name := range t.cells.names(first, n) {
		if fresh && name == names[i] {
			continue
		}
		s.addName(by, names[i], first+uint32(i), name, fresh)
	}
	return s.tree.positionAfter(first + n - 1)
}

func (t *tree) holds(by holder, cell uint32) bool {
	nd := t.nodeAt(cell)
	return t.sets.has(nd.holders[by.tier()], by.slot())
}

// holdCell makes by a holder of one block under a name. If by has another block under
// that name, that block loses it. It reports whether by did not have the block under
// the name before.
func (s *Space) holdCell(by holder, cell uint32, name uint64) bool {
	switch old := s.findInTier(by, name); old {
	case cell:
		return false
	case 0:
	default:
		s.removeName(by, name, old)
	}
	p := s.tree.positionAfter(cell)
	s.addHolder(by, position{p.id, p.at - 1}, []uint64{name})
	return true
}

// Remove applies a removed event: the rank has one copy less of the blocks with these
// names in the tier, and no longer holds those with no copy left. unknown counts the
// names under which it held no block.
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
	defer s.settle(slot)
	by := holderOf(slot, t)
	s.touch(names)
	for _, name := range names {
		if len(r.copies.counts) > 0 && r.copies.take(name, t) {
			removed++
		} else if cell := s.findInTier(by, name); cell != 0 {
			s.rememberRemoved(by, name, cell)
			s.removeName(by, name, cell)
			removed++
		} else if r.orphans.remove(name, t) {
			removed++
		}
	}
	r.endProvisional()
	return removed
}

// removeHolder removes by from the holders of one block and logs the removal.
func (s *Space) removeHolder(by holder, cell uint32) {
	t := &s.tree
	s.addBlocks(by, -1)
	id := t.cells.nodeOf(cell)
	nd := t.node(id)
	at := cell - nd.off
	s.removals.add(&s.mem, removal{key: s.removalKeyAt(nd, at), by: by})
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
