package recovery

import "github.com/select-service/select-service/pkg/indexer"

// Live events. While a recovery runs they leave marks, under the gate's lock;
// the index is changed outside of it. A dump entry that comes in between is
// merged by the marks, which are there by then, so either order gives the same.

// Store applies a live stored event.
func (g *Gate) Store(ev *indexer.Store) indexer.Outcome {
	if g.merging.Load() {
		g.unmark(ev.Slot, ev.EngineHashes, (removedMark|pendingMark)<<ev.Tier)
	}
	return g.space.Store(ev)
}

// StoreByEngineHash applies a live stored event without tokens. Blocks that the index
// does not know may yet come with a dump.
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

// Replayed takes the news that a replay of everything that a rank's engine ever
// sent begins: it replaces the rank's part of the dump.
func (g *Gate) Replayed(slot uint32) {
	if g.supersede(slot) {
		g.space.Clear(slot)
	}
}

// supersede refuses what is still to come of a rank's dump, and tells whether any
// of it has come.
func (g *Gate) supersede(slot uint32) (dumped bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	k := g.rankLocked(slot)
	dumped, k.dumped = k.dumped, false
	g.refuseLocked(k, Superseded)
	return dumped
}

// ParentSeed returns the block seed under which a rank's block was hashed.
func (g *Gate) ParentSeed(slot uint32, parent uint64) (seed uint64, ok bool) {
	return g.space.ParentSeed(slot, parent)
}

// mark sets and clears bits of names.
func (g *Gate) mark(slot uint32, names []uint64, set, clear mark) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.merging.Load() {
		g.markLocked(g.rankLocked(slot), names, set, clear)
	}
}

func (g *Gate) markLocked(k *gateRank, names []uint64, set, clear mark) {
	if k.refused != Applied {
		return // no dump of this rank is going to be merged
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

// unmark clears bits of names.
func (g *Gate) unmark(slot uint32, names []uint64, clear mark) {
	g.mu.Lock()
	defer g.mu.Unlock()
	k := g.rankLocked(slot)
	if len(k.marks) == 0 {
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
