package reservations

import (
	"cmp"
	"slices"
	"sort"
)

// Range is the sequence numbers From to To, both inclusive.
type Range struct{ From, To uint64 }

// Ended returns, for every process that numbers its bookings and that the ledger
// has heard of, the numbers that name no live booking any more, as ascending
// ranges with gaps between them. Numbers that never named a booking may be among
// them, and so are all below the last 2^23 of a process, and all that are older
// than 600 s. Bookings that went with their rank here are among them if this
// process accepted them.
func (l *Ledger) Ended() map[uint64][]Range {
	out := l.pasts.ranges()
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
		out[l.process] = own
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
func (l *Ledger) MergeEnded(process uint64, ended []Range) (freed int) {
	ended = ascending(ended)
	if l.pasts.endRanges(process, ended, l.at()) == 0 {
		return 0
	}
	l.each(func(s *scope, some []listed) {
		due := some[:0]
		for _, x := range some {
			if x.origin.Process == process && x.origin.counts() && contains(ended, x.origin.Sequence) {
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
				s.end(x.reservation, false)
				ended++
			}
		}
		s.mu.Unlock()
	}
	return ended
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
