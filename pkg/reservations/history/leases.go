package history

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// endedLeases remembers ends of reservations with long leases, by number, where
// the window of their process may have gone by. It is bounded: what would be
// forgotten next makes room.
type endedLeases map[uint64]endedLease

type endedLease struct {
	until time.Duration // from then on no replica can have it live
	tell  bool          // other replicas are told: it has ended for all
}

// maxEndedLeases bounds the entries of one process.
const maxEndedLeases = 1 << 16

// put remembers an end. Of two ends of one number the later until holds, and a
// tell that was set once stays.
func (c endedLeases) put(number uint64, e endedLease) {
	old, known := c[number]
	if !known && len(c) >= maxEndedLeases {
		c.makeRoom()
	}
	c[number] = endedLease{max(old.until, e.until), old.tell || e.tell}
}

// makeRoom removes an eighth, one at least, so that a full map is not sorted for every
// entry.
func (c endedLeases) makeRoom() {
	soonest := slices.SortedFunc(maps.Keys(c), func(a, b uint64) int {
		return cmp.Or(cmp.Compare(c[a].until, c[b].until), cmp.Compare(a, b))
	})
	for _, number := range soonest[:(len(soonest)+7)/8] {
		delete(c, number)
	}
}

// dropOld returns the ends that still matter.
func (c endedLeases) dropOld(at time.Duration) endedLeases {
	before := len(c)
	maps.DeleteFunc(c, func(_ uint64, e endedLease) bool { return e.until < at })
	if 2*len(c) >= before {
		return c
	}
	return maps.Clone(c) // maps never shrink
}

// ranges returns what other replicas are told.
func (c endedLeases) ranges() (out []Range) {
	for _, number := range slices.Sorted(maps.Keys(c)) {
		if c[number].tell {
			out = appendRange(out, Range{number, number})
		}
	}
	return out
}

// firstOf lists the first numbers of ascending ranges, at most limit: more would
// only push each other out, and the width of a range does not say how many
// reservations there were.
func firstOf(ranges []Range, limit int) (out []uint64) {
	for _, r := range ranges {
		for number := r.From; number <= r.To && number != math.MaxUint64; number++ {
			if len(out) == limit {
				return out
			}
			out = append(out, number)
		}
	}
	return out
}
