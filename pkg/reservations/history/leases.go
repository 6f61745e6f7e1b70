package history

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// endedLeases remembers the ends of reservations with leases so long that the window of
// their process may move past their numbers. It is bounded: the ends that would be
// forgotten first make room.
type endedLeases map[uint64]endedLease

type endedLease struct {
	until  time.Duration // from then on no replica can have it live
	report bool          // it has ended for all replicas, and is reported to them
}

// maxEndedLeases bounds the entries of one process.
const maxEndedLeases = 1 << 16

// put remembers an end. Of two ends of one number the later until holds, and a
// report that was set once stays.
func (l endedLeases) put(number uint64, e endedLease) {
	old, known := l[number]
	if !known && len(l) >= maxEndedLeases {
		l.makeRoom()
	}
	l[number] = endedLease{max(old.until, e.until), old.report || e.report}
}

// makeRoom removes the eighth with the earliest until, at least one: with fewer, a full
// map would be sorted for every new entry.
func (l endedLeases) makeRoom() {
	soonest := slices.SortedFunc(maps.Keys(l), func(a, b uint64) int {
		return cmp.Or(cmp.Compare(l[a].until, l[b].until), cmp.Compare(a, b))
	})
	for _, number := range soonest[:(len(soonest)+7)/8] {
		delete(l, number)
	}
}

// dropOld returns the ends whose until has not passed.
func (l endedLeases) dropOld(at time.Duration) endedLeases {
	before := len(l)
	maps.DeleteFunc(l, func(_ uint64, e endedLease) bool { return e.until < at })
	if 2*len(l) >= before {
		return l
	}
	return maps.Clone(l) // maps never shrink
}

// ranges returns the numbers that are reported to other replicas.
func (l endedLeases) ranges() (out []Range) {
	for _, number := range slices.Sorted(maps.Keys(l)) {
		if l[number].report {
			out = appendRange(out, Range{number, number})
		}
	}
	return out
}

// firstOf returns the first numbers of ascending ranges, at most limit: more would only
// push each other out of endedLeases, and a hostile range may be of any width.
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
