package indexer

import "slices"

// Run is a part of the index: consecutive blocks with the ranks that hold them
// under the same names.
type Run struct {
	// Parent is the name of the block before the first; HasParent is false at
	// the root.
	Parent       uint64
	HasParent    bool
	EngineHashes []uint64 // one per block
	Local        []uint64
	Seed         uint64 // the block seed of Local (hashing.LocalSeed)
	// Slots lists, per tier, the slots that hold the run, and every block before
	// it in any tier: blocks after a gap are left out (decision K13).
	Slots [NumTiers][]uint32
}

// Walk is a pass over the whole index, parents before children, while the index
// goes on changing. It copies the index piece by piece into the same memory,
// about a megabyte, and holds the lock for one piece at a time.
//
// A slot is listed with a block only if it holds the block at that moment and
// was listed with the block before it. A block that a slot holds, without a
// gap from the root, from the call of Space.Walk to the last run is listed
// exactly once. A block that enters or leaves meanwhile may be listed or not. A slot that is
// forgotten is no longer listed, even if another rank gets it.
//
// Slots with attention groups other than the main one are not listed, and a slot that
// gets such groups meanwhile is no longer listed: runs have the blocks of the main group
// only, which promise more than such an engine can serve.
//
// The names of a run are those under which each of its slots announced the
// blocks in the tier, so that the slot's removals match them. The parent's name
// is that of the same tier if the slot holds the parent there, else of the
// first tier in which it does. If a rank has announced a block under several
// names, the name is that of the table if it is one of them, else the rank's
// latest.
//
// A walk terminates: new blocks come either where the walk has passed, or deeper
// than what is still ahead of it, and memory bounds the depth.
type Walk struct {
	space *Space
	work  int // of one hold of the lock

	// The walk is in depth-first order, siblings in the order of their list.
	// next is the cell where it continues, 0 at the end. A block keeps its cell
	// however runs are split and joined. When the cell is freed, advanceWalks
	// replaces it.
	next uint32

	// reached has, for each level, the slots that were listed with all blocks above
	// next down to there. A level is valid from its depth to that of the next one;
	// each has fewer slots than the one before, so there are no more levels than slots.
	depths   []uint32
	reached  []uint64 // per level a bit set of words
	words    int
	runSlots []uint64 // scratch: the slots of one run

	// The present piece.
	names, local []uint64
	slots        []uint32
	runs         []Run
	passed       int // runs
	lookups      int // names looked up
}

const (
	// walkWork bounds the work of one piece, in copied words: some hundred
	// microseconds.
	walkWork = 16384
	// runWork is the work of reaching a run: a few cache misses.
	runWork = 8
	// nameWork is the work of looking one name up.
	nameWork = 8
)

// Walk begins a walk. The caller must then call Runs, once. The walk of a
// sequence Space, which does not keep local hashes, has no runs.
func (s *Space) Walk() *Walk { return s.walk(walkWork) }

func (s *Space) walk(work int) *Walk {
	w := &Walk{space: s, work: work}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &s.tree
	w.words = int(t.sets.words)
	w.runSlots = make([]uint64, w.words)
	w.depths, w.reached = []uint32{0}, slices.Repeat([]uint64{^uint64(0)}, w.words)
	if t.live > 0 && !s.sequence {
		w.next = t.node(t.node(root).first).off
	}
	for slot := range s.ranks {
		if s.ranks[slot].groups != nil {
			w.forget(uint32(slot))
		}
	}
	t.walks = append(t.walks, w)
	return w
}

// Runs yields the runs of the index. A run is valid until yield returns; yield
// may use the index.
func (w *Walk) Runs(yield func(*Run) bool) {
	defer w.end()
	for w.fillPiece() {
		for i := range w.runs {
			if !yield(&w.runs[i]) {
				return
			}
		}
	}
}

func (w *Walk) end() {
	s := w.space
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tree.walks = slices.DeleteFunc(s.tree.walks, func(o *Walk) bool { return o == w })
}

// fillPiece copies the next runs into the walk's memory. It is false at the
// end.
func (w *Walk) fillPiece() bool {
	w.names, w.local, w.slots, w.runs = w.names[:0], w.local[:0], w.slots[:0], w.runs[:0]
	w.passed, w.lookups = 0, 0
	s := w.space
	s.mu.RLock()
	defer s.mu.RUnlock()
	if w.next == 0 {
		return false
	}
	t := &s.tree
	for w.next != 0 && w.workDone() < w.work {
		w.passed++
		p := s.tree.positionAfter(w.next)
		nd := t.node(p.id)
		n := w.addRun(nd, p.at-1)
		switch end := p.at - 1 + n; {
		case n > 0 && end < nd.n:
			w.next = nd.off + end
		case n > 0 && nd.first != 0:
			w.next = t.node(nd.first).off
		default:
			w.next = t.afterSubtree(p.id)
		}
	}
	return true
}

// workDone is the work of the present piece so far.
func (w *Walk) workDone() int {
	return w.passed*runWork + len(w.names) + len(w.slots) + w.lookups*nameWork
}

// addRun adds the blocks of a node's run from its at-th on, and returns how
// many it added: none if no slot is to be listed with them.
func (w *Walk) addRun(nd *node, at uint32) uint32 {
	s := w.space
	t := &s.tree
	above := w.level(nd.depth + at)
	clear(w.runSlots)
	var r Run
	listed, withAliases := false, 0
	for tier, h := range nd.holders {
		first := len(w.slots)
		t.sets.each(h, func(slot uint32) {
			i, bit := int(slot/64), uint64(1)<<(slot%64)
			// Slots that are new since the walk began are not listed.
			if i < len(above) && above[i]&^s.clearing[i]&bit != 0 {
				w.slots = append(w.slots, slot)
				w.runSlots[i] |= bit
				listed = true
				if len(s.ranks[slot].aliases.states) > 0 {
					withAliases++
				}
			}
		})
		r.Slots[tier] = w.slots[first:len(w.slots):len(w.slots)]
	}
	if !listed {
		return 0
	}
	if !slices.Equal(w.runSlots, above) {
		w.depths, w.reached = append(w.depths, nd.depth+at), append(w.reached, w.runSlots...)
	}
	off, n := nd.off+at, nd.n-at
	if withAliases > 0 {
		n = min(n, w.room(withAliases))
	}
	r.EngineHashes, w.names = keepCopy(w.names, t.cells.names(off, n))
	r.Local, w.local = keepCopy(w.local, t.cells.locals(off, n))
	r.Seed = t.seeds.seed(nd.seed)
	up, ok := t.parentCell(off)
	if ok {
		r.Parent, r.HasParent = t.cells.name(up), true
	}
	if withAliases > 0 {
		w.addByName(&r, off, up)
	} else {
		w.runs = append(w.runs, r)
	}
	return n
}

// level drops the levels that begin at or below a depth and returns the slots
// of the last one that is left. That of the root is always left.
func (w *Walk) level(depth uint32) []uint64 {
	last := len(w.depths) - 1
	for last > 0 && w.depths[last] >= depth {
		last--
	}
	w.depths, w.reached = w.depths[:last+1], w.reached[:(last+1)*w.words]
	return w.reached[last*w.words:]
}

// keepCopy appends v to a slab. It returns the copy and the longer slab.
func keepCopy(slab, v []uint64) (kept, longer []uint64) {
	at := len(slab)
	slab = append(slab, v...)
	return slab[at:len(slab):len(slab)], slab
}

// forget removes a slot from the rest of the walk.
func (w *Walk) forget(slot uint32) {
	if int(slot/64) >= w.words {
		return
	}
	for i := int(slot / 64); i < len(w.reached); i += w.words {
		w.reached[i] &^= 1 << (slot % 64)
	}
}

// leaveOut removes a slot from the rest of all walks.
func (t *tree) leaveOut(slot uint32) {
	for _, w := range t.walks {
		w.forget(slot)
	}
}

// afterSubtree returns the first cell after a node and all nodes below it, in
// depth-first order, 0 if there is none.
func (t *tree) afterSubtree(id uint32) uint32 {
	for ; id != root; id = t.node(id).parent {
		if next := t.node(id).next; next != 0 {
			return t.node(next).off
		}
	}
	return 0
}

// advanceWalks moves walks whose next cell is in a leaf, at its k-th block or
// later, to the node after it. The caller is about to free these blocks.
func (t *tree) advanceWalks(id, k uint32) {
	for _, w := range t.walks {
		if nd := t.node(id); w.next-nd.off-k < nd.n-k { // cell 0 is in no node
			w.next = t.afterSubtree(id)
		}
	}
}

// room returns how many blocks of a run fit into the rest of a piece, at least
// one, if the names of so many (slot, tier) entries have to be looked up.
func (w *Walk) room(entries int) uint32 {
	return uint32(max(1, (w.work-w.workDone())/(1+entries*nameWork)))
}

// addByName adds a run whose first block is the cell off and whose parent is
// the cell up. A (slot, tier) entry that has other names than the table for its
// blocks, or for the parent, gets a run of its own.
func (w *Walk) addByName(r *Run, off, up uint32) {
	shared := len(w.runs)
	w.runs = append(w.runs, Run{})
	left := 0
	for tier, slots := range r.Slots {
		r.Slots[tier] = slots[:0]
		for _, slot := range slots {
			if own, ok := w.ownNames(r, holderOf(slot, Tier(tier)), off, up); ok {
				w.runs = append(w.runs, own)
				w.passed++
				continue
			}
			r.Slots[tier] = append(r.Slots[tier], slot)
			left++
		}
	}
	if left > 0 {
		w.runs[shared] = *r
		return
	}
	last := len(w.runs) - 1
	w.runs[shared] = w.runs[last]
	w.runs = w.runs[:last]
}

// ownNames returns the run of one (slot, tier) entry of r under its own names.
// It is false if these are the names in r.
func (w *Walk) ownNames(r *Run, by holder, off, up uint32) (Run, bool) {
	s := w.space
	a := &s.ranks[by.slot()].aliases
	if len(a.states) == 0 {
		return Run{}, false
	}
	own := Run{Parent: r.Parent, HasParent: r.HasParent, Local: r.Local, Seed: r.Seed}
	if r.HasParent {
		own.Parent = s.nameOf(by, up)
	}
	differs := own.Parent != r.Parent
	first := len(w.names)
	for i, name := range r.EngineHashes {
		called := a.name(off+uint32(i), by.tier(), name)
		differs = differs || called != name
		w.names = append(w.names, called)
	}
	w.lookups += 1 + len(r.EngineHashes)
	if !differs {
		w.names = w.names[:first]
		return Run{}, false
	}
	own.EngineHashes = w.names[first:len(w.names):len(w.names)]
	w.slots = append(w.slots, by.slot())
	last := len(w.slots) - 1
	own.Slots[by.tier()] = w.slots[last : last+1 : last+1]
	return own, true
}
