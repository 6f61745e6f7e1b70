package recovery

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
)

// Bounds of what gates remember while a recovery runs.
const (
	// maxMarks bounds the block names of one scope for which a gate remembers
	// live events. A rank whose event exceeds it gets nothing more from dumps.
	maxMarks = 1 << 20
	// maxDeparted bounds the ranks that have left and are remembered. Beyond it no
	// rank of the scope gets anything more from dumps.
	maxDeparted = 1 << 16
)

// Gate is in front of the index of one scope. Live events pass through it. While
// a recovery runs, it merges the entries of dumps with them, with the result that
// the whole dump had come first: it does not restore what live events removed or
// cleared, and stores nothing for a rank that has left. It is a kvevents.Index.
//
// A Gate is safe for concurrent use, but the live events of one slot must come
// one at a time.
type Gate struct {
	space *indexer.Space
	// merging: a recovery runs. It is written under mu.
	merging atomic.Bool

	// mu guards what follows. Lock order: mu before the index's lock.
	mu           sync.Mutex
	ranks        catalog.SlotTable
	merges       map[uint32]*gateMerge     // by slot
	departed     map[catalog.Rank]struct{} // ranks that have left while merging
	departedFull bool                      // more than maxDeparted have left
	markCount    int                       // number of marks of all ranks
	markLimit    int                       // maxMarks, less in tests
}

// gateMerge is the state of merging dumps with the live events of one slot. A slot
// without one is treated as if it had the zero gateMerge.
type gateMerge struct {
	dumped  bool            // the slot may hold blocks from a dump
	refused MergeResult     // why entries of dumps are refused; Applied if they are not
	marks   map[uint64]mark // by name; nil unless merging
}

// mark is a bit set of what live events have done with a block's name, and of what
// happened to the block in the dump. removedMark, pendingMark and orphanedMark each
// have a bit for every tier: shift them left by the tier.
type mark uint16

const (
	removedMark  mark = 1 << 0 // removed from the tier
	pendingMark  mark = 1 << 4 // stored in the tier by engine hash, but unknown to the index then
	orphanedMark mark = 1 << 8 // an orphan in the index, because its parent was removed
	anyRemoved   mark = 0xf    // removedMark in any tier
)

// MergeResult says what was done with an entry of a dump.
type MergeResult uint8

// Results of Gate.Merge.
const (
	Applied         MergeResult = iota
	ParentUnknown               // the parent is unknown: nothing is stored
	SlotLost                    // the rank does not have the slot, or no longer has it
	Superseded                  // live events replace the dump of this rank
	TooManyRemovals             // more live removals, or ranks that left, than can be remembered
	NotRecovering               // no recovery runs
)

// NewGate returns the gate of an index, which from then on must be changed only
// through the gate. recovering: a recovery runs, until EndRecovery.
func NewGate(space *indexer.Space, recovering bool) *Gate {
	g := &Gate{space: space, markLimit: maxMarks}
	g.merging.Store(recovering)
	return g
}

// AssignSlot gives a slot to a rank. If another rank had the slot, that one's blocks
// are removed. It does nothing if the rank has the slot already.
func (g *Gate) AssignSlot(slot uint32, r catalog.Rank) {
	if stale := g.assign(slot, r); stale {
		g.space.Forget(slot)
	}
}

func (g *Gate) assign(slot uint32, r catalog.Rank) (stale bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ranks.Has(slot, r) {
		return false
	}
	_, stale = g.ranks.Rank(slot)
	g.forgetMergeLocked(slot)
	g.ranks.Release(slot)
	if former, ok := g.ranks.Slot(r); ok {
		g.ranks.Release(former)
	}
	g.ranks.Assign(slot, r)
	return stale
}

// ReleaseSlot removes the blocks of a slot whose rank has left. Entries of
// dumps for that rank are refused from now on.
func (g *Gate) ReleaseSlot(slot uint32) {
	g.release(slot)
	g.space.Forget(slot)
}

func (g *Gate) release(slot uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.forgetMergeLocked(slot)
	if r, assigned := g.ranks.Rank(slot); assigned && g.merging.Load() {
		if g.departedFull = g.departedFull || len(g.departed) == maxDeparted; !g.departedFull {
			if g.departed == nil {
				g.departed = make(map[catalog.Rank]struct{})
			}
			g.departed[r] = struct{}{}
		}
	}
	g.ranks.Release(slot)
}

// Ranks returns the ranks that have a slot, by slot.
func (g *Gate) Ranks() map[uint32]catalog.Rank {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Collect(g.ranks.All())
}

// Has reports whether a rank has the slot.
func (g *Gate) Has(slot uint32, r catalog.Rank) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ranks.Has(slot, r)
}

// EndRecovery ends the recovery: the gate drops the state that it kept for it, and
// refuses further entries of dumps.
func (g *Gate) EndRecovery() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for slot, k := range g.merges {
		if k.marks = nil; !k.dumped {
			delete(g.merges, slot)
		}
	}
	g.departed, g.departedFull, g.markCount = nil, false, 0
	g.merging.Store(false)
}

// mergeLocked returns the state of a slot, and creates it if there is none.
func (g *Gate) mergeLocked(slot uint32) *gateMerge {
	k := g.merges[slot]
	if k == nil {
		if g.merges == nil {
			g.merges = make(map[uint32]*gateMerge)
		}
		k = new(gateMerge)
		g.merges[slot] = k
	}
	return k
}

// forgetMergeLocked forgets the state of a slot.
func (g *Gate) forgetMergeLocked(slot uint32) {
	if k := g.merges[slot]; k != nil {
		g.dropMarksLocked(k)
		delete(g.merges, slot)
	}
}

// dropMarksLocked drops the marks of a rank.
func (g *Gate) dropMarksLocked(k *gateMerge) {
	g.markCount -= len(k.marks)
	k.marks = nil
}

// refuseLocked makes the gate refuse all further dump entries of a rank.
func (g *Gate) refuseLocked(k *gateMerge, why MergeResult) {
	g.dropMarksLocked(k)
	k.refused = why
}

// Live events. While a recovery runs, they first set marks, under g.mu, and then
// change the index, without g.mu. A dump entry in between is merged according to the
// marks, so that the result does not depend on the order.

// Store applies a live stored event.
func (g *Gate) Store(ev *indexer.Store) indexer.Outcome {
	if g.merging.Load() {
		g.unmark(ev.Slot, ev.EngineHashes, (removedMark|pendingMark)<<ev.Tier)
	}
	return g.space.Store(ev)
}

// StoreByEngineHash applies a live stored event without tokens. Blocks that the
// index does not know may still come with a dump; they are then stored in the
// tier too.
func (g *Gate) StoreByEngineHash(slot uint32, t indexer.Tier, names []uint64) (resolved, unresolved int) {
	if !g.merging.Load() {
		return g.space.StoreByEngineHash(slot, t, names)
	}
	g.unmark(slot, names, removedMark<<t)
	g.mark(slot, names, pendingMark<<t, 0)
	resolved, unresolved = g.space.StoreByEngineHash(slot, t, names)
	if unresolved == 0 {
		g.unmark(slot, names, pendingMark<<t)
	}
	return resolved, unresolved
}

// Remove applies a live removed event.
func (g *Gate) Remove(slot uint32, t indexer.Tier, names []uint64) (removed, unknown int) {
	if g.merging.Load() {
		g.mark(slot, names, removedMark<<t, pendingMark<<t)
	}
	return g.space.Remove(slot, t, names)
}

// Clear applies a live cleared event.
func (g *Gate) Clear(slot uint32) {
	g.supersede(slot)
	g.space.Clear(slot)
}

// Replayed removes what a dump has brought for a slot and refuses the rest,
// because a replay of everything that the rank's engine ever sent begins.
func (g *Gate) Replayed(slot uint32) {
	if g.supersede(slot) {
		g.space.Clear(slot)
	}
}

// supersede makes the gate refuse the rest of a rank's dump, because live events
// replace it. It reports whether the slot may hold blocks from a dump.
func (g *Gate) supersede(slot uint32) (dumped bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.merges[slot] == nil && !g.merging.Load() {
		return false // there is no dump to refuse
	}
	k := g.mergeLocked(slot)
	dumped, k.dumped = k.dumped, false
	g.refuseLocked(k, Superseded)
	return dumped
}

// MakeProvisional is that of the index: the number of copies of a slot's blocks is no
// longer known.
func (g *Gate) MakeProvisional(slot uint32) { g.space.MakeProvisional(slot) }

// Dumps contain nothing of attention groups other than the main one, and our own dumps
// nothing at all of ranks with such groups. So live events of these groups need no marks.

// StoreInGroup applies a live stored event of such a group.
func (g *Gate) StoreInGroup(ev *indexer.GroupStore) bool { return g.space.StoreInGroup(ev) }

// RemoveFromGroup applies a live removed event of such a group.
func (g *Gate) RemoveFromGroup(slot uint32, group int32, hashes []uint64) bool {
	return g.space.RemoveFromGroup(slot, group, hashes)
}

// ForgetGroups is that of the index: another engine has taken the slot's rank.
func (g *Gate) ForgetGroups(slot uint32) { g.space.ForgetGroups(slot) }

// ParentSeed returns the block seed of the block that a slot holds under a
// name.
func (g *Gate) ParentSeed(slot uint32, parent uint64) (seed uint64, ok bool) {
	return g.space.ParentSeed(slot, parent)
}

// mark sets and clears bits of the marks of names.
func (g *Gate) mark(slot uint32, names []uint64, set, clear mark) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.merging.Load() {
		g.markLocked(g.mergeLocked(slot), names, set, clear)
	}
}

func (g *Gate) markLocked(k *gateMerge, names []uint64, set, clear mark) {
	if k.refused != Applied {
		return // nothing more of a dump will be merged for this rank
	}
	if k.marks == nil {
		k.marks = make(map[uint64]mark)
	}
	before := len(k.marks)
	for _, name := range names {
		k.marks[name] = k.marks[name]&^clear | set
	}
	if g.markCount += len(k.marks) - before; g.markCount > g.markLimit {
		g.refuseLocked(k, TooManyRemovals)
	}
}

// unmark clears bits of the marks of names.
func (g *Gate) unmark(slot uint32, names []uint64, clear mark) {
	g.mu.Lock()
	defer g.mu.Unlock()
	k := g.merges[slot]
	if k == nil || len(k.marks) == 0 {
		return
	}
	for _, name := range names {
		m, ok := k.marks[name]
		if !ok {
			continue
		}
		if m &^= clear; m != 0 {
			k.marks[name] = m
		} else {
			delete(k.marks, name)
			g.markCount--
		}
	}
}

// Entries of dumps.

// Merge merges a stored event of a dump. r is the rank of the blocks, ev.Slot the slot
// that the caller believes it to have. stored counts the blocks that the slot holds now
// and did not hold before. They are provisional, because a dump does not say how many
// copies there are (decision N3). Live events wait during the call, so that a long event
// should be merged in parts.
func (g *Gate) Merge(r catalog.Rank, ev *indexer.Store) (stored int, res MergeResult) {
	g.mu.Lock()
	defer g.mu.Unlock()
	k, res := g.admitLocked(ev.Slot, r)
	if res != Applied {
		return 0, res
	}
	byName := ev.SeedKnown && ev.Seed == indexer.Unidentified // such blocks need no parent
	if !byName && ev.HasParent && ev.Parent != 0 && !g.knowsParentLocked(k, ev.Slot, ev.Parent) {
		return 0, ParentUnknown
	}
	k.dumped = true
	provisional := *ev
	provisional.Provisional = true
	out := g.space.Store(&provisional)
	if out.Orphaned > 0 {
		g.markLocked(k, ev.EngineHashes, orphanedMark, 0)
	}
	return out.Stored - g.applyMarksLocked(k, ev), Applied
}

// admitLocked returns the merge state of a rank and Applied, or the reason why dump
// entries of the rank are refused.
func (g *Gate) admitLocked(slot uint32, r catalog.Rank) (*gateMerge, MergeResult) {
	if !g.merging.Load() {
		return nil, NotRecovering
	}
	if g.departedFull {
		return nil, TooManyRemovals
	}
	if !g.ranks.Has(slot, r) {
		return nil, SlotLost
	}
	if _, left := g.departed[r]; left {
		return nil, SlotLost
	}
	k := g.mergeLocked(slot)
	return k, k.refused
}

// knowsParentLocked reports whether a slot holds the block with a name, or lacks it only
// because a live event removed it or a block before it. In the latter case blocks after
// it become orphans in the index.
func (g *Gate) knowsParentLocked(k *gateMerge, slot uint32, name uint64) bool {
	if k != nil && k.marks[name]&(anyRemoved|orphanedMark) != 0 {
		return true
	}
	_, known := g.space.ParentSeed(slot, name)
	return known
}

// applyMarksLocked applies to blocks that were just stored from a dump what earlier live
// events did with their names. It returns the number of blocks that it removed.
func (g *Gate) applyMarksLocked(k *gateMerge, ev *indexer.Store) (removed int) {
	if len(k.marks) == 0 {
		return 0
	}
	var gone, named [indexer.NumTiers][]uint64
	for _, name := range ev.EngineHashes {
		m := k.marks[name]
		if m&(removedMark<<ev.Tier) != 0 {
			gone[ev.Tier] = append(gone[ev.Tier], name)
		}
		for t := range indexer.Tier(indexer.NumTiers) {
			if m&(pendingMark<<t) != 0 {
				named[t] = append(named[t], name)
			}
		}
	}
	for t := range indexer.Tier(indexer.NumTiers) {
		if len(gone[t]) > 0 {
			n, _ := g.space.Remove(ev.Slot, t, gone[t])
			removed += n
		}
		if len(named[t]) > 0 {
			g.space.StoreByEngineHash(ev.Slot, t, named[t])
		}
	}
	return removed
}

// MergeRemoved merges a removed event of a dump.
func (g *Gate) MergeRemoved(slot uint32, r catalog.Rank, t indexer.Tier, names []uint64) MergeResult {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, res := g.admitLocked(slot, r)
	if res == Applied {
		g.space.Remove(slot, t, names)
	}
	return res
}

// MergeCleared merges a cleared event of a dump.
func (g *Gate) MergeCleared(slot uint32, r catalog.Rank) MergeResult {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, res := g.admitLocked(slot, r)
	if res == Applied {
		g.space.Clear(slot)
	}
	return res
}

// KnowsParent reports whether Merge would accept blocks whose parent has that
// name.
func (g *Gate) KnowsParent(slot uint32, name uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.knowsParentLocked(g.merges[slot], slot, name)
}
