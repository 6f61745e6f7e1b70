package indexer

import "slices"

// maxOrphans bounds the blocks of one rank that wait for their parent
// (decision K13).
const maxOrphans = 65536

// orphans are blocks of one rank whose parent it has not announced: out of all
// answers, but not lost. The maps exist only while there are any.
type orphans struct {
	byName   map[uint64]orphan
	children map[uint64][]uint64 // parent's name → names
	order    []uint64            // oldest first; names that left are passed over
}

type orphan struct {
	parent, local, seed uint64
	seedKnown           bool
	tiers               uint8 // bit per tier
	born                uint64
}

// put keeps the first n blocks of an event and drops the oldest orphans that
// no longer fit.
func (o *orphans) put(ev *Store, n int) (kept, dropped int) {
	parent := ev.Parent
	for i, name := range ev.Names[:n] {
		b := orphan{parent: parent, local: ev.Local[i], seed: ev.Seed, seedKnown: ev.SeedKnown, tiers: 1 << ev.Tier}
		if old, ok := o.byName[name]; ok {
			if old.parent == parent && old.local == b.local {
				b.tiers |= old.tiers
			}
			o.forget(name)
		}
		if o.byName == nil {
			o.byName, o.children = make(map[uint64]orphan), make(map[uint64][]uint64)
		}
		o.byName[name] = b
		o.children[parent] = append(o.children[parent], name)
		o.order = append(o.order, name)
		parent = name
	}
	for len(o.byName) > maxOrphans {
		name := o.order[0]
		o.order = o.order[1:]
		if _, ok := o.byName[name]; ok {
			o.forget(name)
			dropped++
		}
	}
	if len(o.order) > 2*maxOrphans {
		o.compact()
	}
	return n, dropped
}

// compact forgets the order of names that left.
func (o *orphans) compact() {
	seen := make(map[uint64]bool, len(o.byName))
	kept := o.order[:0:0]
	for _, name := range slices.Backward(o.order) {
		if _, ok := o.byName[name]; ok && !seen[name] {
			seen[name] = true
			kept = append(kept, name)
		}
	}
	slices.Reverse(kept)
	o.order = kept
}

// forget takes a block out of both maps.
func (o *orphans) forget(name uint64) {
	b := o.byName[name]
	delete(o.byName, name)
	if rest := slices.DeleteFunc(o.children[b.parent], func(n uint64) bool { return n == name }); len(rest) > 0 {
		o.children[b.parent] = rest
	} else {
		delete(o.children, b.parent)
	}
	if len(o.byName) == 0 {
		*o = orphans{}
	}
}

// remove ends an orphan's stay in a tier: it never joins there.
func (o *orphans) remove(name uint64, t Tier) bool {
	b, ok := o.byName[name]
	if !ok || b.tiers>>t&1 == 0 {
		return false
	}
	if b.tiers &^= 1 << t; b.tiers == 0 {
		o.forget(name)
	} else {
		o.byName[name] = b
	}
	return true
}

// addTier records an orphan in one more tier.
func (o *orphans) addTier(name uint64, t Tier) bool {
	b, ok := o.byName[name]
	if ok {
		b.tiers |= 1 << t
		o.byName[name] = b
	}
	return ok
}

// reunite brings the orphans of newly stored blocks into the tree, and theirs.
func (s *Space) reunite(slot uint32, names []uint64) {
	o := &s.ranks[slot].orphans
	if len(o.byName) == 0 {
		return
	}
	for _, name := range names {
		if _, ok := o.byName[name]; ok {
			o.forget(name) // it came again, with a parent this time
		}
	}
	for work := slices.Clone(names); len(work) > 0 && len(o.byName) > 0; {
		parent := work[len(work)-1]
		work = work[:len(work)-1]
		for _, name := range slices.Clone(o.children[parent]) {
			b := o.byName[name]
			o.forget(name)
			s.join(slot, parent, name, b)
			work = append(work, name)
		}
	}
}

// join stores one orphan below its parent in every tier in which it waits.
func (s *Space) join(slot uint32, parent, name uint64, b orphan) {
	for t := range Tier(NumTiers) {
		if b.tiers>>t&1 == 0 {
			continue
		}
		ev := &Store{Slot: slot, Tier: t, Parent: parent, HasParent: true,
			Names: []uint64{name}, Local: []uint64{b.local}, Seed: b.seed, SeedKnown: b.seedKnown}
		at, ok := s.parent(ev)
		for ok && s.rename(holderOf(slot, t), at, ev) {
			at, ok = s.parent(ev)
		}
		if !ok {
			return // its parent lost its name to another block meanwhile
		}
		s.write(holderOf(slot, t), at, ev)
	}
}
