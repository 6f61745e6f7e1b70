package indexer

// Run is a piece of a dump: consecutive blocks with the ranks that hold them.
type Run struct {
	// Parent is the name of the block before the first; HasParent is false at
	// the root.
	Parent    uint64
	HasParent bool
	Names     []uint64 // the engine's hashes, as first announced
	Local     []uint64
	// Slots lists, per tier, the slots that hold the run and every block before
	// it in some tier: what is behind a hole is left out (decision K13).
	Slots [NumTiers][]uint32
}

// Runs returns the whole index, parents before children. It is a copy of one
// instant: 16 bytes per unique block, taken under the read lock.
func (s *Space) Runs() []Run {
	st := s.Stats()
	// Memory is made, and touched, before the lock is taken: a writer that waits
	// for it holds up every query.
	blocks := st.Unique + st.Unique/16
	d := dumper{s: s, slab: make([]uint64, 2*blocks), slots: make([]uint32, 2*st.Runs), runs: make([]Run, 0, st.Runs+st.Runs/16)}
	clear(d.slab)
	d.slab, d.slots = d.slab[:0], d.slots[:0]
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.tree.live > 0 {
		d.walk()
	}
	return d.runs
}

type dumper struct {
	s     *Space
	slab  []uint64
	slots []uint32
	runs  []Run
	reach []uint64 // per level of the walk, the ranks without a hole so far
}

// walk visits nodes in depth-first order along their links.
func (d *dumper) walk() {
	t := &d.s.tree
	words := int(t.sets.words)
	for _, hidden := range d.s.hidden[:words] {
		d.reach = append(d.reach, ^hidden)
	}
	for id := t.node(root).first; id != 0; {
		nd := t.node(id)
		if d.add(nd, words) && nd.first != 0 {
			id = nd.first
			continue
		}
		d.reach = d.reach[:len(d.reach)-words]
		for id != root && t.node(id).next == 0 {
			id = t.node(id).parent
			d.reach = d.reach[:max(0, len(d.reach)-words)]
		}
		id = t.node(id).next // 0 at the root
	}
}

// add appends a node's run for the ranks in the last level of reach, and a
// level with those of them that hold it in any tier; it reports whether there
// are any.
func (d *dumper) add(nd *node, words int) (any bool) {
	t := &d.s.tree
	above := len(d.reach) - words
	for range words {
		d.reach = append(d.reach, 0)
	}
	reach, below := d.reach[above:above+words], d.reach[above+words:]
	var r Run
	for tier, h := range nd.owners {
		first := len(d.slots)
		t.sets.each(h, func(slot uint32) {
			if reach[slot/64]>>(slot%64)&1 == 1 {
				d.slots = append(d.slots, slot)
				below[slot/64] |= 1 << (slot % 64)
				any = true
			}
		})
		r.Slots[tier] = d.slots[first:len(d.slots):len(d.slots)]
	}
	if !any {
		return false
	}
	r.Names = d.copy(t.cells.names(nd.off, nd.n))
	r.Local = d.copy(t.cells.locals(nd.off, nd.n))
	if nd.parent != root {
		p := t.node(nd.parent)
		r.Parent, r.HasParent = t.cells.name(p.off+p.n-1), true
	}
	d.runs = append(d.runs, r)
	return true
}

func (d *dumper) copy(v []uint64) []uint64 {
	at := len(d.slab)
	d.slab = append(d.slab, v...)
	return d.slab[at:len(d.slab):len(d.slab)]
}
