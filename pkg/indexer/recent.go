package indexer

import "slices"

// Offloading connectors name blocks by the engine's hash alone, often after the
// device has evicted them (decision K15). A rank therefore remembers what it
// removed: the last recentFirst blocks, and recentMax from the first such event
// on, as most engines never send one.
const (
	recentFirst = 4096
	recentMax   = 65536
)

// recent is a ring of removed blocks of one rank.
type recent struct {
	ring []removed
	head int // next to overwrite once the ring is full
	n    int
	// at finds the latest entry of a name; nil until the rank stores by name.
	at map[uint64]int
	// known: in a sequence Space, tokens led to a block in the ring.
	known bool
}

// removed is a block that left. In a local Space parent is the name of the block
// before it, or name itself at the root; in a sequence Space it is the rolling
// hash of the block before it, if behind says that this is known, and local the
// block's value.
type removed struct {
	name, parent, local uint64
	seed                uint64 // block seed of local
	depth               uint32 // only in sequence Spaces, like what follows
	claimed, behind     bool
}

func (r *recent) limit() int {
	if r.at != nil {
		return recentMax
	}
	return recentFirst
}

func (r *recent) push(m *memory, b removed) {
	if r.n == len(r.ring) && r.n < r.limit() {
		r.grow(m)
	}
	if r.n == len(r.ring) && r.at != nil {
		if old := r.ring[r.head].name; r.at[old] == r.head {
			delete(r.at, old)
		}
	}
	r.ring[r.head] = b
	if r.at != nil {
		r.at[b.name] = r.head
	}
	r.head = (r.head + 1) % len(r.ring)
	r.n = min(r.n+1, len(r.ring))
}

// grow makes the ring larger; the oldest entry comes first in it.
func (r *recent) grow(m *memory) {
	bigger := makeFlat[removed](m, min(max(64, 2*len(r.ring)), r.limit()))
	k := copy(bigger, r.ring[r.head:])
	copy(bigger[k:], r.ring[:r.head])
	freeFlat(m, r.ring)
	r.ring, r.head = bigger, r.n
	if r.at != nil {
		clear(r.at)
		for i, e := range bigger[:r.n] {
			r.at[e.name] = i
		}
	}
}

// index starts to look blocks up by name.
func (r *recent) index() {
	if r.at != nil {
		return
	}
	r.at = make(map[uint64]int, r.n)
	for i := range r.n { // from the oldest to the latest
		k := i
		if r.n == len(r.ring) {
			k = (r.head + i) % len(r.ring)
		}
		r.at[r.ring[k].name] = k
	}
}

func (r *recent) clear(m *memory) {
	freeFlat(m, r.ring)
	*r = recent{at: keep(r.at)}
}

// keep empties the table but remembers that it was in use.
func keep(at map[uint64]int) map[uint64]int {
	if at == nil {
		return nil
	}
	return make(map[uint64]int)
}

// remember keeps what StoreByEngineHash has to know of a block that a rank is about to
// give up.
func (s *Space) remember(by holder, name uint64, cell uint32) {
	t := &s.tree
	b := removed{name: name, parent: name, local: t.cells.local(cell)}
	nd := t.node(t.cells.nodeOf(cell))
	b.seed = t.seeds.seed(nd.seed)
	if s.sequence {
		b.depth, b.claimed = nd.depth+cell-nd.off, nd.claimed
		b.parent, b.behind = t.predecessor(cell)
	} else if up, ok := t.above(cell); ok {
		b.parent = s.nameOf(by, up)
	}
	r := &s.ranks[by.slot()].recent
	r.known = r.known || s.sequence && !b.claimed
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
	r := s.admit(slot)
	r.recent.index()
	by := holderOf(slot, t)
	var c recall
	for i, name := range names {
		if s.find(by, name) != 0 {
			resolved++
			continue
		}
		if cell := s.findAny(slot, name); cell != 0 {
			s.hold(by, cell, name)
		} else if r.orphans.addTier(name, t) {
			resolved++
			continue
		} else if !s.bringBack(by, name, &c) {
			continue
		}
		resolved++
		s.reunite(by, names[i:i+1])
	}
	return resolved
}

// bringBack makes by a holder of a block that its rank gave up.
func (s *Space) bringBack(by holder, name uint64, c *recall) bool {
	if s.sequence {
		return s.recallValue(by, name)
	}
	return s.recall(by, name, c)
}

// recall is what one event has found out about blocks that the rank no longer
// holds, so that no way to the root is followed twice.
type recall struct {
	cells map[uint64]uint32 // by name; 0: nothing leads to the root
	// The two must be as they were: a block left the tree, or an orphan joined.
	released uint64
	orphans  int
}

// recall brings a block that by's rank gave up back into the tree, with the
// blocks above it that have left, and makes by its holder.
func (s *Space) recall(by holder, name uint64, c *recall) bool {
	if n := s.ranks[by.slot()].orphans.len(); c.cells == nil || c.released != s.tree.cells.released || c.orphans != n {
		*c = recall{make(map[uint64]uint32), s.tree.cells.released, n}
	}
	chain, cell, ok := s.wayUp(by.slot(), name, c)
	if !ok {
		for _, b := range chain {
			c.cells[b.name] = 0
		}
		return false
	}
	s.tree.ready()
	var p place
	if cell != 0 {
		p = s.behind(cell)
	}
	for i := len(chain) - 1; i > 0; i-- {
		p = s.bridge(p, chain[i])
		c.cells[chain[i].name] = s.tree.node(p.id).off + p.at - 1
	}
	if len(chain) == 0 { // this event has made it already
		s.own(by, place{p.id, p.at - 1}, []uint64{name})
		return true
	}
	b := chain[0]
	s.write(by, p, &Store{EngineHashes: []uint64{b.name}, Local: []uint64{b.local}, Seed: b.seed, SeedKnown: true})
	return true
}

// wayUp follows what a rank remembers of a block up to a block in the tree, or
// to the root (cell 0). The chain has the block first.
func (s *Space) wayUp(slot uint32, name uint64, c *recall) (chain []removed, cell uint32, ok bool) {
	r := &s.ranks[slot].recent
	for next := name; ; {
		if cell, known := c.cells[next]; known {
			return chain, cell, cell != 0
		}
		if cell = s.findAny(slot, next); cell != 0 {
			return chain, cell, true
		}
		i, known := r.at[next]
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
func (s *Space) bridge(p place, b removed) place {
	t := &s.tree
	local, names := []uint64{b.local}, []uint64{b.name}
	if p.at < t.node(p.id).n {
		if t.match(p, local) == 1 {
			return place{p.id, p.at + 1}
		}
		head, _ := t.split(p.id, p.at)
		p = place{head, t.node(head).n}
	}
	if c := t.child(p.id, b.local); c != 0 {
		return place{c, 1}
	}
	seed := t.seeds.take(b.seed)
	nd := t.node(p.id)
	if p.id != root && nd.first == 0 && nd.owners == [NumTiers]owners{} && nd.seed == seed && t.grow(p.id, local, names) == 1 {
		t.seeds.release(seed)
		return place{p.id, nd.n}
	}
	id, _ := t.sprout(p.id, local, names, seed)
	return place{id, 1}
}
