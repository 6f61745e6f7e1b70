package reservations

import "math/bits"

// setsPerChunk is how many sets are allocated at once.
const setsPerChunk = 256

// ownerSets is an arena of equally wide bit sets over slots, addressed by
// dense numbers. Memory moves in chunks: no pointer per set, and a chunk whose
// sets are all free is given back by trim.
type ownerSets struct {
	words  int // 64-bit words per set
	chunks []setChunk
	// lowest is a chunk number below which no chunk has room. Filling the low
	// chunks first lets the high ones run empty.
	lowest int
}

type setChunk struct {
	bits []uint64 // setsPerChunk sets; nil when given back
	live int
	used int // sets [0, used) were handed out at least once
	// free is 1 + the first set of the list of returned ones, 0 for none; the
	// first word of such a set holds the next link.
	free uint64
}

// get returns the words of a set.
func (o *ownerSets) get(id uint32) []uint64 {
	at := int(id%setsPerChunk) * o.words
	return o.chunks[id/setsPerChunk].bits[at : at+o.words]
}

// alloc returns an empty set.
func (o *ownerSets) alloc() uint32 {
	for o.lowest < len(o.chunks) && o.chunks[o.lowest].live == setsPerChunk {
		o.lowest++
	}
	if o.lowest == len(o.chunks) {
		o.chunks = append(o.chunks, setChunk{})
	}
	c := &o.chunks[o.lowest]
	if c.bits == nil {
		*c = setChunk{bits: make([]uint64, setsPerChunk*o.words)}
	}
	c.live++
	i := c.used
	if c.free != 0 {
		i = int(c.free - 1)
		c.free = c.bits[i*o.words]
	} else {
		c.used++
	}
	clear(c.bits[i*o.words : (i+1)*o.words])
	return uint32(o.lowest*setsPerChunk + i)
}

// release returns a set to the arena.
func (o *ownerSets) release(id uint32) {
	o.lowest = min(o.lowest, int(id/setsPerChunk))
	c := &o.chunks[id/setsPerChunk]
	i := uint64(id % setsPerChunk)
	c.bits[int(i)*o.words] = c.free
	c.free = i + 1
	c.live--
}

// widen makes room for more slots in every set, keeping the numbers.
func (o *ownerSets) widen(words int) {
	if words <= o.words {
		return
	}
	for n := range o.chunks {
		c := &o.chunks[n]
		if c.bits == nil {
			continue
		}
		wide := make([]uint64, setsPerChunk*words)
		for i := range c.used {
			copy(wide[i*words:], c.bits[i*o.words:(i+1)*o.words])
		}
		c.bits = wide
	}
	o.words = words
}

// trim gives empty chunks back.
func (o *ownerSets) trim() {
	for n := range o.chunks {
		if c := &o.chunks[n]; c.live == 0 {
			*c = setChunk{}
		}
	}
	end := len(o.chunks)
	for end > 0 && o.chunks[end-1].bits == nil {
		end--
	}
	o.chunks = o.chunks[:end]
	o.lowest = min(o.lowest, end)
}

func setBit(set []uint64, slot uint32)      { set[slot/64] |= 1 << (slot % 64) }
func clearBit(set []uint64, slot uint32)    { set[slot/64] &^= 1 << (slot % 64) }
func hasBit(set []uint64, slot uint32) bool { return set[slot/64]>>(slot%64)&1 != 0 }

// firstBit returns the lowest member of a set that is not empty.
func firstBit(set []uint64) uint32 {
	for w, word := range set {
		if word != 0 {
			return uint32(w*64 + bits.TrailingZeros64(word))
		}
	}
	panic("reservations: empty owner set")
}
