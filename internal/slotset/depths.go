package slotset

import "math/bits"

// Depths has a number for each slot: how many leading blocks of a prompt it has. The
// number that most slots have is kept once. The zero value has no slots.
type Depths struct {
	slots   int
	common  uint32
	members Set      // the slots with the common number
	n       int      // how many they are
	depth   []uint32 // by slot, of the others
}

// Reset begins anew with that many slots, all of which have 0.
func (d *Depths) Reset(slots int) {
	d.slots, d.common, d.n = slots, 0, slots
	d.members = d.members.full(slots)
	if cap(d.depth) < slots {
		d.depth = make([]uint32, slots)
	}
	d.depth = d.depth[:slots]
}

// Slots is how many there are.
func (d *Depths) Slots() int { return d.slots }

// At returns the number of a slot, 0 beyond the last one.
func (d *Depths) At(slot uint32) uint32 {
	switch {
	case d.members.Has(slot):
		return d.common
	case int(slot) < d.slots:
		return d.depth[slot]
	}
	return 0
}

// Common returns the number that most slots have.
func (d *Depths) Common() uint32 { return d.common }

// Others returns word w of a set of slots. Those that are not in it have the common
// number.
func (d *Depths) Others(w int) uint64 {
	switch {
	case w < len(d.members):
		return ^d.members[w]
	case d.common == 0:
		return 0
	}
	return ^uint64(0)
}

// Take takes slots out of those that have 0, before any Put: each of them is Put later.
// set begins at word lo.
func (d *Depths) Take(lo int, set Set) {
	for i, w := range set {
		d.n -= bits.OnesCount64(w)
		d.members[lo+i] &^= w
	}
}

// Put gives slots that were taken a number. set begins at word lo.
func (d *Depths) Put(lo int, set Set, depth uint32) {
	n := set.Len()
	switch {
	case n == 0:
	case n > d.n:
		d.write(0, d.members, d.common)
		clear(d.members)
		copy(d.members[lo:], set)
		d.common, d.n = depth, n
	default:
		d.write(lo, set, depth)
	}
}

// write notes the number of slots that do not have the common one.
func (d *Depths) write(lo int, set Set, depth uint32) {
	for i, w := range set {
		for ; w != 0; w &= w - 1 {
			d.depth[(lo+i)*64+bits.TrailingZeros64(w)] = depth
		}
	}
}

// Set gives one slot another number. A slot beyond the last one is added; those before
// it have 0.
func (d *Depths) Set(slot uint32, depth uint32) {
	for int(slot) >= d.slots {
		if d.slots%64 == 0 {
			d.members = append(d.members, 0)
		}
		d.depth = append(d.depth, 0)
		d.slots++
	}
	if d.members.Has(slot) {
		d.members[slot/64] &^= 1 << (slot % 64)
		d.n--
	}
	d.depth[slot] = depth
}
