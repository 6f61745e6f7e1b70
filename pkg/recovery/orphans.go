package recovery

import (
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
)

// orphans are the blocks of one scope whose parent has not come yet in the dump:
// dynamo-kv-router writes lower tiers in any order.
type orphans struct {
	limit int
	rows  []orphan // row 0 is not used: 0 ends a list
	free  uint32   // first row of the list of unused ones
	heads map[parentKey]uint32
	n     int // orphans
	// removed and cleared have the removals and clears that the dump contains after
	// orphans, with the number of the event.
	removed map[removalKey]uint64
	cleared map[uint32]uint64 // by slot
}

type parentKey struct {
	parent uint64
	slot   uint32
}

type removalKey struct {
	name uint64
	slot uint32
	tier indexer.Tier
}

// orphan is a block in the list of its parent.
type orphan struct {
	rank              catalog.Rank
	name, local, seed uint64
	event             uint64 // number of the event that brought it
	next              uint32
	tier              indexer.Tier
	seedKnown         bool
}

// reset removes all orphans.
func (w *orphans) reset() { *w = orphans{limit: w.limit} }

// put adds the blocks of an event. It returns how many were dropped for lack of room.
func (w *orphans) put(r catalog.Rank, ev *indexer.Store, event uint64) (dropped int) {
	if w.heads == nil {
		w.rows, w.heads = make([]orphan, 1), make(map[parentKey]uint32)
	}
	parent := ev.Parent
	for i, name := range ev.EngineHashes {
		if w.n == w.limit {
			return len(ev.EngineHashes) - i // without this block the rest has no parent
		}
		w.n++
		key := parentKey{parent, ev.Slot}
		row := orphan{
			rank: r, name: name, local: ev.Local[i], seed: ev.Seed, seedKnown: ev.SeedKnown,
			event: event, next: w.heads[key], tier: ev.Tier,
		}
		id := w.free
		if id != 0 {
			w.free = w.rows[id].next
			w.rows[id] = row
		} else {
			id = uint32(len(w.rows))
			w.rows = append(w.rows, row)
		}
		w.heads[key] = id
		parent = name
	}
	return 0
}

// take removes and returns one orphan of a parent. Orphans that later events of
// the dump removed are dropped.
func (w *orphans) take(slot uint32, parent uint64) (b orphan, ok bool) {
	key := parentKey{parent, slot}
	for id := w.heads[key]; id != 0; {
		b = w.rows[id]
		w.rows[id] = orphan{next: w.free}
		w.free = id
		w.n--
		if b.event > w.cleared[slot] && b.event > w.removed[removalKey{b.name, slot, b.tier}] {
			w.setHead(key, b.next)
			return b, true
		}
		id = b.next
		w.setHead(key, id)
	}
	return orphan{}, false
}

func (w *orphans) setHead(key parentKey, id uint32) {
	if id == 0 {
		delete(w.heads, key)
	} else {
		w.heads[key] = id
	}
}

// remove records that the dump removes blocks. It returns false if there is no room
// for that: then it is unknown which orphans are still valid.
func (w *orphans) remove(slot uint32, t indexer.Tier, names []uint64, event uint64) bool {
	if w.n == 0 {
		return true
	}
	if len(w.removed)+len(names) > w.limit {
		return false
	}
	if w.removed == nil {
		w.removed = make(map[removalKey]uint64)
	}
	for _, name := range names {
		w.removed[removalKey{name, slot, t}] = event
	}
	return true
}

// clear records that the dump clears a rank.
func (w *orphans) clear(slot uint32, event uint64) {
	if w.n == 0 {
		return
	}
	if w.cleared == nil {
		w.cleared = make(map[uint32]uint64)
	}
	w.cleared[slot] = event
}

// parents lists the parents that have orphans.
func (w *orphans) parents() []parentKey {
	keys := make([]parentKey, 0, len(w.heads))
	for key := range w.heads {
		keys = append(keys, key)
	}
	return keys
}
