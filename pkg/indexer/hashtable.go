package indexer

// handles is an open-addressing multimap from a 32-bit tag to a 32-bit handle.
// It stores no keys: the caller checks a handle against what it stands for. A
// slot is tag and handle in one word, so that growing and shifting touch
// nothing else; handle 0 is an empty slot.
type handles struct {
	mem   *memory
	slots []uint64
	n     int
}

const minSlots = 16

// first returns the position where a search for tag starts.
func (t *handles) first(tag uint32) int { return int(tag) & (len(t.slots) - 1) }

func (t *handles) next(i int) int { return (i + 1) & (len(t.slots) - 1) }

// at returns the handle at i and whether its tag is tag; 0 ends the search.
func (t *handles) at(i int, tag uint32) (handle uint32, same bool) {
	w := t.slots[i]
	return uint32(w), uint32(w>>32) == tag
}

// insert adds a pair; equal pairs are kept apart.
func (t *handles) insert(tag, handle uint32) {
	if t.n*4 >= len(t.slots)*3 {
		t.resize(max(minSlots, 2*len(t.slots)))
	}
	t.place(uint64(tag)<<32 | uint64(handle))
	t.n++
}

func (t *handles) place(w uint64) {
	i := t.first(uint32(w >> 32))
	for t.slots[i] != 0 {
		i = t.next(i)
	}
	t.slots[i] = w
}

// replace puts handle in the place of old under tag.
func (t *handles) replace(tag, old, handle uint32) {
	for i := t.first(tag); ; i = t.next(i) {
		if t.slots[i] == uint64(tag)<<32|uint64(old) {
			t.slots[i] = uint64(tag)<<32 | uint64(handle)
			return
		}
	}
}

// remove takes the pair out; it must be there.
func (t *handles) remove(tag, handle uint32) {
	i := t.first(tag)
	for t.slots[i] != uint64(tag)<<32|uint64(handle) {
		i = t.next(i)
	}
	t.n--
	if t.n == 0 {
		freeFlat(t.mem, t.slots)
		t.slots = nil
		return
	}
	// Shift later entries back over the hole, so that no search stops early.
	mask := len(t.slots) - 1
	for j := i; ; {
		j = (j + 1) & mask
		w := t.slots[j]
		if w == 0 {
			break
		}
		home := int(uint32(w>>32)) & mask
		if (j-home)&mask >= (j-i)&mask {
			t.slots[i] = w
			i = j
		}
	}
	t.slots[i] = 0
	if len(t.slots) > minSlots && t.n*8 < len(t.slots) {
		t.resize(len(t.slots) / 2)
	}
}

func (t *handles) resize(n int) {
	old := t.slots
	t.slots = makeFlat[uint64](t.mem, n)
	for _, w := range old {
		if w != 0 {
			t.place(w)
		}
	}
	freeFlat(t.mem, old)
}

// nameShards splits the table of names so that growing one part of it holds
// the lock only for a moment.
const (
	nameShardBits = 6
	nameShards    = 1 << nameShardBits
)

// nameTable finds cells from engine hashes.
type nameTable struct {
	shards [nameShards]handles
	seed   uint64
}

// tag mixes an engine's hash with the process's seed: engines choose their
// hashes, and must not be able to choose our collisions.
func (t *nameTable) tag(name uint64) uint32 { return mix(name ^ t.seed) }

func (t *nameTable) shard(tag uint32) *handles { return &t.shards[tag>>(32-nameShardBits)] }

func (t *nameTable) insert(name uint64, cell uint32) {
	tag := t.tag(name)
	t.shard(tag).insert(tag, cell)
}

func (t *nameTable) remove(name uint64, cell uint32) {
	tag := t.tag(name)
	t.shard(tag).remove(tag, cell)
}

// mix is the finaliser of MurmurHash3 (Austin Appleby, public domain).
func mix(k uint64) uint32 {
	k ^= k >> 33
	k *= 0xff51afd7ed558ccd
	k ^= k >> 33
	k *= 0xc4ceb9fe1a85ec53
	k ^= k >> 33
	return uint32(k)
}
