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
func (o *orphans) reset() { *o = orphans{limit: o.limit} }

// put adds the blocks of an event. It returns how many were dropped for lack of room.
func (o *orphans) put(r catalog.Rank, ev *indexer.Store, event uint64) (dropped int) {
	if o.heads == nil {
		o.rows, o.heads = make([]orphan, 1), make(map[parentKey]uint32)
	}
	parent := ev.Parent
	for i, name := range ev.EngineHashes {
		if o.n == o.limit {
			return len(ev.EngineHashes) - i // without this block the rest has no parent
		}
		o.n++
		key := parentKey{parent, ev.Slot}
		row := orphan{
			rank: r, name: name, local: ev.Local[i], seed: ev.Seed, seedKnown: ev.SeedKnown,
			event: event, next: o.heads[key], tier: ev.Tier,
		}
		id := o.free
		if id != 0 {
			o.free = o.rows[id].next
			o.rows[id] = row
		} else {
			id = uint32(len(o.rows))
			o.rows = append(o.rows, row)
		}
		o.heads[key] = id
		parent = name
	}
	return 0
}

// take removes and returns one orphan of a parent. Orphans that later events of
// the dump removed are dropped.
func (o *orphans) take(slot uint32, parent uint64) (b orphan, ok bool) {
	key := parentKey{parent, slot}
	for id := o.heads[key]; id != 0; {
		b = o.rows[id]
		o.rows[id] = orphan{next: o.free}
		o.free = id
		o.n--
		if b.event > o.cleared[slot] && b.event > o.removed[removalKey{b.name, slot, b.tier}] {
			o.setHead(key, b.next)
			return b, true
		}
		id = b.next
		o.setHead(key, id)
	}
	return orphan{}, false
}

func (o *orphans) setHead(key parentKey, id uint32) {
	if id == 0 {
		delete(o.heads, key)
	} else {
		o.heads[key] = id
	}
}

// remove records that the dump removes blocks. It returns false if there is no room
// for that: then it is unknown which orphans are still valid.
func (o *orphans) remove(slot uint32, t indexer.Tier, names []uint64, event uint64) bool {
	if o.n == 0 {
		return true
	}
	if len(o.removed)+len(names) > o.limit {
		return false
	}
	if o.removed == nil {
		o.removed = make(map[removalKey]uint64)
	}
	for _, name := range names {
		o.removed[removalKey{name, slot, t}] = event
	}
	return true
}

// clear records that the dump clears a rank.
func (o *orphans) clear(slot uint32, event uint64) {
	if o.n == 0 {
		return
	}
	if o.cleared == nil {
		o.cleared = make(map[uint32]uint64)
	}
	o.cleared[slot] = event
}

// parents lists the parents that have orphans.
func (o *orphans) parents() []parentKey {
	keys := make([]parentKey, 0, len(o.heads))
	for key := range o.heads {
		keys = append(keys, key)
	}
	return keys
}
