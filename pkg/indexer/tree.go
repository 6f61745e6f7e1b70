package indexer

import (
	"github.com/select-service/select-service/internal/container/keyhash"
	"github.com/select-service/select-service/internal/container/offheap"
	"github.com/select-service/select-service/pkg/hashing"
)

// node is a run of blocks with the same holders in every tier. Node 0 is the
// root and has no blocks.
type node struct {
	off, n     uint32 // the run's cells
	cap        uint32 // cells held, n <= cap: room for a leaf to grow
	depth      uint32 // blocks above the run
	parent     uint32
	first      uint32 // first child, 0 = leaf
	prev, next uint32 // siblings, 0 = end
	holders    [NumTiers]holderSet
	seed       uint32 // number of the block seed in seeds
	used       bool
	// unverified: the sequence hashes of the run come from publishers without
	// tokens, and no chain of tokens from the root on has confirmed them. Only in
	// sequence Spaces.
	unverified bool
}

// Nodes live in pages, so that growing moves none; only the first page starts
// small and moves while it grows.
const (
	pageBits   = 10
	pageNodes  = 1 << pageBits
	firstNodes = 16
)

const root = 0

// tree is the structure of the index without its lock; see Space.
type tree struct {
	mem      *offheap.Memory
	cells    arena
	pages    [][]node
	free     []uint32    // node numbers
	next     uint32      // first node number never used
	live     int         // nodes in use, the root not counted
	children handleTable // (parent, first local hash) → node; not in sequence Spaces
	childKey keyhash.Key // of the children table
	byName   cellTable
	sets     holderSets
	seeds    seedTable
	walks    []*Walk // in progress

	// Only in sequence Spaces; children is not used there.
	byValue        *cellTable // value → cell
	unverifiedRuns int
}

func (t *tree) node(id uint32) *node { return &t.pages[id>>pageBits][id&(pageNodes-1)] }

// nodeAt returns the node whose run the cell is part of.
func (t *tree) nodeAt(cell uint32) *node { return t.node(t.cells.nodeOf(cell)) }

func (t *tree) newNode() uint32 {
	var id uint32
	if l := len(t.free); l > 0 {
		id = t.free[l-1]
		t.free = t.free[:l-1]
	} else {
		id = t.next
		t.next++
		t.page(id)
	}
	*t.node(id) = node{used: true}
	t.live++
	return id
}

// page makes room for a node number that was never used.
func (t *tree) page(id uint32) {
	no, at := int(id>>pageBits), int(id&(pageNodes-1))
	switch {
	case no == len(t.pages):
		n := pageNodes
		if no == 0 {
			n = firstNodes
		}
		t.pages = append(t.pages, offheap.Make[node](t.mem, n))
	case at == len(t.pages[no]):
		bigger := offheap.Make[node](t.mem, min(8*at, pageNodes))
		copy(bigger, t.pages[no])
		offheap.Free(t.mem, t.pages[no])
		t.pages[no] = bigger
	}
}

func (t *tree) freeNode(id uint32) {
	nd := t.node(id)
	for _, h := range nd.holders {
		t.sets.release(h)
	}
	t.seeds.release(nd.seed)
	t.setUnverified(nd, false)
	*nd = node{}
	t.free = append(t.free, id)
	t.live--
}

func (t *tree) childTag(parent uint32, local uint64) uint32 {
	return uint32(t.childKey.Pair(local, uint64(parent)))
}

// child returns the child of id whose run starts with local, or 0.
func (t *tree) child(id uint32, local uint64) uint32 {
	if t.children.n == 0 {
		return 0
	}
	tag := t.childTag(id, local)
	for i := t.children.first(tag); ; i = t.children.next(i) {
		c, same := t.children.at(i, tag)
		if c == 0 {
			return 0
		}
		if same {
			if nd := t.node(c); nd.parent == id && t.cells.local(nd.off) == local {
				return c
			}
		}
	}
}

// link makes c, whose run is set, the first child of p. It must be the first
// because walks go on with the later ones.
func (t *tree) link(p, c uint32) {
	pn, cn := t.node(p), t.node(c)
	cn.parent, cn.prev, cn.next = p, 0, pn.first
	if pn.first != 0 {
		t.node(pn.first).prev = c
	}
	pn.first = c
	if t.byValue == nil {
		t.children.insert(t.childTag(p, t.cells.local(cn.off)), c)
	}
}

// unlink removes c from the children of its parent.
func (t *tree) unlink(c uint32) {
	cn := t.node(c)
	if t.byValue == nil {
		t.children.remove(t.childTag(cn.parent, t.cells.local(cn.off)), c)
	}
	if cn.prev != 0 {
		t.node(cn.prev).next = cn.next
	} else {
		t.node(cn.parent).first = cn.next
	}
	if cn.next != 0 {
		t.node(cn.next).prev = cn.prev
	}
}

// substitute replaces old by c below old's parent; both runs start with the
// same local hash.
func (t *tree) substitute(old, c uint32) {
	on, cn := t.node(old), t.node(c)
	cn.parent, cn.prev, cn.next = on.parent, on.prev, on.next
	if t.byValue == nil {
		t.children.replace(t.childTag(on.parent, t.cells.local(on.off)), old, c)
	}
	if cn.prev != 0 {
		t.node(cn.prev).next = c
	} else {
		t.node(cn.parent).first = c
	}
	if cn.next != 0 {
		t.node(cn.next).prev = c
	}
}

// takeChildren moves the children of from to the childless node to.
func (t *tree) takeChildren(to, from uint32) {
	fn := t.node(from)
	first := fn.first
	fn.first = 0
	t.node(to).first = first
	for c := first; c != 0; {
		cn := t.node(c)
		cn.parent = to
		if t.byValue == nil {
			l := t.cells.local(cn.off)
			t.children.remove(t.childTag(from, l), c)
			t.children.insert(t.childTag(to, l), c)
		}
		c = cn.next
	}
}

// hasManyChildren reports whether a node has so many children that relabelling
// the cells of its run is cheaper than moving them: a shared prompt may have
// 100,000.
func (t *tree) hasManyChildren(id uint32) bool {
	c := t.node(id).first
	for range 8 {
		if c == 0 {
			return false
		}
		c = t.node(c).next
	}
	return true
}

// split cuts a run before its k-th block, 0 < k < n, and returns the nodes of
// both parts. The part that is less work becomes the new node.
func (t *tree) split(id, k uint32) (head, tail uint32) {
	fresh := t.newNode()
	nd, fn := t.node(id), t.node(fresh)
	for i, h := range nd.holders {
		fn.holders[i] = t.sets.clone(h)
	}
	fn.seed = t.seeds.share(nd.seed)
	t.setUnverified(fn, nd.unverified)
	if k <= nd.n-k || t.hasManyChildren(id) {
		fn.off, fn.n, fn.cap, fn.depth = nd.off, k, k, nd.depth
		t.substitute(id, fresh)
		nd.off, nd.n, nd.cap, nd.depth = nd.off+k, nd.n-k, nd.cap-k, nd.depth+k
		t.cells.label(fn.off, k, fresh)
		t.link(fresh, id)
		return fresh, id
	}
	fn.off, fn.n, fn.cap, fn.depth = nd.off+k, nd.n-k, nd.cap-k, nd.depth+k
	t.takeChildren(fresh, id)
	nd.n, nd.cap = k, k
	t.cells.label(fn.off, fn.cap, fresh)
	t.link(id, fresh)
	return id, fresh
}

// join merges a node with its only child into one run if both have the same holders
// and their cells are neighbours. It returns the remaining node, or p.
func (t *tree) join(p uint32) uint32 {
	if p == root {
		return p
	}
	pn := t.node(p)
	c := pn.first
	if c == 0 {
		return p
	}
	cn := t.node(c)
	if cn.next != 0 || pn.off+pn.cap != cn.off || pn.cap != pn.n || pn.off>>segmentBits != cn.off>>segmentBits || pn.seed != cn.seed {
		return p
	}
	if pn.unverified != cn.unverified || pn.depth+pn.n != cn.depth {
		return p // only in sequence Spaces
	}
	for i := range pn.holders {
		if !t.sets.equal(pn.holders[i], cn.holders[i]) {
			return p
		}
	}
	t.unlink(c)
	if pn.n <= cn.n || t.hasManyChildren(c) {
		t.cells.label(pn.off, pn.n, c)
		t.substitute(p, c)
		cn.off, cn.n, cn.cap, cn.depth = pn.off, pn.n+cn.n, pn.cap+cn.cap, pn.depth
		t.freeNode(p)
		return c
	}
	t.cells.label(cn.off, cn.cap, p)
	t.takeChildren(p, c)
	pn.n, pn.cap = pn.n+cn.n, pn.cap+cn.cap
	t.freeNode(c)
	return p
}

// normalize restores the invariants around a node whose holders changed: a leaf
// without holders is removed, then its parent if that is now such a leaf, and so on;
// neighbouring runs with the same holders are joined.
func (t *tree) normalize(id uint32) {
	for id != root {
		nd := t.node(id)
		if nd.first != 0 || nd.holders != [NumTiers]holderSet{} {
			break
		}
		up := nd.parent
		t.advanceWalks(id, 0)
		t.unlink(id)
		t.removeFromTables(nd.off, nd.n)
		t.cells.release(nd.off, nd.cap)
		t.freeNode(id)
		id = up
	}
	if id == root {
		t.freeIfEmpty()
		return
	}
	id = t.join(id)
	t.join(t.node(id).parent)
}

// removeFromTables removes n cells from the tables.
func (t *tree) removeFromTables(off, n uint32) {
	for i, name := range t.cells.names(off, n) {
		t.byName.remove(name, off+uint32(i))
	}
	if t.byValue != nil {
		t.removeValues(off, n)
	}
}

// freeIfEmpty frees the pages when the last node is gone.
func (t *tree) freeIfEmpty() {
	if t.live > 0 {
		return
	}
	for _, p := range t.pages {
		offheap.Free(t.mem, p)
	}
	t.pages, t.free, t.next = nil, nil, 0
}

// ensureRoot makes sure that the root exists.
func (t *tree) ensureRoot() {
	if len(t.pages) == 0 {
		t.page(root)
		t.node(root).used = true
		t.next = 1
	}
}

// trim removes the last k blocks of a leaf, k < n.
func (t *tree) trim(id, k uint32) {
	nd := t.node(id)
	t.advanceWalks(id, nd.n-k)
	nd.n -= k
	t.removeFromTables(nd.off+nd.n, k)
	t.cells.release(nd.off+nd.n, nd.cap-nd.n)
	nd.cap = nd.n
}

// growLeaf appends blocks to the run of a leaf and returns how many there was
// room for.
func (t *tree) growLeaf(id uint32, locals, names []uint64) int {
	nd := t.node(id)
	room := nd.cap - nd.n
	if want := uint32(len(locals)); room < want && nd.cap < maxRun {
		if got := t.cells.extend(nd.off+nd.cap, min(want-room, maxRun-nd.cap)); got > 0 {
			t.cells.label(nd.off+nd.cap, got, id)
			nd.cap += got
			room += got
		}
	}
	k := min(int(room), len(locals))
	t.fill(nd.off+nd.n, locals[:k], names[:k])
	nd.n += uint32(k)
	return k
}

// spareCells is the minimum size of a new run, so that it can grow: a decoding
// request appends block after block.
const spareCells = 8

// newLeaf adds a leaf below p with the first k of the blocks: as many as fit into
// one run.
func (t *tree) newLeaf(p uint32, locals, names []uint64, seed uint32) (id uint32, k int) {
	k = min(len(locals), maxRun)
	n := uint32(k)
	held := max(n, spareCells)
	id = t.newNode()
	off := t.cells.alloc(held)
	t.cells.label(off, held, id)
	t.fill(off, locals[:k], names[:k])
	nd, pn := t.node(id), t.node(p)
	nd.off, nd.n, nd.cap, nd.depth, nd.seed = off, n, held, pn.depth+pn.n, seed
	t.link(p, id)
	return id, k
}

func (t *tree) fill(off uint32, locals, names []uint64) {
	n := uint32(len(locals))
	if n == 0 {
		return
	}
	copy(t.cells.locals(off, n), locals)
	copy(t.cells.names(off, n), names)
	for i, name := range names {
		t.byName.insert(name, off+uint32(i))
	}
	if t.byValue != nil {
		for i, value := range locals {
			t.byValue.insert(value, off+uint32(i))
		}
	}
}

// parentCell returns the cell of the block before a block, or false at the
// root.
func (t *tree) parentCell(cell uint32) (uint32, bool) {
	nd := t.nodeAt(cell)
	if cell > nd.off {
		return cell - 1, true
	}
	if nd.parent == root {
		return 0, false
	}
	p := t.node(nd.parent)
	return p.off + p.n - 1, true
}

// seedTable numbers the block seeds in use, so that a node stores four bytes.
// Number 0 is the base seed and is not counted.
type seedTable struct {
	rows []seedRow
	free []uint32
	of   map[uint64]uint32
}

type seedRow struct {
	seed uint64
	refs int
}

func (t *seedTable) seed(n uint32) uint64 {
	if n == 0 {
		return hashing.Seed
	}
	return t.rows[n-1].seed
}

// take returns the number of seed and counts one more user of it.
func (t *seedTable) take(seed uint64) uint32 {
	if seed == hashing.Seed {
		return 0
	}
	if n, ok := t.of[seed]; ok {
		return t.share(n)
	}
	var n uint32
	if l := len(t.free); l > 0 {
		n = t.free[l-1]
		t.free = t.free[:l-1]
	} else {
		t.rows = append(t.rows, seedRow{})
		n = uint32(len(t.rows))
	}
	t.rows[n-1] = seedRow{seed: seed, refs: 1}
	if t.of == nil {
		t.of = make(map[uint64]uint32)
	}
	t.of[seed] = n
	return n
}

func (t *seedTable) share(n uint32) uint32 {
	if n != 0 {
		t.rows[n-1].refs++
	}
	return n
}

func (t *seedTable) release(n uint32) {
	if n == 0 {
		return
	}
	r := &t.rows[n-1]
	if r.refs--; r.refs > 0 {
		return
	}
	delete(t.of, r.seed)
	t.free = append(t.free, n)
	if len(t.of) == 0 {
		*t = seedTable{}
	}
}
