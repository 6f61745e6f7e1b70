package reservations

import "math/bits"

// holders knows, for every active prompt block of a scope, which slots hold it,
// how many reservations hold it there, and its weight there.
//
// Nearly every block has one owner slot and full weight; such a block is a
// single row of table. The row of a block has one of three forms:
//
//	a = slot            b = holders   one owner, full weight
//	a = slot | decayed  b = deficit   one owner, one holder, reduced weight
//	a = set | spilled   b = owners    the owners are a bit set; holders (b) and
//	                                  deficit (a) of each owner are in pairs
//
// The third form is used only where the first two cannot express the block. A
// *row is valid until a block is added or vanishes.
type holders struct {
	table flat[uint64]   // by block; the extra is for the user
	pairs flat[struct{}] // by pairKey
	sets  ownerSets
}

// blockRow is what is known of one block.
type blockRow = tableRow[uint64]

func newHolders(seed uint64) holders {
	return holders{
		table: flat[uint64]{seed: seed},
		pairs: flat[struct{}]{seed: ^seed},
		sets:  ownerSets{words: 1},
	}
}

const (
	spilled = 1 << 31
	decayed = 1 << 30
	// ownerMask takes the slot or set number out of a row.
	ownerMask = decayed - 1
)

// pairKey is the exact key of one owner of a spilled block.
func pairKey(set, slot uint32) uint64 { return uint64(set)<<32 | uint64(slot) }

// hold adds one holder of the block on slot.
func (h *holders) hold(block uint64, slot uint32) {
	e, found := h.table.put(block)
	if !found {
		e.a, e.b = slot, 1
		return
	}
	h.holdFound(e, slot)
}

// holdFound is hold for a block that somebody holds.
func (h *holders) holdFound(e *blockRow, slot uint32) (fresh bool) {
	owner := e.a & ownerMask
	switch {
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

// addSpilled adds a holder on slot to a spilled block.
func (h *holders) addSpilled(e *blockRow, slot uint32) (fresh bool) {
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

// spill turns a block with one owner into the third form.
func (h *holders) spill(e *blockRow, owner, deficit, holders uint32) {
	set := h.sets.alloc()
	setBit(h.sets.get(set), owner)
	p, _ := h.pairs.put(pairKey(set, owner))
	p.a, p.b = deficit, holders
	e.a, e.b = set|spilled, 1
}

// release takes one holder of the block away from slot, which must have one.
// gone reports that it was the last there; deficit is then what the block
// lacked in weight.
func (h *holders) release(e *blockRow, slot uint32) (gone bool, deficit uint32) {
	switch {
	case e.a&spilled != 0:
		return h.releaseSpilled(e, slot)
	case e.a&decayed != 0:
		deficit = e.b
	case e.b > 1:
		e.b--
		return false, 0
	}
	h.table.remove(e.key)
	return true, deficit
}

// releaseSpilled is release for a spilled block.
func (h *holders) releaseSpilled(e *blockRow, slot uint32) (gone bool, deficit uint32) {
	set := e.a & ownerMask
	p := h.pairs.find(pairKey(set, slot))
	if p.b > 1 {
		p.b--
		h.unspill(e)
		return false, 0
	}
	// There are other owners: a sole one with a sole holder would be settled.
	deficit = p.a
	h.pairs.remove(pairKey(set, slot))
	clearBit(h.sets.get(set), slot)
	e.b--
	h.unspill(e)
	return true, deficit
}

// unspill turns a spilled block back into a single row if that can express it.
func (h *holders) unspill(e *blockRow) {
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

// decay sets the deficit of the block on slot, which must hold it, if there is
// exactly one holder there. It returns the former deficit; ok is false, and
// nothing happens, if there are more holders.
func (h *holders) decay(block uint64, slot, deficit uint32) (former uint32, ok bool) {
	e := h.table.find(block)
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

// each calls f for every owner of a block.
func (h *holders) each(e *blockRow, f func(slot, holders uint32)) {
	switch {
	case e.a&spilled != 0:
		set := e.a & ownerMask
		for w, word := range h.sets.get(set) {
			for ; word != 0; word &= word - 1 {
				slot := uint32(w*64 + bits.TrailingZeros64(word))
				f(slot, h.pairs.find(pairKey(set, slot)).b)
			}
		}
	case e.a&decayed != 0:
		f(e.a&ownerMask, 1)
	default:
		f(e.a, e.b)
	}
}

// reset gives all memory back; only when nothing is held.
func (h *holders) reset() {
	h.table.reset()
	h.pairs.reset()
	h.sets = ownerSets{words: h.sets.words}
}
