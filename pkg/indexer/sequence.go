package indexer

import "github.com/select-service/select-service/pkg/hashing"

// In a sequence Space a block is its value: its rolling hash, folded with the
// key of its namespace (value = rolling ^ key), so that namespaces share one
// Space and nothing of one is ever met from another. Values stand where a local
// Space has local hashes. A table finds every block by its value, so that a walk
// goes on wherever the next block stands: blocks that came by hash alone are
// runs of their own below the root.

// unknownDepth and all above it say that the depth of a block is not known: a
// publisher announced it by hash, without its place. Blocks behind it count on.
const unknownDepth = 1 << 31

// NewSequence returns an index whose blocks are known by rolling sequence hash.
// chain is the seed of the rolling hash (hashing.AppendSequenceSeed).
//
// Store takes true local hashes and, as Seed, the random key of the namespace
// that the blocks belong to; Follow takes rolling hashes, each xor the key.
// Overlap, Walk and MatchSequence are for local Spaces.
func NewSequence(chain uint64) *Space {
	s := New()
	s.sequence, s.chain = true, chain
	s.tree.byValue = &cellTable{}
	s.tree.byValue.init(&s.mem)
	return s
}

// cellOf returns the cell of a value, or 0.
func (t *tree) cellOf(value uint64) uint32 {
	tag := t.byValue.tag(value)
	sh := t.byValue.shard(tag)
	if sh.n == 0 {
		return 0
	}
	for i := sh.first(tag); ; i = sh.next(i) {
		cell, same := sh.at(i, tag)
		if cell == 0 || same && t.cells.local(cell) == value {
			return cell
		}
	}
}

// removeValues takes n cells out of the table of values.
func (t *tree) removeValues(off, n uint32) {
	for i, value := range t.cells.locals(off, n) {
		t.byValue.remove(value, off+uint32(i))
	}
}

// positionOf returns the place before a block.
func (t *tree) positionOf(cell uint32) position {
	id := t.cells.nodeOf(cell)
	return position{id, cell - t.node(id).off}
}

// step returns the place before the given block where it follows p. At the
// root's place it is a first block.
func (t *tree) step(p position, local uint64) (position, bool) {
	nd := t.node(p.id)
	switch {
	case p.at < nd.n && t.cells.local(nd.off+p.at) == local:
		return p, true
	case t.byValue != nil:
		if cell := t.cellOf(local); cell != 0 {
			return t.positionOf(cell), true
		}
	case p.at == nd.n:
		if c := t.child(p.id, local); c != 0 {
			return position{c, 0}, true
		}
	}
	return position{}, false
}

// rollingHash returns the rolling hash of a block.
func (t *tree) rollingHash(cell uint32) uint64 {
	return t.cells.local(cell) ^ t.seeds.seed(t.node(t.cells.nodeOf(cell)).seed)
}

// previousHash returns the rolling hash of the block before a block. It is false
// for a first block, and where it is not known.
func (t *tree) previousHash(cell uint32) (rolling uint64, known bool) {
	up, ok := t.parentCell(cell)
	if !ok || t.depthOf(cell) == 0 {
		return 0, false
	}
	return t.rollingHash(up), true
}

func (t *tree) depthOf(cell uint32) uint32 {
	nd := t.node(t.cells.nodeOf(cell))
	return nd.depth + cell - nd.off
}

// hasLocalHash tells whether a block has a local hash. Of a block whose predecessor
// nobody told, a rank's own name for it has to do.
func (s *Space) hasLocalHash(cell uint32, local, key uint64, keyKnown bool) bool {
	t := &s.tree
	if !s.sequence {
		return t.cells.local(cell) == local
	}
	seed := t.seeds.seed(t.node(t.cells.nodeOf(cell)).seed)
	if keyKnown && key != seed {
		return false
	}
	prior, known := t.previousHash(cell)
	if !known {
		return t.depthOf(cell) != 0 || t.cells.local(cell) == local^seed
	}
	var pair [2]uint64
	return hashing.AppendSequenceSeed(pair[:0], []uint64{prior, local}, s.chain)[1]^seed == t.cells.local(cell)
}

// setUnverified sets whether the hashes of a run are only said.
func (t *tree) setUnverified(nd *node, claimed bool) {
	switch {
	case claimed && !nd.unverified:
		t.unverifiedRuns++
	case !claimed && nd.unverified:
		t.unverifiedRuns--
	}
	nd.unverified = claimed
}
