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
	s.tree.values = &nameTable{}
	s.tree.values.init(&s.mem)
	return s
}

// standing returns the cell of a value, or 0.
func (t *tree) standing(value uint64) uint32 {
	tag := t.values.tag(value)
	sh := t.values.shard(tag)
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

// forgetValues takes n cells out of the table of values.
func (t *tree) forgetValues(off, n uint32) {
	for i, value := range t.cells.locals(off, n) {
		t.values.remove(value, off+uint32(i))
	}
}

// spot returns the place before a block.
func (t *tree) spot(cell uint32) place {
	id := t.cells.nodeOf(cell)
	return place{id, cell - t.node(id).off}
}

// step returns the place before the given block where it follows p. At the
// root's place it is a first block.
func (t *tree) step(p place, local uint64) (place, bool) {
	nd := t.node(p.id)
	switch {
	case p.at < nd.n && t.cells.local(nd.off+p.at) == local:
		return p, true
	case t.values != nil:
		if cell := t.standing(local); cell != 0 {
			return t.spot(cell), true
		}
	case p.at == nd.n:
		if c := t.child(p.id, local); c != 0 {
			return place{c, 0}, true
		}
	}
	return place{}, false
}

// rollingHash returns the rolling hash of a block.
func (t *tree) rollingHash(cell uint32) uint64 {
	return t.cells.local(cell) ^ t.seeds.seed(t.node(t.cells.nodeOf(cell)).seed)
}

// predecessor returns the rolling hash of the block before a block. It is false
// for a first block, and where it is not known.
func (t *tree) predecessor(cell uint32) (rolling uint64, known bool) {
	up, ok := t.above(cell)
	if !ok || t.depthOf(cell) == 0 {
		return 0, false
	}
	return t.rollingHash(up), true
}

func (t *tree) depthOf(cell uint32) uint32 {
	nd := t.node(t.cells.nodeOf(cell))
	return nd.depth + cell - nd.off
}

// isBlock tells whether a block has a local hash. Of a block whose predecessor
// nobody told, a rank's own name for it has to do.
func (s *Space) isBlock(cell uint32, local, key uint64, keyKnown bool) bool {
	t := &s.tree
	if !s.sequence {
		return t.cells.local(cell) == local
	}
	seed := t.seeds.seed(t.node(t.cells.nodeOf(cell)).seed)
	if keyKnown && key != seed {
		return false
	}
	prior, known := t.predecessor(cell)
	if !known {
		return t.depthOf(cell) != 0 || t.cells.local(cell) == local^seed
	}
	var pair [2]uint64
	return hashing.AppendSequenceSeed(pair[:0], []uint64{prior, local}, s.chain)[1]^seed == t.cells.local(cell)
}

// claim sets whether the hashes of a run are only said.
func (t *tree) claim(nd *node, claimed bool) {
	switch {
	case claimed && !nd.claimed:
		t.claims++
	case !claimed && nd.claimed:
		t.claims--
	}
	nd.claimed = claimed
}
