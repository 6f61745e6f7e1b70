package indexer

import "slices"

// Offloading connectors name blocks by the engine's hash alone, often after the
// device has evicted them (decision K15). A rank therefore remembers what it
// removed: the last recentFirst blocks, and recentMax from the first such event
// on, as most engines never send one.
const (
	maxRemoved       = 4096
	maxRemovedByName = 65536
)

// removedBlocks is a ring of removed blocks of one rank.
type removedBlocks struct {
	ring []removedBlock
	head int // next to overwrite once the ring is full
	n    int
	// byName finds the latest entry of a name; nil until the rank stores by name.
	byName map[uint64]int
	// known: in a sequence Space, tokens led to a block in the ring.
	verified bool
}

// removedBlock is a block that left. In a local Space parent is the name of the block
// before it, or name itself at the root; in a sequence Space it is the rolling
// hash of the block before it, if behind says that this is known, and local the
// block's value.
type removedBlock struct {
	name, parent, local     uint64
	seed                    uint64 // block seed of local
	depth                   uint32 // only in sequence Spaces, like what follows
	unverified, parentKnown bool
}

func (r *removedBlocks) limit() int {
	if r.byName != nil {
		return maxRemovedByName
	}
	return maxRemoved
}

func (r *removedBlocks) push(m *memory, b removedBlock) {
	if r.n == len(r.ring) && r.n < r.limit() {
		r.grow(m)
	}
	if r.n == len(r.ring) && r.byName != nil {
		if old := r.ring[r.head].name; r.byName[old] == r.head {
			delete(r.byName, old)
		}
	}
	r.ring[r.head] = b
	if r.byName != nil {
		r.byName[b.name] = r.head
	}
	r.head = (r.head + 1) % len(r.ring)
	r.n = min(r.n+1, len(r.ring))
}

// grow makes the ring larger; the oldest entry comes first in it.
func (r *removedBlocks) grow(m *memory) {
	bigger := makeFlat[removedBlock](m, min(max(64, 2*len(r.ring)), r.limit()))
	k := copy(bigger, r.ring[r.head:])
	copy(bigger[k:], r.ring[:r.head])
	freeFlat(m, r.ring)
	r.ring, r.head = bigger, r.n
	if r.byName != nil {
		clear(r.byName)
		for i, e := range bigger[:r.n] {
			r.byName[e.name] = i
		}
	}
}

// indexByName starts to look blocks up by name.
func (r *removedBlocks) indexByName() {
	if r.byName != nil {
		return
	}
	r.byName = make(map[uint64]int, r.n)
	for i := range r.n { // from the oldest to the latest
		k := i
		if r.n == len(r.ring) {
			k = (r.head + i) % len(r.ring)
		}
		r.byName[r.ring[k].name] = k
	}
}

func (r *removedBlocks) clear(m *memory) {
	freeFlat(m, r.ring)
	*r = removedBlocks{byName: keep(r.byName)}
}

// keep empties the table but remembers that it was in use.
func keep(at map[uint64]int) map[uint64]int {
	if at == nil {
		return nil
	}
	return make(map[uint64]int)
}

// rememberRemoved keeps what StoreByEngineHash has to know of a block that a rank is about to
// give up.
func (s *Space) rememberRemoved(by holder, name uint64, cell uint32) {
	t := &s.tree
	b := removedBlock{name: name, parent: name, local: t.cells.local(cell)}
	nd := t.node(t.cells.nodeOf(cell))
	b.seed = t.seeds.seed(nd.seed)
	if s.sequence {
		b.depth, b.unverified = nd.depth+cell-nd.off, nd.unverified
		b.parent, b.parentKnown = t.previousHash(cell)
	} else if up, ok := t.parentCell(cell); ok {
		b.parent = s.nameOf(by, up)
	}
	r := &s.ranks[by.slot()].removed
	r.verified = r.verified || s.sequence && !b.unverified
	r.push(&s.mem, b)
}

// StoreByEngineHash applies a stored event without tokens: blocks that the rank has
// announced with tokens before, and holds or removed not long ago, enter the
// tier; the others are unresolved.
func (s *Space) StoreByEngineHash(slot uint32, t Tier, names []uint64) (resolved, unresolved int) {
	for part := range slices.Chunk(names, maxHold) {
		resolved += s.storeNamedPart(slot, t, part)
	}
	return resolved, len(names) - resolved
}

func (s *Space) storeNamedPart(slot uint32, t Tier, names []uint64) (resolved int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.ensureSlot(slot)
	r.removed.indexByName()
	by := holderOf(slot, t)
	var c recallCache
	for i, name := range names {
		if s.findInTier(by, name) != 0 {
			resolved++
			continue
		}
		if cell := s.findInAnyTier(slot, name); cell != 0 {
			s.holdCell(by, cell, name)
		} else if r.orphans.addTier(name, t) {
			resolved++
			continue
		} else if !s.restore(by, name, &c) {
			continue
		}
		resolved++
		s.joinOrphans(by, names[i:i+1])
	}
	return resolved
}

// restore makes by a holder of a block that its rank gave up.
func (s *Space) restore(by holder, name uint64, c *recallCache) bool {
	if s.sequence {
		return s.restoreByValue(by, name)
	}
	return s.restoreChain(by, name, c)
}

// recallCache is what one event has found out about blocks that the rank no longer
// holds, so that no way to the root is followed twice.
type recallCache struct {
	cells map[uint64]uint32 // by name; 0: nothing leads to the root
	// The two must be as they were: a block left the tree, or an orphan joined.
	released uint64
	orphans  int
}

// restoreChain brings a block that by's rank gave up back into the tree, with the
// blocks above it that have left, and makes by its holder.
func (s *Space) restoreChain(by holder, name uint64, c *recallCache) bool {
	if n := s.ranks[by.slot()].orphans.len(); c.cells == nil || c.released != s.tree.cells.released || c.orphans != n {
		*c = recallCache{make(map[uint64]uint32), s.tree.cells.released, n}
	}
	chain, cell, ok := s.pathUp(by.slot(), name, c)
	if !ok {
		for _, b := range chain {
			c.cells[b.name] = 0
		}
		return false
	}
	s.tree.ensureRoot()
	var p position
	if cell != 0 {
		p = s.positionAfter(cell)
	}
	for i := len(chain) - 1; i > 0; i-- {
		p = s.bridge(p, chain[i])
		c.cells[chain[i].name] = s.tree.node(p.id).off + p.at - 1
	}
	if len(chain) == 0 { // this event has made it already
		s.addHolder(by, position{p.id, p.at - 1}, []uint64{name})
		return true
	}
	b := chain[0]
	s.insertBlocks(by, p, &Store{EngineHashes: []uint64{b.name}, Local: []uint64{b.local}, Seed: b.seed, SeedKnown: true})
	return true
}

// pathUp follows what a rank remembers of a block up to a block in the tree, or
// to the root (cell 0). The chain has the block first.
func (s *Space) pathUp(slot uint32, name uint64, c *recallCache) (chain []removedBlock, cell uint32, ok bool) {
	r := &s.ranks[slot].removed
	for next := name; ; {
		if cell, known := c.cells[next]; known {
			return chain, cell, cell != 0
		}
		if cell = s.findInAnyTier(slot, next); cell != 0 {
			return chain, cell, true
		}
		i, known := r.byName[next]
		if !known || len(chain) == r.n {
			return chain, 0, false
		}
		b := r.ring[i]
		chain = append(chain, b)
		if b.parent == next {
			return chain, 0, true
		}
		next = b.parent
	}
}

// bridge goes from p to a block below it, which it makes without owners if it
// is not there.
func (s *Space) bridge(p position, b removedBlock) position {
	t := &s.tree
	local, names := []uint64{b.local}, []uint64{b.name}
	if p.at < t.node(p.id).n {
		if t.match(p, local) == 1 {
			return position{p.id, p.at + 1}
		}
		head, _ := t.split(p.id, p.at)
		p = position{head, t.node(head).n}
	}
	if c := t.child(p.id, b.local); c != 0 {
		return position{c, 1}
	}
	seed := t.seeds.take(b.seed)
	nd := t.node(p.id)
	if p.id != root && nd.first == 0 && nd.holders == [NumTiers]holderSet{} && nd.seed == seed && t.growLeaf(p.id, local, names) == 1 {
		t.seeds.release(seed)
		return position{p.id, nd.n}
	}
	id, _ := t.newLeaf(p.id, local, names, seed)
	return position{id, 1}
}

// restoreBatch asks what a slot remembers of blocks that it removed, before it
// claims them: a store that moves a block to another medium says first that it
// left the one that it was in, and nobody else may hold it. What was known from
// tokens comes back as what it was. It returns how many blocks of the batch,
// which was located, that were, and how many of them are newly held; where there
// were any, the values of the batch and the tree have changed.
func (s *Space) restoreBatch(b *batch) (found, stored int) {
	r := &s.ranks[b.by.slot()].removed
	if !r.verified {
		return 0, 0
	}
	t := &s.tree
	b.remembered = b.remembered[:0]
	for i, cell := range b.cells {
		if cell != 0 && !t.node(t.cells.nodeOf(cell)).unverified {
			continue
		}
		r.indexByName()
		if at, ok := r.byName[b.names[i]]; ok && !r.ring[at].unverified && r.ring[at].seed == b.key {
			b.remembered = append(b.remembered, i)
		}
	}
	for _, i := range b.remembered {
		gone := r.ring[r.byName[b.names[i]]]
		stored += s.restoreBlock(b.by, b.names[i], b.engineHashes[i], gone)
		b.values[i] = gone.local
	}
	return len(b.remembered), stored
}

// restoreByValue is recall for sequence Spaces.
func (s *Space) restoreByValue(by holder, name uint64) bool {
	r := &s.ranks[by.slot()].removed
	at, ok := r.byName[name]
	if ok {
		s.restoreBlock(by, name, name, r.ring[at])
	}
	return ok
}

// restoreBlock makes by a holder, under a name, of a block that its rank gave up, and
// returns 1 if it was none. title is an engine's name of the block, for the
// table.
func (s *Space) restoreBlock(by holder, name, title uint64, gone removedBlock) int {
	t := &s.tree
	if old := s.findInTier(by, name); old != 0 && t.cells.local(old) != gone.local {
		s.removeName(by, name, old)
	}
	blocks := &s.ranks[by.slot()].blocks[by.tier()]
	before := *blocks
	if cell := t.cellOf(gone.local); cell != 0 {
		if t.node(t.cells.nodeOf(cell)).unverified && !gone.unverified {
			s.confirm(cell, gone.depth, []uint64{title})
		}
		s.holdCell(by, cell, name)
		return *blocks - before
	}
	t.ensureRoot()
	var p position
	if gone.parentKnown {
		if up := t.cellOf(gone.parent ^ gone.seed); up != 0 {
			p = s.positionAfter(up)
		}
	}
	b := newBatch(by, []uint64{name})
	defer b.done()
	b.key, b.hashOnly, b.engineNamed, b.engineHashes = gone.seed, true, true, []uint64{title}
	b.values, b.cells = append(b.values, gone.local), append(b.cells, 0)
	seed := t.seeds.take(gone.seed)
	s.addLeaf(b, 0, p, seed, gone.depth, gone.unverified)
	t.seeds.release(seed)
	return *blocks - before
}
