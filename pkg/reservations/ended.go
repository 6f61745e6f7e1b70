package reservations

import (
	"cmp"
	"slices"
	"sort"
)

// Range is the sequence numbers From to To, both inclusive.
type Range struct{ From, To uint64 }

// EndedSet is what a replica knows of the ended bookings of one process.
type EndedSet struct {
	// Ranges are the numbers that name no live booking any more, ascending and
	// with gaps between them. Numbers that never named a booking may be among them.
	Ranges []Range
	// Assumed is the number up to which Ranges are right for bookings without lease
	// only: they have what is old enough. math.MaxUint64 for what a replica says
	// that knows of no leases.
	Assumed uint64
	// Leases, ascending, are those of the numbers up to Assumed that named bookings
	// with a lease which have ended, as far as anyone may still have them live.
	Leases []Range
}

// Ended returns, for every process that numbers its bookings and that the ledger
// has heard of, what has ended. Of other processes all numbers below the last 2^23
// are assumed to have, and all that are older than 600 s. Bookings that went with
// their rank here have ended if this process accepted them.
func (l *Ledger) Ended() map[uint64]EndedSet {
	out := l.pasts.ends()
	// What this process named up to here is entered, or its scope is locked until
	// it is: each finds it, unless it has gone by then.
	last := l.named.Load()
	if last == 0 {
		return out
	}
	var open []uint64
	l.each(func(_ *scope, some []listed) {
		for _, x := range some {
			if x.origin.Process == l.process {
				open = append(open, x.origin.Sequence)
			}
		}
	})
	if own := without(last, open); len(own) > 0 {
		out[l.process] = EndedSet{Ranges: own}
	}
	return out
}

// without returns the ranges of 1 to last that are left without open.
func without(last uint64, open []uint64) (out []Range) {
	slices.Sort(open)
	from := uint64(1)
	for _, n := range open {
		if n > last {
			break
		}
		out = appendRange(out, Range{from, n - 1})
		from = n + 1
	}
	return appendRange(out, Range{from, last})
}

// MergeEnded joins what another replica's Ended says of one process: its
// bookings of these numbers never come to life again. It returns how many ended
// just now. Ranges may overlap and come in any order.
func (l *Ledger) MergeEnded(process uint64, ended EndedSet) (freed int) {
	ended.Ranges, ended.Leases = ascending(ended.Ranges), ascending(ended.Leases)
	if l.pasts.merge(process, ended, l.at()) == 0 {
		return 0
	}
	l.each(func(s *scope, some []listed) {
		due := some[:0]
		for _, x := range some {
			if x.origin.Process == process && x.origin.counts() && ended.have(x.origin.Sequence, x.lease > 0) {
				due = append(due, x)
			}
		}
		freed += s.endListed(due)
	})
	l.freed.Add(uint64(freed))
	l.merged.Add(uint64(freed))
	return freed
}

// endListed ends those that are live still, a few per lock.
func (s *scope) endListed(due []listed) (ended int) {
	for part := range slices.Chunk(due, sweepPerLock) {
		s.mu.Lock()
		for _, x := range part {
			if !x.ended {
				s.end(x.entry, freed)
				ended++
			}
		}
		s.mu.Unlock()
	}
	return ended
}

// have reports whether the booking of that number has ended.
func (e *EndedSet) have(n uint64, leased bool) bool {
	if leased && n <= e.Assumed {
		return contains(e.Leases, n)
	}
	return contains(e.Ranges, n)
}

// ascending returns the ranges that are not empty, sorted and without overlaps.
func ascending(in []Range) []Range {
	sorted := slices.Clone(in)
	slices.SortFunc(sorted, func(a, b Range) int { return cmp.Compare(a.From, b.From) })
	out := sorted[:0]
	for _, r := range sorted {
		switch n := len(out); {
		case r.From > r.To:
		case n > 0 && r.From <= out[n-1].To:
			out[n-1].To = max(out[n-1].To, r.To)
		default:
			out = append(out, r)
		}
	}
	return out
}

// contains reports whether n is in one of the ascending ranges.
func contains(ranges []Range, n uint64) bool {
	i := sort.Search(len(ranges), func(i int) bool { return ranges[i].To >= n })
	return i < len(ranges) && ranges[i].From <= n
}
