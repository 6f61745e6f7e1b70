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
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := &s.tree
	if t.live == 0 {
		return nil
	}
	unique := 0
	for i := range t.names.shards {
		unique += t.names.shards[i].n
	}
	d := dumper{s: s, slab: make([]uint64, 0, 2*unique), runs: make([]Run, 0, t.live)}
	// Depth first with a stack of its own: chains may be long.
	reach := make([]uint64, t.sets.words)
	for i := range reach {
		reach[i] = ^s.hidden[i]
	}
	type visit struct {
		id    uint32
		reach []uint64
	}
	var stack []visit
	for c := t.node(root).first; c != 0; c = t.node(c).next {
		stack = append(stack, visit{c, reach})
	}
	for len(stack) > 0 {
		v := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		nd := t.node(v.id)
		below, any := d.add(nd, v.reach)
		if !any {
			continue
		}
		for c := nd.first; c != 0; c = t.node(c).next {
			stack = append(stack, visit{c, below})
		}
	}
	return d.runs
}

type dumper struct {
	s    *Space
	slab []uint64
	runs []Run
}

// add appends a node's run for the ranks in reach and returns the ranks in
// reach that hold it in any tier.
func (d *dumper) add(nd *node, reach []uint64) (below []uint64, any bool) {
	t := &d.s.tree
	below = make([]uint64, len(reach))
	var r Run
	for tier, h := range nd.owners {
		t.sets.each(h, func(slot uint32) {
			if reach[slot/64]>>(slot%64)&1 == 1 {
				r.Slots[tier] = append(r.Slots[tier], slot)
				below[slot/64] |= 1 << (slot % 64)
				any = true
			}
		})
	}
	if !any {
		return nil, false
	}
	r.Names = d.copy(t.cells.names(nd.off, nd.n))
	r.Local = d.copy(t.cells.locals(nd.off, nd.n))
	if nd.parent != root {
		p := t.node(nd.parent)
		r.Parent, r.HasParent = t.cells.name(p.off+p.n-1), true
	}
	d.runs = append(d.runs, r)
	return below, true
}

func (d *dumper) copy(v []uint64) []uint64 {
	at := len(d.slab)
	d.slab = append(d.slab, v...)
	return d.slab[at:len(d.slab):len(d.slab)]
}
