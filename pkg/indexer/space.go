package indexer

import (
	"math/rand/v2"
	"sync"

	"github.com/select-service/select-service/pkg/hashing"
)

// Space is the index of one world of comparable blocks: one scope with one
// block size. Ranks are known by their slot, a dense number that the caller
// gives out and keeps stable while the rank has blocks.
type Space struct {
	// mu guards all fields. It is held for memory work on one event or one
	// query; Clear lets go of it now and then.
	mu     sync.RWMutex
	mem    memory
	tree   tree
	ranks  []rank   // by slot
	hidden []uint64 // bit set of slots that are being cleared
	blocks [NumTiers]int

	// alias finds blocks that a holder names otherwise than the table does;
	// names says under how many such names, and whether under the table's too.
	// A holder without an entry in names owns a block under the table's name.
	alias map[aliasKey]uint32
	names map[nameKey]nameState
}

// holder is a slot in a tier.
type holder uint32

func holderOf(slot uint32, t Tier) holder { return holder(slot<<2 | uint32(t)) }

func (h holder) slot() uint32 { return uint32(h) >> 2 }

func (h holder) tier() Tier { return Tier(h & 3) }

type aliasKey struct {
	name uint64
	by   holder
}

type nameKey struct {
	cell uint32
	by   holder
}

type nameState struct {
	aliases uint32
	primary bool // announced under the table's name too
}

// rank is what the index keeps of one slot beside the tree.
type rank struct {
	blocks  [NumTiers]int
	aliases int
	orphans orphans
	recent  recent
}

// Store is one "stored" event: consecutive blocks that a rank now holds in a
// tier.
type Store struct {
	Slot uint32
	Tier Tier
	// Parent is the engine's hash of the block before the first one. A parent 0
	// that names no block is the root (decision K10).
	Parent    uint64
	HasParent bool
	Names     []uint64 // the engine's hashes, one per block, no two equal
	Local     []uint64 // the local block hashes, as many
	// Seed is the block seed of Local (hashing.LocalSeed); without SeedKnown it
	// is that of the parent.
	Seed      uint64
	SeedKnown bool
}

// Outcome counts what became of the blocks of an event.
type Outcome struct {
	Stored   int // newly held
	Known    int // held already
	Orphaned int // kept until their parent comes (decision K7)
	Dropped  int // orphans that had to make room
}

// New returns an empty index.
func New() *Space {
	s := &Space{}
	t := &s.tree
	t.mem, t.cells.mem, t.children.mem, t.sets.mem = &s.mem, &s.mem, &s.mem, &s.mem
	for i := range t.names.shards {
		t.names.shards[i].mem, t.names.shards[i].skip = &s.mem, nameShardBits
	}
	t.names.seed, t.salt = rand.Uint64(), rand.Uint64()
	return s
}

// Store applies a stored event. Blocks that the rank holds already cost a
// look-up. A block whose parent the rank has not announced waits for it.
func (s *Space) Store(ev *Store) Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.admit(ev.Slot)
	return s.store(ev)
}

// admit makes room for a slot.
func (s *Space) admit(slot uint32) *rank {
	if int(slot) >= len(s.ranks) {
		s.ranks = append(s.ranks, make([]rank, int(slot)+1-len(s.ranks))...)
	}
	s.tree.sets.widen(uint32(len(s.ranks)))
	for len(s.hidden) < int(s.tree.sets.words) {
		s.hidden = append(s.hidden, 0)
	}
	return &s.ranks[slot]
}

func (s *Space) store(ev *Store) Outcome {
	by := holderOf(ev.Slot, ev.Tier)
	at, ok := s.parent(ev)
	for ok && s.rename(by, at, ev) {
		at, ok = s.parent(ev) // the tree has changed
	}
	if !ok {
		return s.storeOrphan(ev)
	}
	known := s.ranks[ev.Slot].blocks[ev.Tier]
	s.write(by, at, ev)
	stored := s.ranks[ev.Slot].blocks[ev.Tier] - known
	s.reunite(ev.Slot, ev.Names)
	return Outcome{Stored: stored, Known: len(ev.Names) - stored}
}

// storeOrphan keeps an event whose parent is unknown. From the first block on
// that the rank already has, in this tier or another, the chain is known.
func (s *Space) storeOrphan(ev *Store) Outcome {
	anchor, cell := len(ev.Names), uint32(0)
	for i, name := range ev.Names {
		if c := s.findAny(ev.Slot, name); c != 0 && s.tree.cells.local(c) == ev.Local[i] {
			anchor, cell = i, c
			break
		}
	}
	var out Outcome
	out.Orphaned, out.Dropped = s.ranks[ev.Slot].orphans.put(ev, anchor)
	if cell == 0 {
		return out
	}
	by := holderOf(ev.Slot, ev.Tier)
	p := s.behind(cell)
	s.own(by, place{p.id, p.at - 1}, ev.Names[anchor:anchor+1])
	out.Known = 1
	s.reunite(ev.Slot, ev.Names[anchor:anchor+1])
	if rest := anchor + 1; rest < len(ev.Names) {
		more := s.store(&Store{Slot: ev.Slot, Tier: ev.Tier, Parent: ev.Names[anchor], HasParent: true,
			Names: ev.Names[rest:], Local: ev.Local[rest:], Seed: ev.Seed, SeedKnown: ev.SeedKnown})
		out.Stored += more.Stored
		out.Known += more.Known
	}
	return out
}

// place is a position in the tree: behind the first at blocks of a node.
type place struct {
	id, at uint32
}

// behind returns the place after a block.
func (s *Space) behind(cell uint32) place {
	id := s.tree.cells.nodeOf(cell)
	return place{id, cell - s.tree.node(id).off + 1}
}

func (s *Space) parent(ev *Store) (place, bool) {
	if !ev.HasParent {
		return place{}, true
	}
	if cell := s.findAny(ev.Slot, ev.Parent); cell != 0 {
		return s.behind(cell), true
	}
	return place{}, ev.Parent == 0
}

// match returns how many of locals follow at p inside its run.
func (t *tree) match(p place, locals []uint64) int {
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

// rename looks for a name of the event that stands for another block of the
// same holder. A name names one block: the older one loses it. It stops at the
// first such name and reports that the tree may have changed.
func (s *Space) rename(by holder, p place, ev *Store) bool {
	t := &s.tree
	if t.live == 0 {
		return false
	}
	i := 0
	for i < len(ev.Local) {
		nd := t.node(p.id)
		if p.at == nd.n {
			c := t.child(p.id, ev.Local[i])
			if c == 0 {
				break
			}
			p, nd = place{c, 0}, t.node(c)
		}
		m := t.match(p, ev.Local[i:])
		held := t.sets.has(nd.owners[by.tier()], by.slot()) && s.ranks[by.slot()].aliases == 0
		names := t.cells.names(nd.off+p.at, uint32(m))
		for k, name := range names {
			if held && name == ev.Names[i+k] {
				continue
			}
			cell := nd.off + p.at + uint32(k)
			if old := s.find(by, ev.Names[i+k]); old != 0 && old != cell {
				s.unname(by, ev.Names[i+k], old)
				return true
			}
		}
		i += m
		if p.at += uint32(m); p.at < nd.n {
			break
		}
	}
	for ; i < len(ev.Local); i++ {
		if old := s.find(by, ev.Names[i]); old != 0 {
			s.unname(by, ev.Names[i], old)
			return true
		}
	}
	return false
}

// write puts the event's blocks into the tree from p on.
func (s *Space) write(by holder, p place, ev *Store) {
	t := &s.tree
	t.ready()
	seed := t.node(p.id).seed
	if ev.SeedKnown {
		seed = t.seeds.take(ev.Seed)
		defer func() { t.seeds.release(seed) }()
	}
	locals, names := ev.Local, ev.Names
	for len(locals) > 0 {
		var k int
		if p.at < t.node(p.id).n {
			if k = t.match(p, locals); k == 0 {
				head, _ := t.split(p.id, p.at)
				p = place{head, t.node(head).n}
				continue
			}
			p = s.own(by, p, names[:k])
		} else if c := t.child(p.id, locals[0]); c != 0 {
			p = place{c, 0}
			continue
		} else {
			p, k = s.extend(by, p, locals, names, seed)
		}
		locals, names = locals[k:], names[k:]
	}
}

// extend adds new blocks behind p, the end of a run without such a child.
func (s *Space) extend(by holder, p place, locals, names []uint64, seed uint32) (place, int) {
	t := &s.tree
	nd := t.node(p.id)
	mine := [NumTiers]owners{}
	mine[by.tier()] = onlyOwner(by.slot())
	k := 0
	if p.id != root && nd.first == 0 && nd.owners == mine && nd.seed == seed {
		k = t.grow(p.id, locals, names)
	}
	if k == 0 {
		p.id, k = t.sprout(p.id, locals, names, t.seeds.share(seed))
		nd = t.node(p.id)
		nd.owners = mine
	}
	s.count(by, k)
	return place{p.id, nd.n}, k
}

func (s *Space) count(by holder, n int) {
	s.ranks[by.slot()].blocks[by.tier()] += n
	s.blocks[by.tier()] += n
}

// own makes by a holder of the blocks behind p under the given names and
// returns the place after them.
func (s *Space) own(by holder, p place, names []uint64) place {
	t := &s.tree
	nd := t.node(p.id)
	first, n := nd.off+p.at, uint32(len(names))
	fresh := !t.sets.has(nd.owners[by.tier()], by.slot())
	if fresh {
		id := p.id
		if p.at > 0 {
			_, id = t.split(id, p.at)
		}
		if n < t.node(id).n {
			id, _ = t.split(id, n)
		}
		nd = t.node(id)
		nd.owners[by.tier()] = t.sets.add(nd.owners[by.tier()], by.slot())
		s.count(by, len(names))
		id = t.join(id)
		t.join(t.node(id).parent)
	}
	for i, name := range t.cells.names(first, n) {
		if fresh && name == names[i] {
			continue
		}
		s.name(by, names[i], first+uint32(i), name, fresh)
	}
	return s.behind(first + n - 1)
}

// Remove applies a removed event: the rank no longer holds the blocks of these
// names in the tier.
func (s *Space) Remove(slot uint32, t Tier, names []uint64) (removed, unknown int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.admit(slot)
	by := holderOf(slot, t)
	for _, name := range names {
		if cell := s.find(by, name); cell != 0 {
			r.recent.push(&s.mem, name, s.parentName(slot, cell, name), s.tree.cells.local(cell))
			s.unname(by, name, cell)
			removed++
		} else if r.orphans.remove(name, t) {
			removed++
		} else {
			unknown++
		}
	}
	return removed, unknown
}

// parentName is what the rank calls the block above a cell; the block's own
// name stands for "root".
func (s *Space) parentName(slot, cell uint32, name uint64) uint64 {
	up, ok := s.tree.above(cell)
	if !ok {
		return name
	}
	if s.ranks[slot].aliases > 0 {
		for t := range Tier(NumTiers) {
			if st, ok := s.names[nameKey{up, holderOf(slot, t)}]; ok && !st.primary {
				return s.aliasOf(up, holderOf(slot, t))
			}
		}
	}
	return s.tree.cells.name(up)
}

// disown ends by's ownership of one block.
func (s *Space) disown(by holder, cell uint32) {
	t := &s.tree
	s.count(by, -1)
	id := t.cells.nodeOf(cell)
	nd := t.node(id)
	at := cell - nd.off
	mine := [NumTiers]owners{}
	mine[by.tier()] = onlyOwner(by.slot())
	if nd.n > 1 && at == nd.n-1 && nd.first == 0 && nd.owners == mine {
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
	nd.owners[by.tier()] = t.sets.remove(nd.owners[by.tier()], by.slot())
	t.tidy(id)
}

// ParentSeed returns the block seed under which a rank's block was hashed:
// children of a salted block inherit its salt (decision K11).
func (s *Space) ParentSeed(slot uint32, parent uint64) (uint64, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if int(slot) >= len(s.ranks) {
		return hashing.Seed, false
	}
	cell := s.findAny(slot, parent)
	if cell == 0 {
		return hashing.Seed, false
	}
	return s.tree.seeds.seed(s.tree.node(s.tree.cells.nodeOf(cell)).seed), true
}
