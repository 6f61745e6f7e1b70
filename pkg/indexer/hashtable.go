package indexer

import (
	"slices"

	"github.com/select-service/select-service/internal/container/keyhash"
	"github.com/select-service/select-service/internal/container/offheap"
)

// handleTable is an open-addressing multimap from a 32-bit tag to a 32-bit
// handle. It stores no keys: the caller checks what a handle stands for. A slot
// is tag and handle in one word, so that growing and shifting read nothing
// else; handle 0 marks an empty slot. It grows by half, not by two: it is a
// third of the index's memory, and would be half empty half of the time.
type handleTable struct {
	mem   *offheap.Memory
	slots []uint64
	n     int
	skip  uint8 // number of upper bits that are equal in all tags of this table
}

const minSlots = 16

// first returns the position where a search for tag starts.
func (t *handleTable) first(tag uint32) int {
	return int(uint64(tag<<t.skip) * uint64(len(t.slots)) >> 32)
}

func (t *handleTable) next(i int) int {
	if i++; i == len(t.slots) {
		return 0
	}
	return i
}

// distance returns the number of steps from one position to another.
func (t *handleTable) distance(from, to int) int {
	if to < from {
		to += len(t.slots)
	}
	return to - from
}

// at returns the handle at i and whether its tag equals tag; handle 0 ends the search.
func (t *handleTable) at(i int, tag uint32) (handle uint32, same bool) {
	w := t.slots[i]
	return uint32(w), uint32(w>>32) == tag
}

// insert adds a pair; equal pairs are kept apart.
func (t *handleTable) insert(tag, handle uint32) {
	if (t.n+1)*5 > len(t.slots)*4 {
		t.resize(max(minSlots, len(t.slots)*3/2))
	}
	t.put(uint64(tag)<<32 | uint64(handle))
	t.n++
}

func (t *handleTable) put(w uint64) {
	i := t.first(uint32(w >> 32))
	for t.slots[i] != 0 {
		i = t.next(i)
	}
	t.slots[i] = w
}

// replace replaces the handle old by handle under tag.
func (t *handleTable) replace(tag, old, handle uint32) {
	t.slots[t.find(tag, old)] = uint64(tag)<<32 | uint64(handle)
}

// find returns the position of a pair, which must be in the table.
func (t *handleTable) find(tag, handle uint32) int {
	i := t.first(tag)
	for t.slots[i] != uint64(tag)<<32|uint64(handle) {
		i = t.next(i)
	}
	return i
}

// remove removes a pair, which must be in the table.
func (t *handleTable) remove(tag, handle uint32) {
	hole := t.find(tag, handle)
	t.n--
	if t.n == 0 {
		offheap.Free(t.mem, t.slots)
		t.slots = nil
		return
	}
	// Shift later entries back over the hole, so that no search stops early.
	for i := t.next(hole); t.slots[i] != 0; i = t.next(i) {
		if home := t.first(uint32(t.slots[i] >> 32)); t.distance(home, i) >= t.distance(hole, i) {
			t.slots[hole] = t.slots[i]
			hole = i
		}
	}
	t.slots[hole] = 0
	if len(t.slots) > minSlots && t.n*5 < len(t.slots)*2 {
		t.resize(max(minSlots, t.n*5/3))
	}
}

func (t *handleTable) resize(n int) {
	old := t.slots
	t.slots = offheap.Make[uint64](t.mem, n)
	for _, w := range old {
		if w != 0 {
			t.put(w)
		}
	}
	offheap.Free(t.mem, old)
}

// A cellTable has shards, so that growing one of them holds the lock only for a
// short time.
const (
	tableShardBits = 6
	tableShards    = 1 << tableShardBits
)

// cellTable finds cells by a 64-bit hash: blocks by name, or by value.
type cellTable struct {
	shards [tableShards]handleTable
	key    keyhash.Key
}

func (t *cellTable) init(m *offheap.Memory) {
	for i := range t.shards {
		t.shards[i].mem, t.shards[i].skip = m, tableShardBits
	}
	t.key = keyhash.New()
}

func (t *cellTable) tag(name uint64) uint32 { return uint32(t.key.Sum(name)) }

func (t *cellTable) shard(tag uint32) *handleTable { return &t.shards[tag>>(32-tableShardBits)] }

func (t *cellTable) insert(name uint64, cell uint32) {
	tag := t.tag(name)
	t.shard(tag).insert(tag, cell)
}

func (t *cellTable) remove(name uint64, cell uint32) {
	tag := t.tag(name)
	t.shard(tag).remove(tag, cell)
}

// touch reads the memory at which the searches for names will begin, to bring it into the
// processor's caches. The reads do not depend on each other, so that the processor waits for
// memory once and not once per name. It changes nothing. The caller must use sum, or the
// compiler may remove the reads.
func (t *cellTable) touch(names []uint64, cells *arena) (sum uint64) {
	for part := range slices.Chunk(names, touchBatch) {
		var found [touchBatch]uint32
		for i, name := range part {
			tag := t.tag(name)
			if sh := t.shard(tag); sh.n > 0 {
				if cell, same := sh.at(sh.first(tag), tag); same {
					found[i] = cell
				}
			}
		}
		for _, cell := range found[:len(part)] {
			if cell != 0 {
				sum += cells.name(cell) + uint64(cells.nodeOf(cell))
			}
		}
	}
	return sum
}

// touchBatch is how many names touch handles at a time: somewhat more than the memory reads that
// a processor can have outstanding.
const touchBatch = 64
