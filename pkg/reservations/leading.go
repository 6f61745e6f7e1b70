package reservations

import "github.com/select-service/select-service/internal/slotset"

// leading has, for each slot, how many leading blocks of a prompt are leading blocks of
// an active prompt there too.
type leading struct {
	depths slotset.Depths
	// Scratch: the slots that match so far, and those that do not match the next block.
	matching, leave slotset.Set
}

// find fills l in for that many slots. It walks the prompt once for all of them, until
// no slot matches.
func (l *leading) find(b *blocks, hashes []uint64, slots int) {
	l.depths.Reset(slots)
	words := slotset.Words(slots)
	// Every member of matching is in the words [lo, hi).
	lo, hi := 0, words
	path := uint64(rootPath)
	for i, hash := range hashes {
		var h *holders
		var e *blockRow
		path, h, e = b.after(path, hash)
		switch {
		case e == nil && i == 0:
			return
		case e == nil:
			l.depths.Put(lo, l.matching[lo:hi], uint32(i))
			return
		case i == 0:
			l.matching, l.leave = l.matching.Zeroed(words), l.leave.Zeroed(words)
			h.owners(e, l.matching)
			lo, hi = bounds(l.matching, lo, hi)
			l.depths.Take(lo, l.matching[lo:hi])
		case l.intersect(h, e, lo, hi):
			l.depths.Put(lo, l.leave[lo:hi], uint32(i))
			if lo, hi = bounds(l.matching, lo, hi); lo == hi {
				return
			}
		}
	}
	if len(hashes) > 0 {
		l.depths.Put(lo, l.matching[lo:hi], uint32(len(hashes)))
	}
}

// owners adds the owners of a block to matching, which is empty.
func (h *holders) owners(e *blockRow, matching slotset.Set) {
	if e.a&spilled != 0 {
		copy(matching, h.sets.get(e.a&ownerMask))
		return
	}
	matching.Add(e.a & ownerMask)
}

// intersect keeps only the owners of a block in matching and moves the others to leave.
// It reports whether there are others.
func (l *leading) intersect(h *holders, e *blockRow, lo, hi int) bool {
	left := uint64(0)
	if e.a&spilled == 0 {
		word, bit := int(e.a&ownerMask/64), uint64(1)<<(e.a&ownerMask%64)
		for w := lo; w < hi; w++ {
			own := uint64(0)
			if w == word {
				own = bit
			}
			l.leave[w] = l.matching[w] &^ own
			l.matching[w] &= own
			left |= l.leave[w]
		}
		return left != 0
	}
	set := h.sets.get(e.a & ownerMask)
	for w := lo; w < hi; w++ {
		l.leave[w] = l.matching[w] &^ set[w]
		l.matching[w] &= set[w]
		left |= l.leave[w]
	}
	return left != 0
}

// bounds narrows [lo, hi) to the words of set that are not zero at its ends.
func bounds(set slotset.Set, lo, hi int) (int, int) {
	for lo < hi && set[lo] == 0 {
		lo++
	}
	for hi > lo && set[hi-1] == 0 {
		hi--
	}
	return lo, hi
}
