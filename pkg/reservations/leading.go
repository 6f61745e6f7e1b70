package reservations

import "math/bits"

// leading sets depth[slot], for every slot, to the length of the longest leading
// run of hashes that lies on the active prompts there. depth, and alive with one
// word per 64 slots, are zero on entry. The prompt is walked once for all slots:
// alive has those that match so far, and the walk ends when none is left.
func (b *blocks) leading(hashes, alive []uint64, depth []uint32) {
	// Every member of alive is in the words [lo, hi).
	lo, hi := 0, len(alive)
	path := b.root
	for i, hash := range hashes {
		path = extend(path, hash)
		h, e := b.onPath(hash, path)
		switch {
		case e == nil:
			setDepth(alive, lo, hi, depth, i)
			return
		case i == 0:
			h.owners(e, alive)
		default:
			h.intersect(e, alive, lo, hi, depth, i)
		}
		if lo, hi = bounds(alive, lo, hi); lo == hi {
			return
		}
	}
	setDepth(alive, lo, hi, depth, len(hashes))
}

// owners adds the owners of a block to alive, which is empty.
func (h *holders) owners(e *blockRow, alive []uint64) {
	if e.a&spilled != 0 {
		copy(alive, h.sets.get(e.a&ownerMask))
		return
	}
	setBit(alive, e.a&ownerMask)
}

// intersect keeps in alive the owners of a block; the others end with depth at.
func (h *holders) intersect(e *blockRow, alive []uint64, lo, hi int, depth []uint32, at int) {
	if e.a&spilled == 0 {
		owner := e.a & ownerMask
		stays := hasBit(alive, owner)
		clearBit(alive, owner)
		setDepth(alive, lo, hi, depth, at)
		clear(alive[lo:hi])
		if stays {
			setBit(alive, owner)
		}
		return
	}
	set := h.sets.get(e.a & ownerMask)
	for w := lo; w < hi; w++ {
		for out := alive[w] &^ set[w]; out != 0; out &= out - 1 {
			depth[w*64+bits.TrailingZeros64(out)] = uint32(at)
		}
		alive[w] &= set[w]
	}
}

// setDepth gives depth at to every slot in the words [lo, hi) of set.
func setDepth(set []uint64, lo, hi int, depth []uint32, at int) {
	for w := lo; w < hi; w++ {
		for m := set[w]; m != 0; m &= m - 1 {
			depth[w*64+bits.TrailingZeros64(m)] = uint32(at)
		}
	}
}

// bounds narrows [lo, hi) to the words of set that are not zero at its ends.
func bounds(set []uint64, lo, hi int) (int, int) {
	for lo < hi && set[lo] == 0 {
		lo++
	}
	for hi > lo && set[hi-1] == 0 {
		hi--
	}
	return lo, hi
}
