package reservations

import (
	"maps"
	"math/bits"
	"slices"
)

const (
	pageShift = 13 // 8,192 numbers, 1 KiB
	pageWords = 1 << (pageShift - 6)
)

// bitmap is a set of sequence numbers, made of pages that appear on demand.
type bitmap map[uint64]*[pageWords]uint64

func (b bitmap) has(n uint64) bool {
	p := b[n>>pageShift]
	return p != nil && p[n>>6%pageWords]>>(n&63)&1 != 0
}

func (b bitmap) set(n uint64) {
	b.page(n >> pageShift)[n>>6%pageWords] |= 1 << (n & 63)
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

// prune gives back the pages whose numbers are all up to floor, which is below
// 2^64-1.
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

// appendRanges appends the members above floor, ascending.
func (b bitmap) appendRanges(out []Range, floor uint64) []Range {
	for _, i := range slices.Sorted(maps.Keys(b)) {
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

// appendRange appends r, which is above all others, unless it is empty. If it is
// next to the last one it is united with it.
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
