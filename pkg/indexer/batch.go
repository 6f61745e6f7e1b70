package indexer

import (
	"sync"

	"github.com/select-service/select-service/pkg/hashing"
)

// batch is the blocks of one event on their way into a sequence Space.
type batch struct {
	by    holder
	names []uint64 // per block
	key   uint64   // of the namespace

	depth uint32 // of the first block
	// claimed: the hashes of the blocks, or of one before them, are only said.
	unverified bool
	// said: they are said of the blocks themselves; engine has the names that
	// tell which blocks with tokens they are.
	hashOnly     bool
	engineHashes []uint64
	engineNamed  bool // engine is not just the hashes

	values     []uint64 // per block
	cells      []uint32 // where each block stands, 0: nowhere yet
	remembered []int    // blocks that the slot remembers
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

// done gives b's memory to the next batch.
func (b *batch) done() {
	b.names, b.engineHashes = nil, nil
	batches.Put(b)
}

// insertSequence is place for sequence Spaces.
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

// computeHashes computes what the event's blocks are behind p.
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
		// The first hash of a chain equals its local hash: that of the block
		// before goes on as one.
		b.scratch = append(b.scratch[:0], t.rollingHash(nd.off+p.at-1))
		b.scratch = append(b.scratch, ev.Local...)
		b.values = hashing.AppendSequenceSeed(b.values[:0], b.scratch, s.chain)
		b.values = append(b.values[:0], b.values[1:]...)
	}
	b.applyKey()
}

// applyKey makes values of rolling hashes.
func (b *batch) applyKey() {
	for i := range b.values {
		b.values[i] ^= b.key
	}
}

// locate finds where the blocks stand that are in the index, and takes their
// names from whatever else the holder called so: a name names one block. It
// reports whether it took any; then the tree may have changed.
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

// resolveName returns the block with tokens, of the same namespace, that is
// known by the engine's name of the i-th block, which came without; 0 if there
// is none. The engine may have left since, and others call the block by its
// folded hash, having been told the same.
func (s *Space) resolveName(b *batch, i int) uint32 {
	if !b.hashOnly {
		return 0
	}
	t := &s.tree
	known := func(_ uint32, nd *node) bool {
		return !nd.unverified && t.seeds.seed(nd.seed) == b.key
	}
	if cell := s.findByAnyName(b.engineHashes[i], known); cell != 0 {
		return cell
	}
	return s.findByAnyName(b.values[i], known)
}

// insertBatch makes by a holder of the blocks, which locate has found, and adds those
// that stand nowhere, from p on. It returns how many are newly held.
func (s *Space) insertBatch(b *batch, p position) (stored int) {
	t := &s.tree
	blocks := &s.ranks[b.by.slot()].blocks[b.by.tier()]
	before := *blocks
	seed := t.seeds.take(b.key)
	depth, claimed := b.depth, b.unverified
	for i := 0; i < len(b.cells); {
		n := uint32(0)
		if cell := b.cells[i]; cell != 0 {
			n = t.neighbours(b.cells[i:])
			if b.hashOnly {
				depth = knownDepth(t.depthOf(cell), depth)
			} else {
				depth, claimed = s.confirmReached(b, i, n, depth, claimed)
			}
			p = s.addHolder(b.by, t.positionOf(cell), b.names[i:i+int(n)])
			depth += n
		} else {
			p, n = s.addLeaf(b, i, p, seed, depth, claimed)
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

// knownDepth returns the first of two depths if it is known, else the other.
func knownDepth(a, b uint32) uint32 {
	if a < unknownDepth {
		return a
	}
	return b
}

// neighbours returns how many of the cells are neighbours in one run.
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

// addLeaf adds blocks from the i-th on that stand nowhere, as many as go into one
// run, and returns the place after them.
func (s *Space) addLeaf(b *batch, i int, p position, seed, depth uint32, claimed bool) (position, uint32) {
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
	if p.id != root && p.at == nd.n && nd.first == 0 && nd.holders == mine && nd.seed == seed && nd.unverified == claimed && nd.depth+nd.n == depth {
		k = t.growLeaf(p.id, values, names)
	}
	if k == 0 {
		switch {
		case b.hashOnly:
			p = position{} // its place is where its value is; the run before stays whole
		case p.at < nd.n:
			p.id, _ = t.split(p.id, p.at)
		}
		p.id, k = t.newLeaf(p.id, values, names, t.seeds.share(seed))
		nd = t.node(p.id)
		nd.holders, nd.depth = mine, min(depth, unknownDepth)
		t.setUnverified(nd, claimed)
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

// tableNames returns the names of the blocks from the i-th up to the n-th in the
// table: where a publisher without tokens states the engine's, those, by which
// the tokens will come.
func (b *batch) tableNames(i, n int) []uint64 {
	if !b.engineNamed {
		return b.names[i:n]
	}
	b.scratch = b.scratch[:0]
	for ; i < n; i++ {
		title := b.names[i]
		if own := b.engineHashes[i]; own != b.values[i]^b.key {
			title = own
		}
		b.scratch = append(b.scratch, title)
	}
	return b.scratch
}

// confirmReached records what a chain of tokens tells of the n blocks that it has come
// to, its i-th and the next in the same run, and returns the depth of the first
// and whether the chain is still only claimed there.
func (s *Space) confirmReached(b *batch, i int, n, depth uint32, claimed bool) (uint32, bool) {
	t := &s.tree
	cell := b.cells[i]
	switch {
	case !t.nodeAt(cell).unverified:
		return t.depthOf(cell), false // equal hashes, equal chains
	case !claimed:
		s.confirm(cell, depth, b.names[i:i+int(n)])
		return depth, false
	}
	return knownDepth(depth, t.depthOf(cell)), true
}

// confirm records that blocks of one run, which were claimed, are known from
// tokens now, and takes over the names that came with them: by these, other
// publishers' blocks without tokens are found.
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

// maxUnverifiedMerges is how many blocks that were announced by one name are looked for.
const maxUnverifiedMerges = 4

// mergeUnverified finds blocks that were announced by the names of an event's blocks
// alone, before their tokens came, and gives their holders to the latter.
func (s *Space) mergeUnverified(b *batch) {
	t := &s.tree
	// Only claimed blocks are freed below: the cells of others stay good.
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

// findUnverified returns a block of the event's namespace of which only a name is
// known, or 0: its hash is the name, as it comes or folded, or it is called so.
func (s *Space) findUnverified(b *batch, name uint64) uint32 {
	t := &s.tree
	claimed := func(_ uint32, nd *node) bool {
		return nd.unverified && nd.holders != [NumTiers]holderSet{} && t.seeds.seed(nd.seed) == b.key
	}
	for _, value := range [...]uint64{name ^ b.key, name} {
		if cell := t.cellOf(value); cell != 0 && claimed(cell, t.nodeAt(cell)) {
			return cell
		}
	}
	return s.findByAnyName(name, claimed)
}

// mergeHolders moves the holders of a block to another one, each under the names that
// it has for it.
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
