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
// If no group has full attention, the main group is one with windows. The tree has its
// blocks, and a prefix may lack the blocks before its last window.
//
// Slots without such groups cost nothing.

const (
	// maxGroups bounds the groups of a slot. Engines have a few.
	maxGroups = 64
	// maxGroupBlocks bounds the blocks of all groups of a slot. Blocks beyond it count
	// as missing.
	maxGroupBlocks = 1 << 20
	// maxKeptPath bounds the scratch memory that an Overlap keeps, in blocks of a prompt.
	maxKeptPath = 1 << 17
	// maxFiner bounds how many blocks of a group make one of the main group.
	maxFiner = 64
	// maxLookUps bounds the work of an Overlap for one slot, in blocks that are looked
	// up. Engines need at most a few for each block of a prompt. Blocks beyond it count
	// as missing.
	maxLookUps = 1 << 15
)

// GroupStore is a "stored" event of an attention group other than the main one, or
// (Main) describes the main one.
type GroupStore struct {
	Slot  uint32
	Group int32 // the engine's number of the group
	// Kind is the group's kind, if KindKnown; else the one of an earlier event holds.
	Kind      hybrid.Group
	KindKnown bool
	// Main: the group is the main one and does not need all blocks of a prefix. Only
	// this fact is recorded; the blocks of the main group come through Store.
	Main bool
	// MainBlockSize is the size of the blocks in the tree, in tokens.
	MainBlockSize uint64
	// EngineHashes name blocks that are now on the device. If Dense, each follows the
	// one before it, and the first follows Parent; otherwise blocks between them may be
	// missing.
	EngineHashes []uint64
	Parent       uint64
	HasParent    bool
	Dense        bool
	// Counted is as in Store.
	Counted bool
}

// slotGroups are the groups of a slot that have reported, except a main group that needs
// all blocks.
type slotGroups struct {
	kinds  []hybrid.Group
	blocks []groupBlocks // parallel to kinds
	// sparse: one of the groups is the main one.
	sparse   bool
	mainSize uint64 // size of the main group's blocks, in tokens
	losses   uint32 // how often makeProvisional was called
}

// groupBlocks are the blocks that a group has.
type groupBlocks struct {
	id     int32                  // the engine's number of the group
	main   bool                   // the tree has the blocks
	copies map[uint64]groupCopies // by engine hash
	// before has the hash of the block before, if it is known and the group's blocks are
	// smaller than the main group's: where no block of the main group ends, only this
	// names a block.
	before map[uint64]uint64
	// largest is the largest size of the maps so far, in names: maps do not shrink.
	largest int
}

// groupCopies is the number of copies of one block. losses is slotGroups.losses at the
// time of the count. If that has grown since, the block is provisional and the count is
// void: the first counted store sets it to one, a removal ends the block (see copies).
type groupCopies struct{ count, losses uint32 }

// countAt returns the count, or 0 if there have been losses since.
func (c groupCopies) countAt(losses uint32) uint32 {
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

// room returns how many names the maps have memory for.
func (g *slotGroups) room() (n int) {
	if g == nil {
		return 0
	}
	for i := range g.blocks {
		n += g.blocks[i].largest
	}
	return n
}

// find returns the index of a group, -1 if it has not reported.
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

// makeProvisional voids all counts, because messages were lost. It takes constant time:
// a publisher determines how often that happens.
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

// StoreInGroup applies a stored event of a group other than the main one. It reports
// whether the kind of the group is known; if not, the event is ignored.
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
		// Blocks that are not recorded count as missing, and so do their copies.
		return true
	}
	r.groups.blocks[at].store(ev, r.groups.losses, r.groups.kinds[at].BlockSize < ev.MainBlockSize)
	return true
}

// addGroup adds a group to a slot and returns its index. Beyond maxGroups it adds one
// last group without blocks, which reduces every prefix of the slot to nothing, and
// returns -1.
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
			b.copies[name] = groupCopies{c.countAt(losses) + 1, losses}
		}
		if finer && ev.Dense && known {
			b.before[name] = before
		}
		before, known = name, true
	}
	b.largest = max(b.largest, len(b.copies)+len(b.before))
}

func (b *groupBlocks) drop() { b.copies, b.before, b.largest = nil, nil, 0 }

// RemoveFromGroup removes one copy of each of these blocks, of a group other than the
// main one, from a slot's device. It reports whether the group has reported before.
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
		if n := b.copies[name].countAt(g.losses); n > 1 {
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

// ForgetGroups drops what is known about the groups of a slot, because the slot's engine
// has been replaced.
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

// HybridStats counts the prefixes that Overlap finds on slots whose engines have several
// groups.
type HybridStats struct {
	Whole     atomic.Uint64 // prefixes of the main group that all groups can serve
	Shortened atomic.Uint64 // prefixes of the main group that were cut
	Blocks    atomic.Uint64 // blocks that were cut off
}

// SetHybridStats sets where Overlap counts; several Spaces may share one. It must be
// called before the Space is used.
func (s *Space) SetHybridStats(st *HybridStats) { s.hybrid = st }

// endWhereAllGroupsServe shortens the device prefix of slots with several groups to what
// all groups can serve, and lengthens it where the main group does not need all blocks.
// Where the prefix changes, the slot's host and disk overlap becomes 0.
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
			cells = o.path[:s.tree.lastHeld(uint32(slot), o.path)]
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

// lastHeld returns the end, in blocks, of the last block of a path that a slot has on its
// device: no window ends later. It goes by runs, because most slots have nothing near the
// end of a long path.
func (t *tree) lastHeld(slot uint32, path []uint32) int {
	end := len(path)
	for end > 0 {
		nd := t.nodeAt(path[end-1])
		if t.sets.has(nd.holders[Device], slot) {
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

// groupedPrefix is a hybrid.Presence for one slot and a prefix of the prompt. The slot's
// main group has all blocks of the prefix or, if it is sparse, some.
type groupedPrefix struct {
	groups *slotGroups
	cells  []uint32 // of the prefix
	space  *Space
	slot   uint32
	left   int // look-ups that may still be made
}

// Has implements hybrid.Presence. A block of another group that ends where a block of the
// main group does has the same name. Blocks of a finer group that end elsewhere are found
// by going back from the next such end.
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
		return p.space.tree.holds(holderOf(p.slot, Device), cell)
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
