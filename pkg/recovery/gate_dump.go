package recovery

import (
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
)

// Merge merges a stored event of a dump: its blocks are r's, and its slot is
// what the caller took for r's. stored counts blocks that are new. Live events
// wait meanwhile, so long events come in parts.
func (g *Gate) Merge(r catalog.Rank, ev *indexer.Store) (stored int, res MergeResult) {
	g.mu.Lock()
	defer g.mu.Unlock()
	k, res := g.admitLocked(ev.Slot, r)
	if res != Applied {
		return 0, res
	}
	if ev.HasParent && ev.Parent != 0 && !g.knowsParentLocked(k, ev.Slot, ev.Parent) {
		return 0, ParentUnknown
	}
	k.dumped = true
	out := g.space.Store(ev)
	if out.Orphaned > 0 {
		g.markLocked(k, ev.EngineHashes, orphanedMark, 0)
	}
	return out.Stored - g.applyMarksLocked(k, ev), Applied
}

// admitLocked says whether dump entries of a rank are merged.
func (g *Gate) admitLocked(slot uint32, r catalog.Rank) (*gateRank, MergeResult) {
	if !g.merging.Load() {
		return nil, NotRecovering
	}
	if g.departedFull {
		return nil, TooManyRemovals
	}
	if int(slot) >= len(g.ranks) || !g.ranks[slot].assigned || g.ranks[slot].rank != r {
		return nil, SlotLost
	}
	if _, left := g.departed[r]; left {
		return nil, SlotLost
	}
	return &g.ranks[slot], g.ranks[slot].refused
}

// knowsParentLocked tells whether a block is in the index, or would be if it had not
// been removed live: then the blocks behind it are orphans like any others.
func (g *Gate) knowsParentLocked(k *gateRank, slot uint32, name uint64) bool {
	if k.marks[name]&(anyRemoved|orphanedMark) != 0 {
		return true
	}
	_, known := g.space.ParentSeed(slot, name)
	return known
}

// applyMarksLocked does to blocks that were just stored what live events said of
// them before, and returns how many that takes away again.
func (g *Gate) applyMarksLocked(k *gateRank, ev *indexer.Store) (removed int) {
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

// KnowsParent tells whether Recover would take blocks behind a block of that name.
func (g *Gate) KnowsParent(slot uint32, name uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.knowsParentLocked(g.rankLocked(slot), slot, name)
}
