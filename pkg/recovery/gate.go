package recovery

import (
	"sync"
	"sync/atomic"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
)

// Bounds of what gates remember while a recovery runs.
const (
	// maxMarks bounds the block names of one scope of which live events said
	// something that a dump must not undo; beyond it the dump of the rank that
	// has too many is refused.
	maxMarks = 1 << 20
	// maxDeparted bounds the ranks that left; beyond it the dump of all is refused.
	maxDeparted = 1 << 16
)

// Gate stands before the index of one scope. Live events pass it, and while a
// recovery runs it merges the entries of dumps with them so that the result is
// as if the whole dump had come first: what was removed or cleared live is not
// brought back, and a rank that has left gets nothing more. It is a
// kvevents.Index. A Gate is safe for concurrent use; live events of one slot
// come one at a time.
type Gate struct {
	space *indexer.Space
	// merging: a recovery runs. It is written under mu.
	merging atomic.Bool

	// mu guards what follows. It comes before the index's lock.
	mu           sync.Mutex
	ranks        []gateRank                // by slot
	departed     map[catalog.Rank]struct{} // while merging
	departedFull bool                      // left has too many
	markCount    int                       // of all ranks
	markLimit    int                       // of marks
}

// gateRank is what the gate knows of a slot.
type gateRank struct {
	rank     catalog.Rank
	assigned bool
	dumped   bool        // the slot may hold blocks from a dump
	refused  MergeResult // of dump entries, if not Applied
	marks    map[uint64]mark
}

// mark is what live events said of a block's name, and what became of its block
// in the dump: bits per tier from the given ones on.
type mark uint16

const (
	removedMark  mark = 1 << 0 // removed from the tier
	pendingMark  mark = 1 << 4 // stored by name in the tier, before the index knew it
	orphanedMark mark = 1 << 8 // in the index, waits for a parent that was removed
	anyRemoved   mark = 0xf
)

// MergeResult is what became of an entry of a dump.
type MergeResult uint8

// Results of Gate.Merge.
const (
	Applied         MergeResult = iota
	ParentUnknown               // the parent is not known: nothing is stored
	SlotLost                    // the slot is not the rank's, or not any more
	Superseded                  // live events have made the dump of this rank obsolete
	TooManyRemovals             // too much was removed live, or too many ranks left, to tell what may come back
	NotRecovering               // no recovery runs
)

// NewGate returns the gate of an index, which nobody else may write to.
// recovering says that a recovery runs, until End.
func NewGate(space *indexer.Space, recovering bool) *Gate {
	g := &Gate{space: space, markLimit: maxMarks}
	g.merging.Store(recovering)
	return g
}

// AssignSlot makes slot the place of r. It does nothing if it is.
func (g *Gate) AssignSlot(slot uint32, r catalog.Rank) {
	if stale := g.assign(slot, r); stale {
		g.space.Forget(slot)
	}
}

func (g *Gate) assign(slot uint32, r catalog.Rank) (stale bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	k := g.rankLocked(slot)
	if k.assigned && k.rank == r {
		return false
	}
	stale = k.assigned
	g.dropMarksLocked(k)
	*k = gateRank{rank: r, assigned: true}
	return stale
}

// ReleaseSlot empties a slot whose rank has left. Entries of dumps for the rank are
// refused from now on.
func (g *Gate) ReleaseSlot(slot uint32) {
	g.release(slot)
	g.space.Forget(slot)
}

func (g *Gate) release(slot uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	k := g.rankLocked(slot)
	g.dropMarksLocked(k)
	if g.merging.Load() && k.assigned {
		if g.departedFull = g.departedFull || len(g.departed) == maxDeparted; !g.departedFull {
			if g.departed == nil {
				g.departed = make(map[catalog.Rank]struct{})
			}
			g.departed[k.rank] = struct{}{}
		}
	}
	*k = gateRank{}
}

// Ranks returns the ranks that have a slot, by slot.
func (g *Gate) Ranks() map[uint32]catalog.Rank {
	g.mu.Lock()
	defer g.mu.Unlock()
	ranks := make(map[uint32]catalog.Rank, len(g.ranks))
	for slot, k := range g.ranks {
		if k.assigned {
			ranks[uint32(slot)] = k.rank
		}
	}
	return ranks
}

// Empty tells whether no rank has a slot.
func (g *Gate) Empty() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.ranks {
		if g.ranks[i].assigned {
			return false
		}
	}
	return true
}

// EndRecovery is the end of the recovery: what was remembered for it goes, and entries
// of dumps are refused.
func (g *Gate) EndRecovery() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.ranks {
		g.ranks[i].marks = nil
	}
	g.departed, g.departedFull, g.markCount = nil, false, 0
	g.merging.Store(false)
}

// rankLocked returns a slot's entry, until the next call.
func (g *Gate) rankLocked(slot uint32) *gateRank {
	if n := int(slot) + 1 - len(g.ranks); n > 0 {
		g.ranks = append(g.ranks, make([]gateRank, n)...)
	}
	return &g.ranks[slot]
}

// dropMarksLocked forgets what live events said of a rank.
func (g *Gate) dropMarksLocked(k *gateRank) {
	g.markCount -= len(k.marks)
	k.marks = nil
}

// refuseLocked ends the merging of a rank.
func (g *Gate) refuseLocked(k *gateRank, why MergeResult) {
	g.dropMarksLocked(k)
	k.refused = why
}
