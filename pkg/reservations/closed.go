package reservations

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// closed remembers ends of long leases, by number, where the window of a past may
// have gone by. It is bounded: what would be forgotten next makes room.
type closed map[uint64]closedLease

type closedLease struct {
	until time.Duration // nobody can have it live any more; since Ledger.start
	told  bool          // to other replicas: it has ended for all
}

// maxClosed bounds the entries of one process.
const maxClosed = 1 << 16

// put remembers an end; told once is told for ever.
func (c closed) put(n uint64, e closedLease) {
	old, known := c[n]
	if !known && len(c) >= maxClosed {
		c.makeRoom()
	}
	c[n] = closedLease{max(old.until, e.until), old.told || e.told}
}

// makeRoom takes an eighth away, so that full is not sorted for every entry.
func (c closed) makeRoom() {
	soonest := slices.SortedFunc(maps.Keys(c), func(a, b uint64) int {
		return cmp.Or(cmp.Compare(c[a].until, c[b].until), cmp.Compare(a, b))
	})
	for _, n := range soonest[:len(soonest)/8] {
		delete(c, n)
	}
}

// firstOf lists the first ones of ascending ranges, at most limit: more would only
// push each other out, and a range says nothing of how many bookings there were.
func firstOf(ranges []Range, limit int) (out []uint64) {
	for _, r := range ranges {
		for n := r.From; n <= r.To && n != math.MaxUint64; n++ {
			if len(out) == limit {
				return out
			}
			out = append(out, n)
		}
	}
	return out
}

// forget gives back what is too old.
func (c closed) forget(at time.Duration) {
	maps.DeleteFunc(c, func(_ uint64, e closedLease) bool { return e.until < at })
}

// ranges returns what others are told of.
func (c closed) ranges() (out []Range) {
	for _, n := range slices.Sorted(maps.Keys(c)) {
		if c[n].told {
			out = appendRange(out, Range{n, n})
		}
	}
	return out
}
