package reservations

import (
	"math/bits"
	"slices"

	"github.com/select-service/select-service/internal/container/keyhash"
	"github.com/select-service/select-service/internal/container/offheap"
	"github.com/select-service/select-service/internal/container/slotset"
)

// owners says which slots hold a run of blocks, how many reservations on each, and the weight
// of a block there. Nearly every run has one owner slot and full weight. There are three forms:
//
//	a = slot            b = holders   one owner, full weight
//	a = slot | decayed  b = deficit   one owner, one holder, reduced weight
//	a = set | spilled   b = owners    the owners are a bit set; holders (b) and
//	                                  deficit (a) of each owner are in pairs
//
// The third form is used only where the first two cannot express it. b is 0 without owner.
type owners struct{ a, b uint32 }

func (o *owners) none() bool { return o.b == 0 }

// holders has what the third form of owners needs.
type holders struct {
	pairs flat // by pairKey
	sets  wordArena
}

func newHolders(mem *offheap.Memory) holders {
	return holders{pairs: flat{key: keyhash.New()}, sets: wordArena{mem: mem, words: 1}}
}

const (
	spilled = 1 << 31
	decayed = 1 << 30
	// ownerMask takes the slot or set number out of a.
	ownerMask = decayed - 1
)

// pairKey is the exact key of one owner of the third form.
func pairKey(set, slot uint32) uint64 { return uint64(set)<<32 | uint64(slot) }

// hold adds one holder on slot. It reports whether slot is a new owner.
func (h *holders) hold(e *owners, slot uint32) (fresh bool) {
	owner := e.a & ownerMask
	switch {
	case e.none():
		e.a, e.b = slot, 1
		return true
	case e.a&spilled != 0:
		return h.addSpilled(e, slot)
	case e.a&decayed != 0:
		h.spill(e, owner, e.b, 1)
		return h.addSpilled(e, slot)
	case owner == slot:
		e.b++
		return false
	default:
		h.spill(e, owner, 0, e.b)
		return h.addSpilled(e, slot)
	}
}

// addSpilled adds a holder on slot to the third form.
func (h *holders) addSpilled(e *owners, slot uint32) (fresh bool) {
	set := e.a & ownerMask
	p, found := h.pairs.put(pairKey(set, slot))
	p.b++
	if found {
		return false
	}
	setBit(h.sets.get(set), slot)
	e.b++
	return true
}

// spill turns one of the first two forms into the third form.
func (h *holders) spill(e *owners, owner, deficit, holders uint32) {
	set := h.sets.alloc()
	setBit(h.sets.get(set), owner)
	p, _ := h.pairs.put(pairKey(set, owner))
	p.a, p.b = deficit, holders
	e.a, e.b = set|spilled, 1
}

// has reports whether slot is an owner.
func (h *holders) has(e *owners, slot uint32) bool {
	switch {
	case e.none():
		return false
	case e.a&spilled != 0:
		return slotset.Set(h.sets.get(e.a & ownerMask)).Has(slot)
	}
	return e.a&ownerMask == slot
}

// any returns an owner; there must be one.
func (h *holders) any(e *owners) uint32 {
	if e.a&spilled != 0 {
		return firstBit(h.sets.get(e.a & ownerMask))
	}
	return e.a & ownerMask
}

// release removes one holder on slot, which must have one. last reports whether it was the
// slot's last one; deficit is then that of a block.
func (h *holders) release(e *owners, slot uint32) (last bool, deficit uint32) {
	switch {
	case e.a&spilled != 0:
		return h.releaseSpilled(e, slot)
	case e.a&decayed != 0:
		deficit = e.b
	case e.b > 1:
		e.b--
		return false, 0
	}
	*e = owners{}
	return true, deficit
}

// releaseSpilled is release for the third form.
func (h *holders) releaseSpilled(e *owners, slot uint32) (last bool, deficit uint32) {
	set := e.a & ownerMask
	p := h.pairs.find(pairKey(set, slot))
	if p.b > 1 {
		p.b--
		h.unspill(e)
		return false, 0
	}
	// There are other owners: a single one with a single holder is not spilled.
	deficit = p.a
	h.pairs.remove(pairKey(set, slot))
	clearBit(h.sets.get(set), slot)
	e.b--
	h.unspill(e)
	return true, deficit
}

// unspill turns the third form back into one of the others if that can express it.
func (h *holders) unspill(e *owners) {
	if e.b > 1 {
		return
	}
	set := e.a & ownerMask
	owner := firstBit(h.sets.get(set))
	switch p := h.pairs.find(pairKey(set, owner)); {
	case p.a == 0:
		e.a, e.b = owner, p.b
	case p.b == 1:
		e.a, e.b = owner|decayed, p.a
	default:
		return
	}
	h.pairs.remove(pairKey(set, owner))
	h.sets.release(set)
}

// decay sets the deficit of a block on slot, which must be an owner, and returns the former one.
// If it has more than one holder there, nothing happens and ok is false.
func (h *holders) decay(e *owners, slot, deficit uint32) (former uint32, ok bool) {
	switch {
	case e.a&spilled != 0:
		p := h.pairs.find(pairKey(e.a&ownerMask, slot))
		if p.b > 1 {
			return 0, false
		}
		former, p.a = p.a, deficit
		return former, true
	case e.a&decayed != 0:
		former = e.b
	case e.b > 1:
		return 0, false
	}
	if deficit == 0 {
		e.a, e.b = slot, 1
	} else {
		e.a, e.b = slot|decayed, deficit
	}
	return former, true
}

// copy returns owners equal to e.
func (h *holders) copy(e *owners) owners {
	if e.a&spilled == 0 {
		return *e
	}
	from, to := e.a&ownerMask, h.sets.alloc()
	set := h.sets.get(to)
	copy(set, h.sets.get(from))
	for slot := range slotset.Set(set).All() {
		pair := h.pairs.find(pairKey(from, slot)).owners
		p, _ := h.pairs.put(pairKey(to, slot))
		p.owners = pair
	}
	return owners{to | spilled, e.b}
}

// equal reports whether both have the same owners, holders and deficits.
func (h *holders) equal(e, o *owners) bool {
	if e.a&spilled == 0 || o.a&spilled == 0 {
		return *e == *o
	}
	mine, other := e.a&ownerMask, o.a&ownerMask
	if e.b != o.b || !slices.Equal(h.sets.get(mine), h.sets.get(other)) {
		return false
	}
	for slot := range slotset.Set(h.sets.get(mine)).All() {
		if h.pairs.find(pairKey(mine, slot)).owners != h.pairs.find(pairKey(other, slot)).owners {
			return false
		}
	}
	return true
}

// forget removes all owners.
func (h *holders) forget(e *owners) {
	if e.a&spilled != 0 {
		set := e.a & ownerMask
		for slot := range slotset.Set(h.sets.get(set)).All() {
			h.pairs.remove(pairKey(set, slot))
		}
		h.sets.release(set)
	}
	*e = owners{}
}

// reset gives all memory back. To be called only when nothing is held.
func (h *holders) reset() {
	h.pairs.reset()
	h.sets.reset()
}

// setsPerChunk is how many sets are allocated at once.
const setsPerChunk = 256

// wordArena is an arena of equally long arrays of 64-bit words, its sets, addressed by
// dense numbers. Memory moves in chunks: no pointer per set, and a chunk whose
// sets are all free is given back by trim.
type wordArena struct {
	mem    *offheap.Memory
	words  int // 64-bit words per set
	chunks []setChunk
	live   int // sets
	// lowest is a chunk number below which no chunk has room. The low chunks are
	// filled first, so that the high ones become empty.
	lowest int
}

type setChunk struct {
	bits []uint64 // setsPerChunk sets, see wordArena.newBits; nil when given back
	live int
	used int // sets [0, used) were handed out at least once
	// free is 1 + the first set in the list of returned ones, 0 for none; the first
	// word of such a set holds the next link.
	free uint64
}

// get returns the words of a set.
func (w *wordArena) get(id uint32) []uint64 {
	at := int(id%setsPerChunk) * w.words
	return w.chunks[id/setsPerChunk].bits[at : at+w.words]
}

// alloc returns an empty set.
func (w *wordArena) alloc() uint32 {
	for w.lowest < len(w.chunks) && w.chunks[w.lowest].live == setsPerChunk {
		w.lowest++
	}
	if w.lowest == len(w.chunks) {
		w.chunks = append(w.chunks, setChunk{})
	}
	c := &w.chunks[w.lowest]
	if c.bits == nil {
		*c = setChunk{bits: w.newBits(w.lowest, w.words)}
	}
	c.live++
	w.live++
	i := c.used
	if c.free != 0 {
		i = int(c.free - 1)
		c.free = c.bits[i*w.words]
	} else {
		c.used++
	}
	clear(c.bits[i*w.words : (i+1)*w.words])
	return uint32(w.lowest*setsPerChunk + i)
}

// newBits returns the memory of chunk n. That of the first one is on the collector's heap, so that
// a ledger of few blocks, which may be one of many, leaves nothing behind when it is dropped.
func (w *wordArena) newBits(n, words int) []uint64 {
	if n == 0 {
		return make([]uint64, setsPerChunk*words)
	}
	return offheap.Make[uint64](w.mem, setsPerChunk*words)
}

func (w *wordArena) freeBits(n int, bits []uint64) {
	if n > 0 {
		offheap.Free(w.mem, bits)
	}
}

// release returns a set to the arena.
func (w *wordArena) release(id uint32) {
	w.lowest = min(w.lowest, int(id/setsPerChunk))
	c := &w.chunks[id/setsPerChunk]
	i := uint64(id % setsPerChunk)
	c.bits[int(i)*w.words] = c.free
	c.free = i + 1
	c.live--
	w.live--
}

// widen makes room for more slots in every set, keeping the numbers.
func (w *wordArena) widen(words int) {
	if words <= w.words {
		return
	}
	for n := range w.chunks {
		c := &w.chunks[n]
		if c.bits == nil {
			continue
		}
		wide := w.newBits(n, words)
		for i := range c.used {
			copy(wide[i*words:], c.bits[i*w.words:(i+1)*w.words])
		}
		w.freeBits(n, c.bits)
		c.bits = wide
	}
	w.words = words
}

// trim gives empty chunks back.
func (w *wordArena) trim() {
	for n := range w.chunks {
		if c := &w.chunks[n]; c.live == 0 {
			w.freeBits(n, c.bits)
			*c = setChunk{}
		}
	}
	end := len(w.chunks)
	for end > 0 && w.chunks[end-1].bits == nil {
		end--
	}
	w.chunks = w.chunks[:end]
	w.lowest = min(w.lowest, end)
}

// reset gives all memory back.
func (w *wordArena) reset() {
	for n := range w.chunks {
		w.freeBits(n, w.chunks[n].bits)
	}
	*w = wordArena{mem: w.mem, words: w.words}
}

func setBit(set []uint64, slot uint32)   { set[slot/64] |= 1 << (slot % 64) }
func clearBit(set []uint64, slot uint32) { set[slot/64] &^= 1 << (slot % 64) }

// firstBit returns the lowest member of a set that is not empty.
func firstBit(set []uint64) uint32 {
	for w, word := range set {
		if word != 0 {
			return uint32(w*64 + bits.TrailingZeros64(word))
		}
	}
	panic("reservations: empty owner set")
}
