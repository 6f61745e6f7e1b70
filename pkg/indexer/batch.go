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
	claimed bool
	// said: they are said of the blocks themselves; engine has the names that
	// tell which blocks with tokens they are.
	said   bool
	engine []uint64
	stated bool // engine is not just the hashes

	values  []uint64 // per block
	cells   []uint32 // where each block stands, 0: nowhere yet
	lost    []int    // blocks that the slot remembers
	scratch []uint64
}

var batches = sync.Pool{New: func() any { return new(batch) }}

func newBatch(by holder, names []uint64) *batch {
	b := batches.Get().(*batch)
	*b = batch{
		by: by, names: names,
		values: b.values[:0], cells: b.cells[:0], lost: b.lost[:0], scratch: b.scratch[:0],
	}
	return b
}

// done gives b's memory to the next batch.
func (b *batch) done() {
	b.names, b.engine = nil, nil
	batches.Put(b)
}

// placeChain is place for sequence Spaces.
func (s *Space) placeChain(ev *Store) (stored int, ok bool) {
	b := newBatch(holderOf(ev.Slot, ev.Tier), ev.EngineHashes)
	defer b.done()
	for {
		p, ok := s.parent(ev)
		if !ok {
			return 0, false
		}
		s.tree.ready()
		s.roll(b, p, ev)
		if !s.locate(b, p) {
			return s.enter(b, p), true
		}
		// The tree has changed.
	}
}

// roll computes what the event's blocks are behind p.
func (s *Space) roll(b *batch, p place, ev *Store) {
	t := &s.tree
	nd := t.node(p.id)
	b.depth, b.claimed = nd.depth+p.at, nd.claimed
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
	b.fold()
}

// fold makes values of rolling hashes.
func (b *batch) fold() {
	for i := range b.values {
		b.values[i] ^= b.key
	}
}

// locate finds where the blocks stand that are in the index, and takes their
// names from whatever else the holder called so: a name names one block. It
// reports whether it took any; then the tree may have changed.
func (s *Space) locate(b *batch, p place) bool {
	t := &s.tree
	b.cells, s.stale = b.cells[:0], s.stale[:0]
	ownNames := len(s.ranks[b.by.slot()].aliases.cells) > 0
	for i := 0; i < len(b.values); i = len(b.cells) {
		q, ok := t.step(p, b.values[i])
		if !ok {
			cell := s.resolveName(b, i)
			s.markStale(b.by, b.names[i], cell)
			b.cells = append(b.cells, cell)
			continue
		}
		nd := t.node(q.id)
		n := t.match(q, b.values[i:])
		held := !ownNames && t.sets.has(nd.owners[b.by.tier()], b.by.slot())
		for k, name := range t.cells.names(nd.off+q.at, uint32(n)) {
			cell, same := nd.off+q.at+uint32(k), held && name == b.names[i+k]
			if nd.claimed {
				if known := s.resolveName(b, i+k); known != 0 {
					cell, same = known, false
				}
			}
			if !same {
				s.markStale(b.by, b.names[i+k], cell)
			}
			b.cells = append(b.cells, cell)
		}
		p = place{q.id, q.at + uint32(n)}
	}
	return s.unnameStale(b.by)
}

// resolveName returns the block with tokens, of the same namespace, that is
// known by the engine's name of the i-th block, which came without; 0 if there
// is none. The engine may have left since, and others call the block by its
// folded hash, having been told the same.
func (s *Space) resolveName(b *batch, i int) uint32 {
	if !b.said {
		return 0
	}
	t := &s.tree
	known := func(_ uint32, nd *node) bool {
		return !nd.claimed && t.seeds.seed(nd.seed) == b.key
	}
	if cell := s.named(b.engine[i], known); cell != 0 {
		return cell
	}
	return s.named(b.values[i], known)
}

// enter makes by a holder of the blocks, which locate has found, and adds those
// that stand nowhere, from p on. It returns how many are newly held.
func (s *Space) enter(b *batch, p place) (stored int) {
	t := &s.tree
	blocks := &s.ranks[b.by.slot()].blocks[b.by.tier()]
	before := *blocks
	seed := t.seeds.take(b.key)
	depth, claimed := b.depth, b.claimed
	for i := 0; i < len(b.cells); {
		n := uint32(0)
		if cell := b.cells[i]; cell != 0 {
			n = t.stretch(b.cells[i:])
			if b.said {
				depth = firstKnown(t.depthOf(cell), depth)
			} else {
				depth, claimed = s.reach(b, i, n, depth, claimed)
			}
			p = s.own(b.by, t.spot(cell), b.names[i:i+int(n)])
			depth += n
		} else {
			p, n = s.attach(b, i, p, seed, depth, claimed)
			depth = t.node(p.id).depth + p.at
		}
		i += int(n)
	}
	t.seeds.release(seed)
	stored = *blocks - before
	if !b.said && t.claims > 0 {
		s.gather(b)
	}
	return stored
}

// firstKnown returns the first of two depths if it is known, else the other.
func firstKnown(a, b uint32) uint32 {
	if a < unknownDepth {
		return a
	}
	return b
}

// stretch returns how many of the cells are neighbours in one run.
func (t *tree) stretch(cells []uint32) uint32 {
	id := t.cells.nodeOf(cells[0])
	nd := t.node(id)
	most := min(uint32(len(cells)), nd.off+nd.n-cells[0])
	n := uint32(1)
	for n < most && cells[n] == cells[0]+n {
		n++
	}
	return n
}

// attach adds blocks from the i-th on that stand nowhere, as many as go into one
// run, and returns the place after them.
func (s *Space) attach(b *batch, i int, p place, seed, depth uint32, claimed bool) (place, uint32) {
	t := &s.tree
	n := i
	for n < len(b.cells) && b.cells[n] == 0 {
		n++
	}
	values, names := b.values[i:n], b.titles(i, n)
	mine := [NumTiers]owners{}
	mine[b.by.tier()] = onlyOwner(b.by.slot())
	k := 0
	nd := t.node(p.id)
	if p.id != root && p.at == nd.n && nd.first == 0 && nd.owners == mine && nd.seed == seed && nd.claimed == claimed && nd.depth+nd.n == depth {
		k = t.grow(p.id, values, names)
	}
	if k == 0 {
		switch {
		case b.said:
			p = place{} // its place is where its value is; the run before stays whole
		case p.at < nd.n:
			p.id, _ = t.split(p.id, p.at)
		}
		p.id, k = t.sprout(p.id, values, names, t.seeds.share(seed))
		nd = t.node(p.id)
		nd.owners, nd.depth = mine, min(depth, unknownDepth)
		t.claim(nd, claimed)
	}
	s.count(b.by, k)
	for c := range k {
		cell := nd.off + nd.n - uint32(k) + uint32(c)
		b.cells[i+c] = cell
		if b.stated {
			s.name(b.by, b.names[i+c], cell, names[c], true)
		}
	}
	return place{p.id, nd.n}, uint32(k)
}

// titles returns the names of the blocks from the i-th up to the n-th in the
// table: where a publisher without tokens states the engine's, those, by which
// the tokens will come.
func (b *batch) titles(i, n int) []uint64 {
	if !b.stated {
		return b.names[i:n]
	}
	b.scratch = b.scratch[:0]
	for ; i < n; i++ {
		title := b.names[i]
		if own := b.engine[i]; own != b.values[i]^b.key {
			title = own
		}
		b.scratch = append(b.scratch, title)
	}
	return b.scratch
}
