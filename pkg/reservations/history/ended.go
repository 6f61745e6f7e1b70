package history

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"
	"sort"
)

// Range is the sequence numbers From to To, both inclusive.
type Range struct{ From, To uint64 }

// EndedSet is what a replica knows of the ended reservations of one process.
type EndedSet struct {
	// Ranges are the numbers that name no live reservation any more, ascending and
	// with gaps between them. Numbers that never named one may be among them.
	Ranges []Range
	// Assumed is a number up to which Ranges hold only for reservations without lease,
	// because old numbers are in Ranges by age. It is math.MaxUint64 in what comes from
	// a replica that does not know leases.
	Assumed uint64
	// Leases, ascending, are the numbers up to Assumed of reservations with a lease that
	// have ended, as long as any replica may still have them live.
	Leases []Range
}

// Normalized returns the set with its ranges ascending and without overlaps. It
// shares nothing with e.
func (e EndedSet) Normalized() EndedSet {
	e.Ranges, e.Leases = ascending(e.Ranges), ascending(e.Leases)
	return e
}

// Has reports whether the reservation of that number, with or without lease, is
// in the set, which is normalized.
func (e EndedSet) Has(number uint64, leased bool) bool {
	if leased && number <= e.Assumed {
		return contains(e.Leases, number)
	}
	return contains(e.Ranges, number)
}

// AllBut returns the ranges of 1 to last without the numbers open, which it sorts.
func AllBut(last uint64, open []uint64) (out []Range) {
	slices.Sort(open)
	from := uint64(1)
	for _, number := range open {
		if number > last {
			break
		}
		out = appendRange(out, Range{from, number - 1})
		from = number + 1
	}
	return appendRange(out, Range{from, last})
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

// contains reports whether a number is in one of the ascending ranges.
func contains(ranges []Range, number uint64) bool {
	i := sort.Search(len(ranges), func(i int) bool { return ranges[i].To >= number })
	return i < len(ranges) && ranges[i].From <= number
}

// appendRange appends r, which is above all others, unless it is empty. If it is
// next to the last one, the two become one.
func appendRange(out []Range, r Range) []Range {
	if r.From > r.To {
		return out
	}
	if n := len(out); n > 0 && out[n-1].To == r.From-1 {
		out[n-1].To = r.To
		return out
	}
	return append(out, r)
}

const (
	pageShift = 13 // 8,192 numbers, 1 KiB
	pageWords = 1 << (pageShift - 6)
)

// bitmap is a set of sequence numbers, made of pages that are allocated on demand.
type bitmap map[uint64]*[pageWords]uint64

func (b bitmap) has(number uint64) bool {
	p := b[number>>pageShift]
	return p != nil && p[number>>6%pageWords]>>(number&63)&1 != 0
}

func (b bitmap) set(number uint64) {
	b.page(number >> pageShift)[number>>6%pageWords] |= 1 << (number & 63)
}

func (b bitmap) page(i uint64) *[pageWords]uint64 {
	p := b[i]
	if p == nil {
		p = new([pageWords]uint64)
		b[i] = p
	}
	return p
}

// setRange sets from to to, both inclusive.
func (b bitmap) setRange(from, to uint64) {
	for w := from >> 6; w <= to>>6; w++ {
		mask := ^uint64(0)
		if w == from>>6 {
			mask <<= from & 63
		}
		if w == to>>6 {
			mask &= ^uint64(0) >> (63 - to&63)
		}
		b.page(w / pageWords)[w%pageWords] |= mask
	}
}

// prune gives back the pages of which all numbers are at most floor, which must be
// below 2^64-1.
func (b bitmap) prune(floor uint64) {
	for i := range b {
		if i < (floor+1)>>pageShift {
			delete(b, i)
		}
	}
}

// clone returns a copy that shares nothing.
func (b bitmap) clone() bitmap {
	c := make(bitmap, len(b))
	for i, p := range b {
		q := *p
		c[i] = &q
	}
	return c
}

// appendRanges appends the members above floor as ascending ranges. It stops at the end
// of the page with which out has at least most ranges.
func (b bitmap) appendRanges(out []Range, floor uint64, most int) []Range {
	for _, i := range slices.Sorted(maps.Keys(b)) {
		if len(out) >= most {
			break
		}
		for w, word := range b[i] {
			base := i<<pageShift | uint64(w)<<6
			for word != 0 {
				start := uint64(bits.TrailingZeros64(word))
				run := uint64(bits.TrailingZeros64(^(word >> start)))
				out = appendRange(out, Range{max(base+start, floor+1), base + start + run - 1})
				if start+run >= 64 {
					break
				}
				word = word >> (start + run) << (start + run)
			}
		}
	}
	return out
}
