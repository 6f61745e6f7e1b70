package indexer

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
}

type removed struct {
	name, parent, local uint64 // parent == name: the block was at the root
}

func (r *recent) limit() int {
	if r.at != nil {
		return recentMax
	}
	return recentFirst
}

func (r *recent) push(m *memory, name, parent, local uint64) {
	if r.n == len(r.ring) && r.n < r.limit() {
		r.grow(m)
	}
	if r.n == len(r.ring) && r.at != nil {
		if old := r.ring[r.head].name; r.at[old] == r.head {
			delete(r.at, old)
		}
	}
	r.ring[r.head] = removed{name, parent, local}
	if r.at != nil {
		r.at[name] = r.head
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

// StoreNamed applies a stored event without tokens: blocks that the rank has
// announced with tokens before, and holds or removed not long ago, enter the
// tier; the others are unresolved.
func (s *Space) StoreNamed(slot uint32, t Tier, names []uint64) (resolved, unresolved int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.admit(slot)
	r.recent.index()
	by := holderOf(slot, t)
	for i, name := range names {
		if s.find(by, name) != 0 {
			resolved++
			continue
		}
		cell := s.findAny(slot, name)
		if cell == 0 {
			if r.orphans.addTier(name, t) {
				resolved++
				continue
			}
			cell = s.recall(slot, name)
		}
		if cell == 0 {
			unresolved++
			continue
		}
		p := s.behind(cell)
		s.own(by, place{p.id, p.at - 1}, names[i:i+1])
		s.reunite(slot, names[i:i+1])
		resolved++
	}
	return resolved, unresolved
}

// recall returns the block that a rank has or had under a name, or 0. Blocks
// that left the tree since come back without owners.
func (s *Space) recall(slot uint32, name uint64) uint32 {
	r := &s.ranks[slot].recent
	var chain []removed
	cell := s.findAny(slot, name)
	for next := name; cell == 0; cell = s.findAny(slot, next) {
		i, ok := r.at[next]
		if !ok || len(chain) == len(r.ring) {
			return 0
		}
		chain = append(chain, r.ring[i])
		if r.ring[i].parent == next {
			break // the root
		}
		next = r.ring[i].parent
	}
	s.tree.ready()
	var p place
	if cell != 0 {
		p = s.behind(cell)
	}
	for i := len(chain) - 1; i >= 0; i-- {
		p = s.step(p, chain[i])
	}
	nd := s.tree.node(p.id)
	return nd.off + p.at - 1
}

// step goes from p to a block below it, which it makes if it is not there.
func (s *Space) step(p place, b removed) place {
	t := &s.tree
	local := []uint64{b.local}
	if nd := t.node(p.id); p.at < nd.n {
		if t.match(p, local) == 1 {
			return place{p.id, p.at + 1}
		}
		head, _ := t.split(p.id, p.at)
		p = place{head, t.node(head).n}
	}
	if c := t.child(p.id, b.local); c != 0 {
		return place{c, 1}
	}
	id, _ := t.sprout(p.id, local, []uint64{b.name}, t.seeds.share(t.node(p.id).seed))
	return place{id, 1}
}
