package reservations

import "github.com/select-service/select-service/internal/container/slotset"

// leading has, for each slot, how many leading blocks of a prompt are leading blocks of
// an active prompt there too.
type leading struct {
	depths slotset.Depths
	// Scratch: the slots that match so far, and those that do not match the next block.
	matching, leave slotset.Set
}

// find fills l in for that many slots, and returns the prompt's walk. It walks the tree once for
// all slots: who holds a run holds what is before it.
func (l *leading) find(b *prefixes, hashes []uint64, slots int) (m match) {
	l.depths.Reset(slots)
	words := slotset.Words(slots)
	m, more := b.step(match{}, hashes)
	if !more {
		return m
	}
	h := &b.holders
	l.matching, l.leave = l.matching.Zeroed(words), l.leave.Zeroed(words)
	h.owners(&b.nodes[m.node].owners, l.matching)
	// Every member of matching is in the words [lo, hi).
	lo, hi := bounds(l.matching, 0, words)
	l.depths.Take(lo, l.matching[lo:hi])
	for {
		before := m.n
		if m, more = b.step(m, hashes[m.n:]); !more {
			break
		}
		if l.intersect(h, &b.nodes[m.node].owners, lo, hi) {
			l.depths.Put(lo, l.leave[lo:hi], uint32(before))
			lo, hi = bounds(l.matching, lo, hi)
		}
	}
	l.depths.Put(lo, l.matching[lo:hi], uint32(m.n))
	return m
}

// owners adds the owners of a run to matching, which is empty.
func (h *holders) owners(e *owners, matching slotset.Set) {
	if e.a&spilled != 0 {
		copy(matching, h.sets.get(e.a&ownerMask))
		return
	}
	matching.Add(e.a & ownerMask)
}

// intersect keeps only the owners of a run in matching and moves the others to leave.
// It reports whether there are others.
func (l *leading) intersect(h *holders, e *owners, lo, hi int) bool {
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
