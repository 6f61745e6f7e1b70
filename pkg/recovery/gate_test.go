package recovery

import (
	"sync"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
)

var _ kvevents.Index = (*Gate)(nil)

// gated is a gate with the index behind it and one rank in slot 0.
type gated struct {
	*Gate
	t     *testing.T
	space *indexer.Space
	rank  catalog.Rank
}

func newGated(t *testing.T) *gated {
	g := &gated{t: t, space: indexer.New(), rank: catalog.Rank{Worker: 7}}
	g.Gate = NewGate(g.space, true)
	g.AssignSlot(0, g.rank)
	return g
}

// chain is an event of slot 0: blocks from … to-1 of a chain whose block i is
// named 100+i and hashed i+1.
func chain(t indexer.Tier, from, to uint64) *indexer.Store {
	ev := &indexer.Store{Tier: t, Parent: 99 + from, HasParent: from > 0}
	for i := from; i < to; i++ {
		ev.EngineHashes, ev.Local = append(ev.EngineHashes, 100+i), append(ev.Local, i+1)
	}
	return ev
}

func (g *gated) dump(ev *indexer.Store, want MergeResult) {
	g.t.Helper()
	if _, res := g.Merge(g.rank, ev); res != want {
		g.t.Errorf("dump of %v: result %d, want %d", ev.EngineHashes, res, want)
	}
}

func (g *gated) want(device, host uint32) {
	g.t.Helper()
	var o indexer.Overlap
	g.space.Overlap([]uint64{1, 2, 3, 4, 5, 6, 7, 8}, &o)
	if d, h, _ := o.At(0); d != device || h != host {
		g.t.Errorf("%d device and %d host blocks, want %d and %d", d, h, device, host)
	}
}

// TestLiveRemovals: what was removed live, the dump does not bring back; what
// was stored again live stays.
func TestLiveRemovals(t *testing.T) {
	g := newGated(t)
	g.Remove(0, indexer.Device, []uint64{103, 102})
	g.dump(chain(indexer.Device, 0, 4), Applied)
	g.want(2, 0)
	g.dump(chain(indexer.Host, 2, 4), Applied) // removed from the device only
	g.want(2, 2)
	g.Store(chain(indexer.Device, 2, 3))
	g.want(3, 1)
	g.dump(chain(indexer.Device, 0, 4), Applied) // another peer's dump
	g.want(3, 1)
	g.Store(chain(indexer.Device, 3, 4))
	g.want(4, 0)
}

// TestDumpedCopies: a block of a dump has one copy after the first live store, which
// the dump may have had already, and is gone with the first removal.
func TestDumpedCopies(t *testing.T) {
	counted := func(from, to uint64) *indexer.Store {
		ev := chain(indexer.Device, from, to)
		ev.Counted = true
		return ev
	}
	g := newGated(t)
	g.Store(counted(0, 1)) // two copies of the first block
	g.Store(counted(0, 1))
	g.dump(chain(indexer.Device, 0, 4), Applied)
	g.Store(counted(1, 2))
	g.EndRecovery()
	g.Remove(0, indexer.Device, []uint64{103})
	g.want(3, 0)
	g.Store(counted(2, 3))
	g.Store(counted(2, 3))
	g.Remove(0, indexer.Device, []uint64{102})
	g.want(3, 0)
	g.Remove(0, indexer.Device, []uint64{101})
	g.want(1, 0)
	g.Remove(0, indexer.Device, []uint64{100})
	g.want(0, 0) // the dump made it provisional
}

// TestRemovedParent: blocks behind one that was removed live are kept, out of
// all answers, until it comes back (decision K7).
func TestRemovedParent(t *testing.T) {
	g := newGated(t)
	g.Remove(0, indexer.Device, []uint64{101})
	g.dump(chain(indexer.Device, 3, 4), ParentUnknown)
	g.dump(chain(indexer.Device, 0, 2), Applied)
	g.dump(chain(indexer.Device, 2, 3), Applied)
	g.dump(chain(indexer.Device, 3, 4), Applied)
	g.want(1, 0)
	g.EndRecovery()
	g.Store(chain(indexer.Device, 1, 2))
	g.want(4, 0)
}

// TestLiveNames: blocks that a live event offloads by name before the dump has
// brought them are offloaded when it does.
func TestLiveNames(t *testing.T) {
	g := newGated(t)
	if resolved, unresolved := g.StoreByEngineHash(0, indexer.Host, []uint64{101, 102, 103}); resolved != 0 || unresolved != 3 {
		t.Fatal(resolved, unresolved)
	}
	g.Remove(0, indexer.Device, []uint64{101, 102, 103})
	g.Remove(0, indexer.Host, []uint64{103})
	g.dump(chain(indexer.Device, 0, 4), Applied)
	g.want(1, 2)
}

// TestCleared: a rank that was cleared live, or is replayed from the start, gets
// nothing more from dumps; others do.
func TestCleared(t *testing.T) {
	for name, clear := range map[string]func(*Gate){
		"cleared":  func(g *Gate) { g.Clear(0) },
		"replayed": func(g *Gate) { g.Replayed(0) },
	} {
		t.Run(name, func(t *testing.T) {
			g := newGated(t)
			g.dump(chain(indexer.Device, 0, 2), Applied)
			clear(g.Gate)
			g.want(0, 0)
			g.dump(chain(indexer.Device, 0, 2), Superseded)
			g.Store(chain(indexer.Device, 0, 1))
			g.want(1, 0)
			g.AssignSlot(1, catalog.Rank{Worker: 8})
			ev := chain(indexer.Device, 0, 2)
			ev.Slot = 1
			if _, res := g.Merge(catalog.Rank{Worker: 8}, ev); res != Applied {
				t.Errorf("another rank: %d", res)
			}
		})
	}
}

// TestReplayAfterRecovery: a replay from the start replaces recovered blocks
// whenever it comes, but only those.
func TestReplayAfterRecovery(t *testing.T) {
	g := newGated(t)
	g.dump(chain(indexer.Device, 0, 4), Applied)
	g.EndRecovery()
	g.dump(chain(indexer.Device, 0, 5), NotRecovering)
	g.want(4, 0)
	g.Replayed(0)
	g.want(0, 0)
	g.Store(chain(indexer.Device, 0, 3))
	g.Replayed(0) // at a reconnect
	g.want(3, 0)
}

// TestLeft: a rank that has left gets nothing more, neither in its slot, which
// may be another rank's, nor in a new one.
func TestLeft(t *testing.T) {
	g := newGated(t)
	g.dump(chain(indexer.Device, 0, 4), Applied)
	g.Remove(0, indexer.Device, []uint64{200})
	g.ReleaseSlot(0)
	g.want(0, 0)
	g.dump(chain(indexer.Device, 0, 4), SlotLost)
	g.AssignSlot(0, catalog.Rank{Worker: 9})
	g.dump(chain(indexer.Device, 0, 4), SlotLost)
	g.AssignSlot(3, g.rank)
	ev := chain(indexer.Device, 0, 4)
	ev.Slot = 3
	g.dump(ev, SlotLost)
	if _, res := g.Merge(catalog.Rank{Worker: 9}, chain(indexer.Device, 0, 1)); res != Applied {
		t.Errorf("the slot's new rank: %d", res)
	}
	if ranks := g.Ranks(); len(ranks) != 2 || ranks[0].Worker != 9 || ranks[3] != g.rank {
		t.Errorf("ranks %v", ranks)
	}
	if g.markCount != 0 {
		t.Errorf("%d marks are left", g.markCount)
	}
	g.dump(&indexer.Store{Slot: 1 << 20}, SlotLost)
	g.ReleaseSlot(0)
	g.ReleaseSlot(3)
	if ranks := g.Ranks(); len(ranks) != 0 {
		t.Errorf("ranks %v are left", ranks)
	}
}

// TestSlotTakenOver: a slot that is assigned to another rank without a release is
// emptied first.
func TestSlotTakenOver(t *testing.T) {
	g := newGated(t)
	g.dump(chain(indexer.Device, 0, 4), Applied)
	g.AssignSlot(0, g.rank)
	g.want(4, 0)
	g.AssignSlot(0, catalog.Rank{Worker: 8})
	g.want(0, 0)
}

// TestTooManyMarks: a rank about which live events said more than can be kept
// gets nothing more from dumps; the others' marks stay.
func TestTooManyMarks(t *testing.T) {
	g := newGated(t)
	g.markLimit = 10
	g.AssignSlot(1, catalog.Rank{Worker: 8})
	g.Remove(1, indexer.Device, []uint64{100, 101})
	g.Remove(0, indexer.Device, []uint64{1, 2, 3, 4, 5, 6, 7, 8})
	g.dump(chain(indexer.Device, 0, 4), Applied)
	g.want(4, 0)
	g.Remove(0, indexer.Device, []uint64{102, 9})
	g.want(2, 0)
	g.dump(chain(indexer.Device, 2, 4), TooManyRemovals)
	g.Remove(0, indexer.Device, []uint64{10, 11, 12})
	if g.markCount != 2 {
		t.Errorf("%d marks", g.markCount)
	}
	ev := chain(indexer.Device, 0, 2)
	ev.Slot = 1
	if stored, res := g.Merge(catalog.Rank{Worker: 8}, ev); stored != 0 || res != Applied {
		t.Errorf("the other rank got %d blocks, result %d", stored, res)
	}
}

// TestTooManyLeft: when more ranks left than can be remembered, no dump entry is
// trusted any more.
func TestTooManyLeft(t *testing.T) {
	g := newGated(t)
	for i := range uint64(maxDeparted) {
		g.AssignSlot(1, catalog.Rank{Worker: 1000 + i})
		g.release(1)
	}
	g.dump(chain(indexer.Device, 0, 1), Applied)
	g.AssignSlot(1, catalog.Rank{Worker: 1})
	g.release(1)
	g.dump(chain(indexer.Device, 0, 1), TooManyRemovals)
}

// TestDumpRemovals: removed and cleared events of a dump are obeyed.
func TestDumpRemovals(t *testing.T) {
	g := newGated(t)
	g.dump(chain(indexer.Device, 0, 4), Applied)
	if res := g.MergeRemoved(0, g.rank, indexer.Device, []uint64{103}); res != Applied {
		t.Error(res)
	}
	g.want(3, 0)
	if res := g.MergeCleared(0, g.rank); res != Applied {
		t.Error(res)
	}
	g.want(0, 0)
	g.EndRecovery()
	if a, b := g.MergeRemoved(0, g.rank, 0, nil), g.MergeCleared(0, g.rank); a != NotRecovering || b != NotRecovering {
		t.Error(a, b)
	}
}

// TestRacingWriters: a dump and live events at the same time, on the same and on
// different ranks, leave what live events say: every block that was stored last
// is there, every block that was removed last is not.
func TestRacingWriters(t *testing.T) {
	space := indexer.New()
	g := NewGate(space, true)
	const ranks, blocks = 4, 200
	for slot := range uint32(ranks) {
		g.AssignSlot(slot, catalog.Rank{Worker: uint64(slot)})
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 3 {
			for from := uint64(0); from < blocks; from += 10 {
				for slot := range uint32(ranks) {
					ev := chain(indexer.Device, from, from+10)
					ev.Slot = slot
					g.Merge(catalog.Rank{Worker: uint64(slot)}, ev)
				}
			}
		}
	})
	for slot := range uint32(ranks) {
		wg.Go(func() { // keeps 2*slot+1 blocks of every ten
			for range 3 {
				for from := uint64(0); from < blocks; from += 10 {
					ev := chain(indexer.Device, from, from+10)
					ev.Slot = slot
					g.Store(ev)
					g.Remove(slot, indexer.Device, ev.EngineHashes)
				}
			}
			ev := chain(indexer.Device, 0, 2*uint64(slot)+1)
			ev.Slot = slot
			g.Store(ev)
		})
	}
	wg.Wait()
	g.EndRecovery()
	for slot := range uint32(ranks) {
		if held := space.Held(slot)[indexer.Device]; held != 2*int(slot)+1 {
			t.Errorf("slot %d holds %d blocks", slot, held)
		}
	}
}
