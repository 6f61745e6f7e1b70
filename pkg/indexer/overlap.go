package indexer

import (
	"math/bits"

	"github.com/select-service/select-service/internal/container/slotset"
)

// Overlap is the answer of Space.Overlap, in blocks, per slot: the prefix on
// the device, how far the host tier continues it, and how far disk and external
// storage continue that. Reusing an Overlap saves memory. Slots that the index
// does not know hold nothing.
type Overlap struct {
	device slotset.Depths
	// lower has the slots with blocks in a lower tier too. host and disk are valid for
	// these only: during the walk they are depths, at its end lengths.
	lower      slotset.Set
	host, disk []uint32

	// Scratch: the ranks that the walk follows, by the tier in which it follows them,
	// and those that leave the device.
	live   [NumTiers]slotset.Set
	leave  slotset.Set
	path   []uint32 // the cells of the prompt's blocks
	prefix groupedPrefix
}

// At returns the overlap of one slot in blocks.
func (o *Overlap) At(slot uint32) (device, host, disk uint32) {
	device = o.device.At(slot)
	if o.lower.Has(slot) {
		host, disk = o.host[slot], o.disk[slot]
	}
	return device, host, disk
}

// Classes returns the number of classes. A class is a set of many slots with the same
// overlap, on the device alone; see Class and ClassSlots. Slots need not be in a class.
func (o *Overlap) Classes() int { return o.device.Classes() }

// Class returns how many blocks the slots of a class hold on the device.
func (o *Overlap) Class(class int) (device uint32) { return o.device.Depth(class) }

// ClassSlots returns word w of the bit set of a class's slots, with 64 slots to a word.
func (o *Overlap) ClassSlots(class, w int) uint64 {
	slots := o.device.Class(class, w)
	if w < len(o.lower) {
		slots &^= o.lower[w]
	}
	return slots
}

// RaiseDevice raises the device's prefix of every slot to that of another overlap of
// the same prompt, where that is longer. The additions of the lower tiers stay.
func (o *Overlap) RaiseDevice(other *Overlap) {
	for w := range slotset.Words(other.device.Slots()) {
		for set := ^other.device.Class(0, w); set != 0; set &= set - 1 {
			slot := uint32(w*64 + bits.TrailingZeros64(set))
			if device := other.device.At(slot); device > o.device.At(slot) {
				o.device.Set(slot, device)
			}
		}
	}
}

// reset empties o: no slot holds anything.
func (o *Overlap) reset(slots, tiers int) {
	words := slotset.Words(slots)
	o.device.Reset(slots)
	o.leave = o.leave.Zeroed(words)
	o.lower = o.lower[:0]
	for tier := range tiers {
		o.live[tier] = o.live[tier].Zeroed(words)
	}
	if tiers > 1 {
		o.lower = o.lower.Zeroed(words)
		o.host, o.disk = sized(o.host, slots), sized(o.disk, slots)
	}
}

// sized returns a slice of length n with undefined content, in s's memory if that
// suffices.
func sized(s []uint32, n int) []uint32 {
	if cap(s) < n {
		return make([]uint32, n)
	}
	return s[:n]
}

// Overlap follows a prompt, given as local block hashes, through the tree and
// fills o. Each rank is followed through the tiers in order, each tier once:
// where its blocks end in one tier, the next tier may continue. The prefix on the
// device of a rank with several attention groups is what all of them can serve.
func (s *Space) Overlap(local []uint64, o *Overlap) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := &s.tree
	tiers := NumTiers
	if s.blocks[Host]+s.blocks[Disk]+s.blocks[External] == 0 {
		tiers = 1
	}
	o.reset(len(s.ranks), tiers)
	if t.live == 0 {
		return
	}
	depth := t.overlap(local, o, tiers, s.clearing)
	o.finish(depth, tiers)
	if s.hybridSlots > 0 {
		s.endWhereAllGroupsServe(local, o)
	}
}

// overlap follows the prompt and returns the number of blocks that it found.
func (t *tree) overlap(local []uint64, o *Overlap, tiers int, clearing []uint64) uint32 {
	depth := 0
	for id := uint32(root); depth < len(local); {
		id = t.child(id, local[depth])
		if id == 0 {
			break
		}
		nd := t.node(id)
		if depth == 0 {
			t.firstHolders(nd, o, tiers, clearing)
		} else if !t.advanceTiers(nd, uint32(depth), o, tiers) {
			break // no rank holds the next block
		}
		m := t.match(position{id, 0}, local[depth:])
		depth += m
		if m < int(nd.n) {
			break
		}
	}
	return uint32(depth)
}

// runHolders are the holders of a run in one tier: a set, or one bit of a word.
type runHolders struct {
	set  []uint64
	word int
	bit  uint64
}

// holdersOf returns the holders of a run in each tier.
func (t *tree) holdersOf(nd *node, tiers int) (of [NumTiers]runHolders) {
	for tier := range tiers {
		switch h := nd.holders[tier]; {
		case h == noHolder:
		case h&single == 0:
			of[tier].set = t.sets.set(h)
		default:
			slot := uint32(h &^ single)
			of[tier].word, of[tier].bit = int(slot/64), 1<<(slot%64)
		}
	}
	return of
}

// in returns word w of the holders' bit set.
func (r *runHolders) in(w int) uint64 {
	switch {
	case r.set != nil:
		return r.set[w]
	case r.word == w:
		return r.bit
	}
	return 0
}

// firstHolders begins the walk with the ranks that hold the prompt's first run, each in
// the first tier in which it does.
func (t *tree) firstHolders(nd *node, o *Overlap, tiers int, clearing []uint64) {
	held := t.holdersOf(nd, tiers)
	for w := range o.leave {
		taken := clearing[w]
		for tier := range tiers {
			live := held[tier].in(w) &^ taken
			taken |= live
			o.live[tier][w] = live
			if tier > int(Device) {
				o.lower[w] |= live
				for upper := Host; upper < Tier(tier); upper++ {
					o.recordEnd(upper, w, live, 0)
				}
			}
		}
	}
	o.device.Take(0, o.live[Device])
}

// advanceTiers moves every rank that does not hold the run at depth in its
// present tier to the next tier, and reports whether any rank is left in a tier
// that holds the run.
func (t *tree) advanceTiers(nd *node, depth uint32, o *Overlap, tiers int) bool {
	held := t.holdersOf(nd, tiers)
	stay, left := uint64(0), uint64(0)
	for w := range o.leave {
		var gone [NumTiers]uint64
		carry, below := uint64(0), uint64(0) // ranks from the tier before; ranks that lower tiers keep
		for tier := range tiers {
			live := o.live[tier][w] | carry
			kept := live & held[tier].in(w)
			o.live[tier][w] = kept
			carry = live &^ kept
			gone[tier] = carry
			stay |= kept
			if tier > int(Device) {
				below |= kept
			}
		}
		o.leave[w] = gone[Device]
		left |= gone[Device]
		if tiers > 1 {
			o.lower[w] |= below
			for tier := Host; tier < NumTiers; tier++ {
				o.recordEnd(tier, w, gone[tier]&o.lower[w], depth)
			}
		}
	}
	if left != 0 {
		o.device.Put(0, o.leave, depth)
	}
	return stay != 0
}

// recordEnd records that ranks leave a lower tier at a depth.
func (o *Overlap) recordEnd(t Tier, word int, gone uint64, depth uint32) {
	var ends []uint32
	switch t {
	case Host:
		ends = o.host
	case External:
		ends = o.disk
	default:
		return // disk and external storage are shown as one
	}
	for ; gone != 0; gone &= gone - 1 {
		ends[word*64+bits.TrailingZeros64(gone)] = depth
	}
}

// finish ends the walk at depth for the ranks that are left, and turns the depths
// at which tiers end into their lengths.
func (o *Overlap) finish(depth uint32, tiers int) {
	o.device.Put(0, o.live[Device], depth)
	if tiers == 1 {
		return
	}
	for w, lower := range o.lower {
		for tier := Host; tier < NumTiers; tier++ {
			for below := tier; below < NumTiers; below++ {
				o.recordEnd(below, w, o.live[tier][w], depth)
			}
		}
		for ; lower != 0; lower &= lower - 1 {
			slot := w*64 + bits.TrailingZeros64(lower)
			o.disk[slot] -= o.host[slot]
			o.host[slot] -= o.device.At(uint32(slot))
		}
	}
}
