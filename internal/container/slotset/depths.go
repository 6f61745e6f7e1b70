package slotset

import "math/bits"

// Depths has a number for each slot: how many leading blocks of a prompt it has. If many slots
// have the same number, they form a class. The zero value has no slots.
type Depths struct {
	slots   int
	classes []class // the first one has 0
	others  Set     // the slots in no class
	depth   []uint32
}

type class struct {
	depth uint32
	set   Set
}

const (
	// minClass is the least number of slots of a class.
	minClass = 16
	// maxClasses bounds the classes.
	maxClasses = 8
)

// Reset starts over with that many slots, all with the number 0.
func (d *Depths) Reset(slots int) {
	d.slots = slots
	d.others = d.others.Zeroed(Words(slots))
	d.classes = d.classes[:0]
	first := d.add(0)
	for i := range first {
		first[i] = ^uint64(0)
	}
	if cap(d.depth) < slots {
		d.depth = make([]uint32, slots)
	}
	d.depth = d.depth[:slots]
}

// add adds a class; it reuses the memory of an earlier one.
func (d *Depths) add(depth uint32) Set {
	n := len(d.classes)
	if n < cap(d.classes) {
		d.classes = d.classes[:n+1]
	} else {
		d.classes = append(d.classes, class{})
	}
	c := &d.classes[n]
	c.depth, c.set = depth, c.set.Zeroed(len(d.others))
	return c.set
}

// Slots returns the number of slots.
func (d *Depths) Slots() int { return d.slots }

// At returns the number of a slot, 0 beyond the last one.
func (d *Depths) At(slot uint32) uint32 {
	if d.others.Has(slot) {
		return d.depth[slot]
	}
	for i := 1; i < len(d.classes); i++ {
		if c := &d.classes[i]; c.set.Has(slot) {
			return c.depth
		}
	}
	return 0
}

// Classes returns the number of classes.
func (d *Depths) Classes() int { return len(d.classes) }

// Depth returns the number of a class.
func (d *Depths) Depth(class int) uint32 { return d.classes[class].depth }

// Class returns word w of the slots of a class. The first class, of number 0, also has the
// slots beyond the last one.
func (d *Depths) Class(class, w int) uint64 {
	switch {
	case w < len(d.others):
		return d.classes[class].set[w]
	case class == 0:
		return ^uint64(0)
	}
	return 0
}

// Take removes slots from those with the number 0, before any Put. Each of them must be Put
// later. set begins at word lo.
func (d *Depths) Take(lo int, set Set) {
	first := d.classes[0].set
	for i, w := range set {
		first[lo+i] &^= w
	}
}

// Put sets the number of slots that were taken. set begins at word lo.
func (d *Depths) Put(lo int, set Set, depth uint32) {
	if len(d.classes) < maxClasses && d.slots >= minClass && set.Len() >= minClass {
		copy(d.add(depth)[lo:], set)
		return
	}
	for i, w := range set {
		d.others[lo+i] |= w
		for ; w != 0; w &= w - 1 {
			d.depth[(lo+i)*64+bits.TrailingZeros64(w)] = depth
		}
	}
}

// Set changes the number of one slot. A slot beyond the last one is added; the slots between
// have 0.
func (d *Depths) Set(slot uint32, depth uint32) {
	for int(slot) >= d.slots {
		if d.slots%64 == 0 {
			d.others = append(d.others, 0)
			for i := range d.classes {
				d.classes[i].set = append(d.classes[i].set, 0)
			}
			d.classes[0].set[d.slots/64] = ^uint64(0)
		}
		d.depth = append(d.depth, 0)
		d.slots++
	}
	for i := range d.classes {
		d.classes[i].set[slot/64] &^= 1 << (slot % 64)
	}
	d.others.Add(slot)
	d.depth[slot] = depth
}
