package indexer

import (
	"sync"

	"github.com/select-service/select-service/pkg/hashing"
)

// batch has the blocks of one event while they are inserted into a sequence
// Space.
type batch struct {
	by    holder
	names []uint64 // per block
	key   uint64   // of the namespace
	depth uint32   // of the first block
	// unverified: the sequence hash of the blocks, or of one before them, comes from
	// a publisher without tokens and is not confirmed by tokens.
	unverified bool
	// hashOnly: the event itself has no tokens. Then engineHashes, one per block,
	// may identify blocks that were announced with tokens. They are those that the
	// publisher stated (engineNamed), else the sequence hashes.
	hashOnly     bool
	engineNamed  bool
	engineHashes []uint64

	values     []uint64 // per block: sequence hash ^ key
	cells      []uint32 // per block, 0 if it is not in the index; set by locate
	remembered []int    // scratch of restoreBatch
	scratch    []uint64
}

var batches = sync.Pool{New: func() any { return new(batch) }}

func newBatch(by holder, names []uint64) *batch {
	b := batches.Get().(*batch)
	*b = batch{
		by: by, names: names,
		values: b.values[:0], cells: b.cells[:0], remembered: b.remembered[:0], scratch: b.scratch[:0],
	}
	return b
}

// done returns b to the pool.
func (b *batch) done() {
	b.names, b.engineHashes = nil, nil
	batches.Put(b)
}

// insertSequence is insert for sequence Spaces.
func (s *Space) insertSequence(ev *Store) (stored int, ok bool) {
	b := newBatch(holderOf(ev.Slot, ev.Tier), ev.EngineHashes)
	defer b.done()
	for {
		p, ok := s.positionAfterParent(ev)
		if !ok {
			return 0, false
		}
		s.tree.ensureRoot()
		s.computeHashes(b, p, ev)
		if !s.locate(b, p) {
			return s.insertBatch(b, p), true
		}
		// The tree has changed.
	}
}

// computeHashes sets the key, the depth and the values of a batch with tokens,
// whose blocks come after p.
func (s *Space) computeHashes(b *batch, p position, ev *Store) {
	t := &s.tree
	nd := t.node(p.id)
	b.depth, b.unverified = nd.depth+p.at, nd.unverified
	b.key = t.seeds.seed(nd.seed)
	if ev.SeedKnown {
		b.key = ev.Seed
	}
	if p.id == root {
		b.values = hashing.AppendSequenceSeed(b.values[:0], ev.Local, s.chain)
	} else {
		// The first sequence hash of a chain equals its local hash, so that of the
		// block before takes the place of a local hash.
		b.scratch = append(b.scratch[:0], t.sequenceHash(nd.off+p.at-1))
		b.scratch = append(b.scratch, ev.Local...)
		b.values = hashing.AppendSequenceSeed(b.values[:0], b.scratch, s.chain)
		b.values = append(b.values[:0], b.values[1:]...)
	}
	b.applyKey()
}

// applyKey turns sequence hashes into values.
func (b *batch) applyKey() {
	for i := range b.values {
		b.values[i] ^= b.key
	}
}

// locate sets cells for the blocks that are in the index, and frees the batch's
// names as freeNames does. It reports whether it took a name from a block; then
// the tree may have changed, and the cells are not valid.
func (s *Space) locate(b *batch, p position) bool {
	t := &s.tree
	b.cells, s.staleNames = b.cells[:0], s.staleNames[:0]
	ownNames := len(s.ranks[b.by.slot()].aliases.cells) > 0
	for i := 0; i < len(b.values); i = len(b.cells) {
		q, ok := t.step(p, b.values[i])
		if !ok {
			cell := s.resolveName(b, i)
			s.markStaleName(b.by, b.names[i], cell)
			b.cells = append(b.cells, cell)
			continue
		}
		nd := t.node(q.id)
		n := t.match(q, b.values[i:])
		held := !ownNames && t.sets.has(nd.holders[b.by.tier()], b.by.slot())
		for k, name := range t.cells.names(nd.off+q.at, uint32(n)) {
			cell, same := nd.off+q.at+uint32(k), held && name == b.names[i+k]
			if nd.unverified {
				if known := s.resolveName(b, i+k); known != 0 {
					cell, same = known, false
				}
			}
			if !same {
				s.markStaleName(b.by, b.names[i+k], cell)
			}
			b.cells = append(b.cells, cell)
		}
		p = position{q.id, q.at + uint32(n)}
	}
	return s.removeStaleNames(b.by)
}

// resolveName returns a block of the same namespace that is known from tokens
// and is named by the i-th block's engine hash or value; 0 if there is none. It
// looks for the value too, because the engine that announced the tokens may have
// left while other publishers still name the block by its value.
func (s *Space) resolveName(b *batch, i int) uint32 {
	if !b.hashOnly {
		return 0
	}
	t := &s.tree
	for _, name := range [...]uint64{b.engineHashes[i], b.values[i]} {
		passed := 0
		cell := s.findByAnyName(name, func(_ uint32, nd *node) bool {
			passed++
			return !nd.unverified && t.seeds.seed(nd.seed) == b.key
		})
		if passed > maxNamesakes {
			s.renameNamesakes(name)
		}
		if cell != 0 {
			return cell
		}
	}
	return 0
}

// insertBatch makes by a holder of the located blocks and adds the others to
// the index, from p on. It returns how many blocks by did not hold before.
func (s *Space) insertBatch(b *batch, p position) (stored int) {
	t := &s.tree
	blocks := &s.ranks[b.by.slot()].blocks[b.by.tier()]
	before := *blocks
	seed := t.seeds.take(b.key)
	depth, unverified := b.depth, b.unverified
	for i := 0; i < len(b.cells); {
		n := uint32(0)
		if cell := b.cells[i]; cell != 0 {
			n = t.neighbours(b.cells[i:])
			if b.hashOnly {
				depth = knownDepth(t.depthOf(cell), depth)
			} else {
				depth, unverified = s.confirmReached(b, i, n, depth, unverified)
			}
			p = s.addHolder(b.by, t.positionOf(cell), b.names[i:i+int(n)])
			depth += n
		} else {
			p, n = s.extendBatch(b, i, p, seed, depth, unverified)
			depth = t.node(p.id).depth + p.at
		}
		i += int(n)
	}
	t.seeds.release(seed)
	stored = *blocks - before
	if !b.hashOnly && t.unverifiedRuns > 0 {
		s.mergeUnverified(b)
	}
	return stored
}

// knownDepth returns a if it is a known depth, else b.
func knownDepth(a, b uint32) uint32 {
	if a < unknownDepth {
		return a
	}
	return b
}

// neighbours returns how many of the cells, from the first on, are consecutive
// in one run.
func (t *tree) neighbours(cells []uint32) uint32 {
	id := t.cells.nodeOf(cells[0])
	nd := t.node(id)
	most := min(uint32(len(cells)), nd.off+nd.n-cells[0])
	n := uint32(1)
	for n < most && cells[n] == cells[0]+n {
		n++
	}
	return n
}

// extendBatch adds the blocks from the i-th on that are not in the index, as
// many as go into one run, after p. It returns the position after them and
// their number.
func (s *Space) extendBatch(b *batch, i int, p position, seed, depth uint32, unverified bool) (position, uint32) {
	t := &s.tree
	n := i
	for n < len(b.cells) && b.cells[n] == 0 {
		n++
	}
	values, names := b.values[i:n], b.tableNames(i, n)
	mine := [NumTiers]holderSet{}
	mine[b.by.tier()] = onlyHolder(b.by.slot())
	k := 0
	nd := t.node(p.id)
	if p.id != root && p.at == nd.n && nd.first == 0 && nd.holders == mine && nd.seed == seed && nd.unverified == unverified && nd.depth+nd.n == depth {
		k = t.growLeaf(p.id, values, names)
	}
	if k == 0 {
		switch {
		case b.hashOnly:
			p = position{} // it is found by its value, so the run before it is not split
		case p.at < nd.n:
			p.id, _ = t.split(p.id, p.at)
		}
		p.id, k = t.newLeaf(p.id, values, names, t.seeds.share(seed))
		nd = t.node(p.id)
		nd.holders, nd.depth = mine, min(depth, unknownDepth)
		t.setUnverified(nd, unverified)
	}
	s.addBlocks(b.by, k)
	for c := range k {
		cell := nd.off + nd.n - uint32(k) + uint32(c)
		b.cells[i+c] = cell
		if b.engineNamed {
			s.addName(b.by, b.names[i+c], cell, names[c], true)
		}
	}
	return position{p.id, nd.n}, uint32(k)
}

// tableNames returns the names that the blocks i to n-1 get in the table: the
// engine hashes if the publisher states them, because events with tokens will
// use those.
func (b *batch) tableNames(i, n int) []uint64 {
	if !b.engineNamed {
		return b.names[i:n]
	}
	b.scratch = b.scratch[:0]
	for ; i < n; i++ {
		name := b.names[i]
		if e := b.engineHashes[i]; e != b.values[i]^b.key {
			name = e
		}
		b.scratch = append(b.scratch, name)
	}
	return b.scratch
}

// confirmReached updates n blocks of one run, the i-th of the batch and those
// after it, that a chain with tokens has reached. It returns the depth of the
// first, and whether the chain is still unverified there.
func (s *Space) confirmReached(b *batch, i int, n, depth uint32, unverified bool) (uint32, bool) {
	t := &s.tree
	cell := b.cells[i]
	switch {
	case !t.nodeAt(cell).unverified:
		return t.depthOf(cell), false // equal hashes, equal chains
	case !unverified:
		s.confirm(cell, depth, b.names[i:i+int(n)])
		return depth, false
	}
	return knownDepth(depth, t.depthOf(cell)), true
}

// confirm records that unverified blocks of one run are now known from tokens;
// depth is that of the first. The names that came with the tokens become the
// table's, because other publishers without tokens may use them.
func (s *Space) confirm(cell, depth uint32, names []uint64) {
	t := &s.tree
	for i, name := range names {
		s.setTableName(cell+uint32(i), name)
	}
	id, n := t.cells.nodeOf(cell), uint32(len(names))
	if at := cell - t.node(id).off; at > 0 {
		_, id = t.split(id, at)
	}
	if n < t.node(id).n {
		id, _ = t.split(id, n)
	}
	nd := t.node(id)
	nd.depth = depth
	t.setUnverified(nd, false)
	id = t.join(id)
	t.join(t.node(id).parent)
}

// maxUnverifiedMerges bounds the unverified blocks that are merged into one
// block per event.
const maxUnverifiedMerges = 4

// mergeUnverified finds unverified blocks that were announced under the names
// of the batch's blocks before the tokens came, and moves their holders to the
// latter.
func (s *Space) mergeUnverified(b *batch) {
	t := &s.tree
	// Only unverified blocks are freed below: the cells of others stay valid.
	for i, cell := range b.cells {
		if t.nodeAt(cell).unverified {
			b.cells[i] = 0
		}
	}
	for i, cell := range b.cells {
		if cell == 0 {
			continue
		}
		for range maxUnverifiedMerges {
			other := s.findUnverified(b, b.names[i])
			if other == 0 {
				break
			}
			s.mergeHolders(other, cell)
		}
	}
}

// findUnverified returns an unverified block of the batch's namespace that is
// the same as the batch's block with that name, or 0. It is the same if the name
// is its sequence hash, its value, or a name that a slot has for it.
func (s *Space) findUnverified(b *batch, name uint64) uint32 {
	t := &s.tree
	unverified := func(_ uint32, nd *node) bool {
		return nd.unverified && nd.holders != [NumTiers]holderSet{} && t.seeds.seed(nd.seed) == b.key
	}
	for _, value := range [...]uint64{name ^ b.key, name} {
		if cell := t.cellOf(value); cell != 0 && unverified(cell, t.nodeAt(cell)) {
			return cell
		}
	}
	return s.findByAnyName(name, unverified)
}

// mergeHolders moves the holders of a block to another one, each with all its
// names of the block.
func (s *Space) mergeHolders(from, to uint32) {
	t := &s.tree
	var holders []holder
	for tier, h := range t.nodeAt(from).holders {
		t.sets.each(h, func(slot uint32) { holders = append(holders, holderOf(slot, Tier(tier))) })
	}
	var names []uint64
	for _, by := range holders {
		names = s.ranks[by.slot()].aliases.names(names[:0], from, by.tier(), t.cells.name(from))
		for _, name := range names {
			s.holdCell(by, to, name)
		}
	}
}
