package indexer

// maxOrphans bounds the orphans of one rank (decision K13).
const maxOrphans = 65536

// orphans are blocks of one rank whose parent the rank has not announced. They are
// in no answer and join the tree when their parent does. They are linked by age
// and below their parents, so that each enters and leaves in constant time. The
// memory is freed with the last of them.
type orphans struct {
	rows        []orphan          // row 0 is not used: 0 ends a list
	free        []uint32          // rows
	byName      map[uint64]uint32 // row
	children    map[uint64]uint32 // parent's name → first child's row
	first, last uint32            // by age, oldest first
	seeds       map[uint64]int    // orphans per block seed, of those with a known seed
	losses      uint32            // how often makeProvisional was called
}

type orphan struct {
	name, parent, local, seed uint64
	older, younger            uint32
	prev, next                uint32 // below the same parent
	seedKnown                 bool
	provisional               bool   // will be a provisional block
	keysOmitted               bool   // see Store.KeysOmitted
	losses                    uint32 // orphans.losses when it was announced; if that has grown it is provisional too
	tiers                     uint8  // bit per tier
}

func (o *orphans) len() int { return len(o.byName) }

// put adds the first n blocks of an event and drops the oldest orphans beyond
// maxOrphans. An orphan that is announced again with the same parent and local
// hash keeps its age.
func (o *orphans) put(ev *Store, n int) (kept, dropped int) {
	parent := ev.Parent
	for i, name := range ev.EngineHashes[:n] {
		b := orphan{name: name, parent: parent, local: ev.Local[i], seed: ev.Seed, seedKnown: ev.SeedKnown, provisional: ev.Provisional, keysOmitted: ev.KeysOmitted, tiers: 1 << ev.Tier}
		parent = name
		if id, ok := o.byName[name]; ok {
			if row := &o.rows[id]; row.parent == b.parent && row.local == b.local {
				row.tiers |= b.tiers
				row.keysOmitted = row.keysOmitted && b.keysOmitted
				row.provisional, row.losses = o.isProvisional(row) && b.provisional, o.losses
				o.uncount(*row)
				row.seed, row.seedKnown = b.seed, b.seedKnown
				o.count(b)
				continue
			}
			if old := o.drop(id); old.keysOmitted {
				b.tiers |= old.tiers // the same block, of which only now the keys are known
			}
		}
		o.add(b)
		if o.len() > maxOrphans {
			o.drop(o.first)
			dropped++
		}
	}
	return n, dropped
}

func (o *orphans) add(b orphan) {
	if o.byName == nil {
		o.rows, o.byName, o.children = make([]orphan, 1), make(map[uint64]uint32), make(map[uint64]uint32)
		o.seeds = make(map[uint64]int)
	}
	o.count(b)
	b.losses = o.losses
	id := uint32(len(o.rows))
	if l := len(o.free); l > 0 {
		id = o.free[l-1]
		o.free = o.free[:l-1]
	} else {
		o.rows = append(o.rows, orphan{})
	}
	b.older, b.next = o.last, o.children[b.parent]
	o.rows[id] = b
	if o.last == 0 {
		o.first = id
	} else {
		o.rows[o.last].younger = id
	}
	o.last = id
	if b.next != 0 {
		o.rows[b.next].prev = id
	}
	o.children[b.parent], o.byName[b.name] = id, id
}

// drop removes an orphan and returns it.
func (o *orphans) drop(id uint32) orphan {
	b := o.rows[id]
	b.provisional = o.isProvisional(&b)
	if b.older == 0 {
		o.first = b.younger
	} else {
		o.rows[b.older].younger = b.younger
	}
	if b.younger == 0 {
		o.last = b.older
	} else {
		o.rows[b.younger].older = b.older
	}
	if b.next != 0 {
		o.rows[b.next].prev = b.prev
	}
	switch {
	case b.prev != 0:
		o.rows[b.prev].next = b.next
	case b.next != 0:
		o.children[b.parent] = b.next
	default:
		delete(o.children, b.parent)
	}
	delete(o.byName, b.name)
	o.uncount(b)
	o.free = append(o.free, id)
	if o.len() == 0 {
		*o = orphans{}
	}
	return b
}

// count and uncount maintain seeds.
func (o *orphans) count(b orphan) {
	if b.seedKnown {
		o.seeds[b.seed]++
	}
}

func (o *orphans) uncount(b orphan) {
	if !b.seedKnown {
		return
	}
	if o.seeds[b.seed]--; o.seeds[b.seed] == 0 {
		delete(o.seeds, b.seed)
	}
}

// take removes an orphan by its name.
func (o *orphans) take(name uint64) (b orphan, ok bool) {
	id, ok := o.byName[name]
	if ok {
		b = o.drop(id)
	}
	return b, ok
}

// takeChild removes one of the orphans below a parent.
func (o *orphans) takeChild(parent uint64) (b orphan, ok bool) {
	id, ok := o.children[parent]
	if ok {
		b = o.drop(id)
	}
	return b, ok
}

// remove takes an orphan out of a tier. It reports whether it waited there.
func (o *orphans) remove(name uint64, t Tier) bool {
	id, ok := o.byName[name]
	if !ok || o.rows[id].tiers>>t&1 == 0 {
		return false
	}
	if o.rows[id].tiers &^= 1 << t; o.rows[id].tiers == 0 {
		o.drop(id)
	}
	return true
}

// makeProvisional makes all orphans provisional, in constant time.
func (o *orphans) makeProvisional() { o.losses++ }

func (o *orphans) isProvisional(b *orphan) bool { return b.provisional || b.losses != o.losses }

// addTier makes an orphan wait in one more tier. It reports whether there is an
// orphan with that name.
func (o *orphans) addTier(name uint64, t Tier) bool {
	id, ok := o.byName[name]
	if ok {
		o.rows[id].tiers |= 1 << t
	}
	return ok
}

// joinOrphans moves into the tree the orphans below the named blocks, which by
// holds, and recursively those below them.
func (s *Space) joinOrphans(by holder, names []uint64) {
	o := &s.ranks[by.slot()].orphans
	if o.len() == 0 {
		return
	}
	for _, name := range names {
		if b, ok := o.take(name); ok { // the block was an orphan itself
			s.addOrphanTiers(by, b)
		}
	}
	var work []uint64
	for _, name := range names {
		for work = append(work[:0], name); len(work) > 0 && o.len() > 0; {
			b, ok := o.takeChild(work[len(work)-1])
			if !ok {
				work = work[:len(work)-1]
			} else if s.joinOrphan(by.slot(), b) {
				work = append(work, b.name)
			}
		}
	}
}

// addOrphanTiers makes the rank hold a block, which by holds already, in the other
// tiers in which it waited as an orphan.
func (s *Space) addOrphanTiers(by holder, b orphan) {
	cell := s.findInTier(by, b.name)
	if cell == 0 || !b.keysOmitted && !s.hasLocalHash(cell, b.local, b.seed, b.seedKnown) {
		return // the name stands for another block now
	}
	for t := range Tier(NumTiers) {
		if b.tiers>>t&1 == 1 {
			s.holdUncounted(holderOf(by.slot(), t), cell, b.name, b.provisional)
		}
	}
}

// joinOrphan stores one orphan after its parent in every tier in which it waits.
func (s *Space) joinOrphan(slot uint32, b orphan) (joined bool) {
	for t := range Tier(NumTiers) {
		if b.tiers>>t&1 == 0 {
			continue
		}
		if b.keysOmitted && s.KeysShown() { // since the orphan was announced
			s.storeUnidentified(&Store{Slot: slot, Tier: t, Provisional: b.provisional}, b.name)
			continue
		}
		ev := &Store{
			Slot: slot, Tier: t, Parent: b.parent, HasParent: true,
			EngineHashes: []uint64{b.name}, Local: []uint64{b.local}, Seed: b.seed, SeedKnown: b.seedKnown,
			Provisional: b.provisional,
		}
		// The parent may have lost its name to another block meanwhile.
		if _, _, ok := s.insert(ev); ok {
			s.identify(ev)
			joined = true
		}
	}
	return joined
}

// OrphanSlots appends to dst the slots that have an orphan with this local hash,
// which was computed with the block seed. In a sequence Space seed is the key of a
// namespace, and orphans of others are left out; an orphan without a known seed
// counts, because it takes its parent's. The cost is proportional to the number
// of orphans.
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

// clear takes the orphans with one block seed out of a tier.
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
