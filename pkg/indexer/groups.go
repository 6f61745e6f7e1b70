package indexer

import (
	"sync/atomic"

	"github.com/select-service/select-service/pkg/indexer/hybrid"
)

// The tree has the blocks of one attention group of an engine, its main one. Of the
// other groups of a hybrid model only the engine hashes of their blocks on the device
// are kept, per slot: engines call the blocks of all groups that end at the same token
// by the same hash. Overlap ends a slot's prefix where all of its groups can serve it.
//
// Where no group has full attention, the main one has windows: the tree has its blocks,
// a prefix may lack those before its last window.
//
// Slots without such groups cost nothing.

const (
	// maxGroups bounds the groups of a slot. Engines have a few.
	maxGroups = 64
	// maxGroupBlocks bounds the blocks of all groups of a slot. What is beyond is taken
	// as not there.
	maxGroupBlocks = 1 << 20
	// maxKeptPath bounds the scratch memory of an Overlap, in blocks of a prompt.
	maxKeptPath = 1 << 17
	// maxFiner bounds how many blocks of a group make one of the main group.
	maxFiner = 64
	// maxLookUps bounds the work of an Overlap for one slot, in blocks that are looked
	// up. Engines need at most a few for each block of a prompt. What is beyond is taken
	// as not there.
	maxLookUps = 1 << 15
)

// GroupStore is a stored event of a group other than the main one, or says what the main
// one needs.
type GroupStore struct {
	Slot  uint32
	Group int32 // the engine's number of it
	// Kind is the group's, if KindKnown; else it is that of an earlier event.
	Kind      hybrid.Group
	KindKnown bool
	// Main: the group is the main one, and does not need all blocks. Only that is noted:
	// its blocks are those of Store.
	Main bool
	// MainBlockSize is that of the blocks in the tree, in tokens.
	MainBlockSize uint64
	// EngineHashes are of blocks that are there now. Some of those between them may be
	// left out, unless Dense: then each follows the one before, the first Parent.
	EngineHashes []uint64
	Parent       uint64
	HasParent    bool
	Dense        bool
	// Counted is as in Store.
	Counted bool
}

// slotGroups are the groups of a slot that have reported, but for a main one that needs
// all blocks.
type slotGroups struct {
	kinds  []hybrid.Group
	blocks []groupBlocks // of kinds
	// sparse: one of the groups is the main one.
	sparse   bool
	mainSize uint64 // tokens of a block of the main group
	losses   uint32 // how often makeProvisional was called
}

// groupBlocks are the blocks that a group has.
type groupBlocks struct {
	id     int32
	main   bool                   // the tree has the blocks
	copies map[uint64]groupCopies // by engine hash
	// before has the hash of the block before, if it is known and the group's blocks are
	// smaller than the main group's: where no block of the main group ends, only this
	// names a block.
	before map[uint64]uint64
	// largest is the most names that there were at a time, which is what the maps take:
	// they do not shrink.
	largest int
}

// groupCopies are the copies of one block that were counted after so many losses. If
// there have been more since, the block is provisional and has none: the first counted
// store makes it one, a removal ends the block (see copies).
type groupCopies struct{ count, losses uint32 }

// after returns the copies that count after so many losses.
func (c groupCopies) after(losses uint32) uint32 {
	if c.losses != losses {
		return 0
	}
	return c.count
}

// size returns how many names are kept.
func (g *slotGroups) size() (n int) {
	if g == nil {
		return 0
	}
	for i := range g.blocks {
		n += len(g.blocks[i].copies) + len(g.blocks[i].before)
	}
	return n
}

// room returns for how many names there is memory.
func (g *slotGroups) room() (n int) {
	if g == nil {
		return 0
	}
	for i := range g.blocks {
		n += g.blocks[i].largest
	}
	return n
}

// find returns a group's number here, -1 if it has not reported.
func (g *slotGroups) find(id int32) int {
	if g == nil {
		return -1
	}
	for i := range g.blocks {
		if g.blocks[i].id == id {
			return i
		}
	}
	return -1
}

// makeProvisional: messages were lost, so that the copies are not known. It takes
// constant time, as a publisher loses as many as it likes.
func (g *slotGroups) makeProvisional() {
	if g != nil {
		g.losses++
	}
}

// clear drops all blocks. The groups stay: the engine has them.
func (g *slotGroups) clear() {
	if g == nil {
		return
	}
	for i := range g.blocks {
		g.blocks[i].drop()
	}
}

// StoreInGroup notes blocks of a group other than the main one on a slot's device. It
// reports whether the kind of the group is known; else the event means nothing.
func (s *Space) StoreInGroup(ev *GroupStore) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.ensureSlot(ev.Slot)
	at := r.groups.find(ev.Group)
	if at < 0 {
		if !ev.KindKnown {
			return false
		}
		at = s.addGroup(r, ev)
	} else if ev.KindKnown {
		r.groups.kinds[at] = ev.Kind
	}
	if at < 0 {
		return true
	}
	r.groups.mainSize = ev.MainBlockSize
	if ev.Main {
		r.groups.sparse, r.groups.blocks[at].main = true, true
		return true
	}
	defer s.settle(ev.Slot)
	if !s.admits(ev.Slot) || r.groups.size()+2*len(ev.EngineHashes) > 2*maxGroupBlocks {
		// Blocks that are not noted are taken as not there, and so are their copies.
		return true
	}
	r.groups.blocks[at].store(ev, r.groups.losses, r.groups.kinds[at].BlockSize < ev.MainBlockSize)
	return true
}

// addGroup returns the number of a new group of a slot. A slot of too many groups has
// one more that has no blocks, so that nothing is promised.
func (s *Space) addGroup(r *rank, ev *GroupStore) int {
	if r.groups == nil {
		r.groups = &slotGroups{}
		s.hybridSlots++
		s.tree.leaveOut(ev.Slot)
	}
	g := r.groups
	if len(g.kinds) > maxGroups {
		return -1
	}
	g.kinds, g.blocks = append(g.kinds, ev.Kind), append(g.blocks, groupBlocks{id: ev.Group})
	if len(g.kinds) > maxGroups {
		g.blocks[maxGroups].id = -1
		g.kinds[maxGroups] = hybrid.Group{BlockSize: ev.MainBlockSize}
		return -1
	}
	return len(g.kinds) - 1
}

func (b *groupBlocks) store(ev *GroupStore, losses uint32, finer bool) {
	if b.copies == nil {
		b.copies = make(map[uint64]groupCopies)
	}
	if finer && b.before == nil {
		b.before = make(map[uint64]uint64)
	}
	before, known := ev.Parent, ev.HasParent
	for _, name := range ev.EngineHashes {
		if c, held := b.copies[name]; !held || ev.Counted {
			b.copies[name] = groupCopies{c.after(losses) + 1, losses}
		}
		if finer && ev.Dense && known {
			b.before[name] = before
		}
		before, known = name, true
	}
	b.largest = max(b.largest, len(b.copies)+len(b.before))
}

func (b *groupBlocks) drop() { b.copies, b.before, b.largest = nil, nil, 0 }

// RemoveFromGroup takes one copy each of blocks of a group other than the main one from
// a slot's device. It reports whether the group has reported before.
func (s *Space) RemoveFromGroup(slot uint32, group int32, hashes []uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if int(slot) >= len(s.ranks) {
		return false
	}
	g := s.ranks[slot].groups
	at := g.find(group)
	if at < 0 {
		return false
	}
	b := &g.blocks[at]
	for _, name := range hashes {
		if n := b.copies[name].after(g.losses); n > 1 {
			b.copies[name] = groupCopies{n - 1, g.losses}
			continue
		}
		delete(b.copies, name)
		delete(b.before, name)
	}
	if len(b.copies) == 0 {
		b.drop()
	}
	s.settle(slot)
	return true
}

// HasGroups reports whether a slot's engine has reported groups beside the main one.
func (s *Space) HasGroups(slot uint32) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return int(slot) < len(s.ranks) && s.ranks[slot].groups != nil
}

// ForgetGroups forgets which groups a slot's engine has, as it is another one now.
func (s *Space) ForgetGroups(slot uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if int(slot) < len(s.ranks) {
		s.forgetGroups(slot)
		s.settle(slot)
	}
}

func (s *Space) forgetGroups(slot uint32) {
	if r := &s.ranks[slot]; r.groups != nil {
		r.groups = nil
		s.hybridSlots--
	}
}

// HybridStats counts the prefixes of slots whose engines have several groups, one for
// each slot and Overlap that finds one.
type HybridStats struct {
	Whole     atomic.Uint64 // all groups could serve what the main one has
	Shortened atomic.Uint64 // not all of it
	Blocks    atomic.Uint64 // by which these were shorter
}

// SetHybridStats says where Overlap counts, for several Spaces together. To be called
// before the Space is used.
func (s *Space) SetHybridStats(st *HybridStats) { s.hybrid = st }

// endWhereAllGroupsServe shortens the prefixes on the device of slots that have several
// groups, and lengthens those of slots whose main group needs less than all blocks. What
// host and disk continue behind a prefix that was changed is out.
func (s *Space) endWhereAllGroupsServe(local []uint64, o *Overlap) {
	o.path = o.path[:0]
	for slot := range s.ranks {
		g := s.ranks[slot].groups
		if g == nil {
			continue
		}
		held := o.device.At(uint32(slot))
		if held == 0 && !g.sparse || s.clearing[slot/64]>>(slot%64)&1 == 1 {
			continue
		}
		if len(o.path) == 0 {
			o.path = s.tree.appendPath(o.path, local)
		}
		cells := o.path[:held]
		if g.sparse {
			cells = o.path[:s.lastHeld(uint32(slot), o.path)]
		}
		o.prefix = groupedPrefix{groups: g, cells: cells, space: s, slot: uint32(slot), left: maxLookUps}
		length := hybrid.Boundary(uint64(len(cells))*g.mainSize, g.mainSize, g.kinds, &o.prefix)
		whole := uint32(length / max(g.mainSize, 1))
		if whole != held {
			o.device.Set(uint32(slot), whole)
			if o.lower.Has(uint32(slot)) {
				o.host[slot], o.disk[slot] = 0, 0
			}
		}
		switch {
		case whole < held:
			s.hybrid.Shortened.Add(1)
			s.hybrid.Blocks.Add(uint64(held - whole))
		case !g.sparse:
			s.hybrid.Whole.Add(1)
		}
	}
	o.prefix = groupedPrefix{}
	if cap(o.path) > maxKeptPath {
		o.path = nil
	}
}

// lastHeld returns where the last block of a path ends that a slot has on its device: a
// window ends there at the latest. It looks at runs, as most slots have nothing of the
// end of a long path.
func (s *Space) lastHeld(slot uint32, path []uint32) int {
	end := len(path)
	for end > 0 {
		nd := s.tree.nodeAt(path[end-1])
		if s.tree.sets.has(nd.holders[Device], slot) {
			break
		}
		end -= int(path[end-1]-nd.off) + 1
	}
	return end
}

// appendPath appends the cells of a prompt's blocks that are in the tree.
func (t *tree) appendPath(dst []uint32, local []uint64) []uint32 {
	for id := uint32(root); len(local) > 0; {
		if id = t.child(id, local[0]); id == 0 {
			break
		}
		n := t.match(position{id, 0}, local)
		nd := t.node(id)
		for i := range uint32(n) {
			dst = append(dst, nd.off+i)
		}
		if local = local[n:]; n < int(nd.n) {
			break
		}
	}
	return dst
}

// groupedPrefix is a prefix that a slot's main group has, or of which it may have some
// blocks, as a hybrid.Presence.
type groupedPrefix struct {
	groups *slotGroups
	cells  []uint32 // of its blocks
	space  *Space
	slot   uint32
	left   int // blocks that may be looked up yet
}

// Has implements hybrid.Presence. The slot's names of the main group's blocks lead to
// the other groups' blocks that end where they do. From there a finer group's blocks
// are found backwards.
func (p *groupedPrefix) Has(group int, end uint64) bool {
	b := &p.groups.blocks[group]
	if p.left--; p.left < 0 || len(b.copies) == 0 && !b.main {
		return false
	}
	main := p.groups.mainSize
	block := (end + main - 1) / main // the first one that does not end before
	if block == 0 || block > uint64(len(p.cells)) {
		return false
	}
	cell := p.cells[block-1]
	if b.main {
		return p.space.holds(holderOf(p.slot, Device), cell)
	}
	name := p.space.ranks[p.slot].aliases.name(cell, Device, p.space.tree.cells.name(cell))
	if back := block*main - end; back > 0 {
		size := p.groups.kinds[group].BlockSize
		if back%size != 0 || back/size >= maxFiner {
			return false
		}
		for p.left -= int(back / size); back > 0; back -= size {
			before, known := b.before[name]
			if !known {
				return false
			}
			name = before
		}
	}
	_, held := b.copies[name]
	return held
}
