package indexer

import (
	"slices"

	"github.com/select-service/select-service/internal/container/offheap"
	"github.com/select-service/select-service/pkg/hashing"
)

// Offloading connectors name blocks by the engine's hash alone, often after the
// device has evicted them (decision K15). A rank therefore remembers the latest
// blocks that it removed: maxRemoved of them (96 KiB), and maxRemovedByName from the
// first such event on, as most engines never send one. Copies with tokens but without
// keys count as such events once keys were shown (Store.KeysOmitted). Both are powers of
// two.
const (
	maxRemoved       = 4096
	maxRemovedByName = 65536
)

// removedBlocks are the latest blocks that one rank removed.
type removedBlocks struct {
	ring[removedRow]
	// rest has the other fields of the blocks, at the same positions. It takes no memory
	// as long as these equal usualRest for all blocks, as in a local Space without block
	// seeds.
	rest ring[removedRest]
	// byName finds the position of the latest entry of a name. It is nil until the
	// rank first stores blocks without tokens.
	byName map[uint64]int
	// verified: in a sequence Space, the ring has blocks that are known from tokens.
	verified bool
}

// removedBlock is what is remembered of a block.
type removedBlock struct {
	removedRow
	removedRest
}

// removedRow names a block. In a local Space parent is the name of the block before
// it, or name itself if the block was the first of its chain. In a sequence Space local
// is the block's value, and parent the sequence hash of the block before it if
// parentKnown.
type removedRow struct{ name, parent, local uint64 }

type removedRest struct {
	seed        uint64 // block seed of local
	depth       uint32 // only in sequence Spaces, as the next two
	unverified  bool
	parentKnown bool
}

// usualRest is the rest of most blocks.
var usualRest = removedRest{seed: hashing.Seed}

func (r *removedBlocks) limit() int {
	if r.byName != nil {
		return maxRemovedByName
	}
	return maxRemoved
}

func (r *removedBlocks) add(m *offheap.Memory, b removedBlock) {
	r.addRest(m, b.removedRest)
	moved := r.reserve(m, r.limit())
	if r.byName == nil {
		r.push(b.removedRow)
		return
	}
	if moved {
		clear(r.byName)
		r.fillByName()
	}
	if r.full() {
		if oldest := r.rows[r.head].name; r.byName[oldest] == r.head {
			delete(r.byName, oldest)
		}
	}
	r.byName[b.name] = r.push(b.removedRow)
}

// addRest is add for the rest of a block. It must be called before the row is added:
// then both rings have the same size and position, so that they grow and overwrite in
// step.
func (r *removedBlocks) addRest(m *offheap.Memory, b removedRest) {
	switch {
	case r.rest.rows != nil:
	case b == usualRest:
		return
	default:
		r.rest = ring[removedRest]{rows: offheap.Make[removedRest](m, len(r.rows)), head: r.head, n: r.n}
		for i := range r.rest.rows {
			r.rest.rows[i] = usualRest
		}
	}
	r.rest.reserve(m, r.limit())
	r.rest.push(b)
}

// indexByName makes sure that byName is in use.
func (r *removedBlocks) indexByName() {
	if r.byName == nil {
		r.byName = make(map[uint64]int, r.n)
		r.fillByName()
	}
}

// fillByName enters all blocks, the latest of a name last.
func (r *removedBlocks) fillByName() {
	for i := range r.n {
		at := r.position(i)
		r.byName[r.rows[at].name] = at
	}
}

// find returns the latest block that was removed under a name.
func (r *removedBlocks) find(name uint64) (b removedBlock, ok bool) {
	at, ok := r.byName[name]
	if !ok {
		return removedBlock{}, false
	}
	b = removedBlock{r.rows[at], usualRest}
	if r.rest.rows != nil {
		b.removedRest = r.rest.rows[at]
	}
	return b, true
}

// clear forgets the blocks. byName stays in use if it was.
func (r *removedBlocks) clear(m *offheap.Memory) {
	r.free(m)
	r.rest.free(m)
	inUse := r.byName != nil
	*r = removedBlocks{}
	if inUse {
		r.byName = make(map[uint64]int)
	}
}

// rememberRemoved keeps what a later store without tokens will need about a block
// that a rank is about to remove.
func (s *Space) rememberRemoved(by holder, name uint64, cell uint32) {
	t := &s.tree
	nd := t.nodeAt(cell)
	if t.isUnidentified(nd) {
		return // a later store of the name is as unknown as the first
	}
	b := removedBlock{
		removedRow{name: name, parent: name, local: t.cells.local(cell)},
		removedRest{seed: t.seeds.seed(nd.seed)},
	}
	if s.sequence {
		b.depth, b.unverified = nd.depth+cell-nd.off, nd.unverified
		b.parent, b.parentKnown = t.previousHash(cell)
	} else if up, ok := t.parentCell(cell); ok {
		b.parent = s.nameOf(by, up)
	}
	if s.ranks[by.slot()].unkeyedCopies && s.KeysShown() {
		s.ranks[by.slot()].removed.indexByName()
	}
	r := &s.ranks[by.slot()].removed
	r.verified = r.verified || s.sequence && !b.unverified
	r.add(&s.mem, b)
}

// StoreByEngineHash applies a stored event without tokens. Blocks that the rank
// announced with tokens before, and that it holds or removed not long ago, enter
// the tier; resolved counts them. The others are unresolved and have no effect.
func (s *Space) StoreByEngineHash(slot uint32, t Tier, names []uint64) (resolved, unresolved int) {
	for part := range slices.Chunk(names, maxHold) {
		resolved += s.storeByEngineHashPart(slot, t, part)
	}
	return resolved, len(names) - resolved
}

func (s *Space) storeByEngineHashPart(slot uint32, t Tier, names []uint64) (resolved int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.ensureSlot(slot)
	if !s.admits(slot) {
		return 0
	}
	defer s.settle(slot)
	r.removed.indexByName()
	by := holderOf(slot, t)
	var c restoreCache
	for i, name := range names {
		if s.findInTier(by, name) != 0 {
			resolved++
			continue
		}
		if cell := s.findInAnyTier(slot, name); cell != 0 {
			s.holdUncounted(by, cell, name, false)
		} else if r.orphans.addTier(name, t) {
			resolved++
			continue
		} else if s.restore(by, name, &c) {
			r.copies.addFirst(name, t)
		} else {
			continue
		}
		resolved++
		s.joinOrphans(by, names[i:i+1])
	}
	return resolved
}

// restore makes by a holder of a block that its rank removed. It reports whether
// the block is remembered.
func (s *Space) restore(by holder, name uint64, c *restoreCache) bool {
	if s.sequence {
		return s.restoreByValue(by, name)
	}
	return s.restoreChain(by, name, c)
}

// restoreCache keeps, during one event, where blocks are that the rank no longer
// holds, so that no path to the root is followed twice.
type restoreCache struct {
	cells map[uint64]uint32 // by name; 0: no path leads to the root
	// The cache is valid as long as both counters are unchanged: a block that
	// leaves the tree or an orphan that joins it may change a path.
	released uint64
	orphans  int
}

// restoreChain restores a block in a local Space, together with the blocks above
// it that have left the tree. Those get no holder.
func (s *Space) restoreChain(by holder, name uint64, c *restoreCache) bool {
	if n := s.ranks[by.slot()].orphans.len(); c.cells == nil || c.released != s.tree.cells.released || c.orphans != n {
		*c = restoreCache{make(map[uint64]uint32), s.tree.cells.released, n}
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
		p = s.tree.positionAfter(cell)
	}
	for i := len(chain) - 1; i > 0; i-- {
		p = s.tree.bridge(p, chain[i])
		c.cells[chain[i].name] = s.tree.node(p.id).off + p.at - 1
	}
	if len(chain) == 0 { // an earlier block of this event has bridged it
		s.addHolder(by, position{p.id, p.at - 1}, []uint64{name})
		return true
	}
	b := chain[0]
	s.insertBlocks(by, p, &Store{EngineHashes: []uint64{b.name}, Local: []uint64{b.local}, Seed: b.seed, SeedKnown: true})
	return true
}

// pathUp follows the parents that a rank remembers of a block, up to a block in
// the tree or to the root (cell 0). The chain starts with the block itself.
func (s *Space) pathUp(slot uint32, name uint64, c *restoreCache) (chain []removedBlock, cell uint32, ok bool) {
	r := &s.ranks[slot].removed
	for next := name; ; {
		if cell, known := c.cells[next]; known {
			return chain, cell, cell != 0
		}
		if cell = s.findInAnyTier(slot, next); cell != 0 {
			return chain, cell, true
		}
		b, known := r.find(next)
		if !known || len(chain) == r.n { // unknown, or the parents form a circle
			return chain, 0, false
		}
		chain = append(chain, b)
		if b.parent == next {
			return chain, 0, true
		}
		next = b.parent
	}
}

// bridge returns the position after the block that follows p. If the block is not
// in the tree, it is added without holders.
func (t *tree) bridge(p position, b removedBlock) position {
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

// restoreBatch restores blocks of a located batch that the tree does not know, or
// knows unverified only, if the slot has removed them while they were known from
// tokens. Such blocks come when an engine moves a block to another medium: the
// removal from the first medium is announced before the store in the second. found
// counts these blocks, stored those of them that the holder did not hold. If
// found > 0, the values of the batch and the tree have changed.
func (s *Space) restoreBatch(b *batch) (found, stored int) {
	r := &s.ranks[b.by.slot()].removed
	if !r.verified {
		return 0, 0
	}
	t := &s.tree
	b.remembered = b.remembered[:0]
	for i, cell := range b.cells {
		if cell != 0 && !t.nodeAt(cell).unverified {
			continue
		}
		r.indexByName()
		if old, ok := r.find(b.names[i]); ok && !old.unverified && old.seed == b.key {
			b.remembered = append(b.remembered, i)
		}
	}
	for _, i := range b.remembered {
		old, _ := r.find(b.names[i]) // found above; restoring removes nothing
		stored += s.restoreBlock(b.by, b.names[i], b.engineHashes[i], old)
		b.values[i] = old.local
	}
	return len(b.remembered), stored
}

// restoreByValue restores a block in a sequence Space.
func (s *Space) restoreByValue(by holder, name uint64) bool {
	b, ok := s.ranks[by.slot()].removed.find(name)
	if ok {
		s.restoreBlock(by, name, name, b)
	}
	return ok
}

// restoreBlock makes by a holder, under a name, of a block that the slot had removed.
// It returns 1 if by did not hold the block, else 0. If the block has to be added to
// the tree, its name in the table is tableName, one of its engine hashes.
func (s *Space) restoreBlock(by holder, name, tableName uint64, old removedBlock) int {
	t := &s.tree
	if cell := s.findInTier(by, name); cell != 0 && t.cells.local(cell) != old.local {
		s.removeName(by, name, cell)
	}
	blocks := &s.ranks[by.slot()].blocks[by.tier()]
	before := *blocks
	if cell := t.cellOf(old.local); cell != 0 {
		if t.nodeAt(cell).unverified && !old.unverified {
			s.confirm(cell, old.depth, []uint64{tableName})
		}
		s.holdCell(by, cell, name)
		return *blocks - before
	}
	t.ensureRoot()
	var p position
	if old.parentKnown {
		if up := t.cellOf(old.parent ^ old.seed); up != 0 {
			p = s.tree.positionAfter(up)
		}
	}
	b := newBatch(by, []uint64{name})
	defer b.done()
	b.key, b.hashOnly, b.engineNamed, b.engineHashes = old.seed, true, true, []uint64{tableName}
	b.values, b.cells = append(b.values, old.local), append(b.cells, 0)
	seed := t.seeds.take(old.seed)
	s.extendBatch(b, 0, p, seed, old.depth, old.unverified)
	t.seeds.release(seed)
	return *blocks - before
}
