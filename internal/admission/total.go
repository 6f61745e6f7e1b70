package admission

import (
	"math"
	"math/bits"
)

// total is an exact sum of uint64 that can be taken back: prompt lengths come
// from clients, so 64 bits could overflow.
type total struct {
	high, low uint64
}

func (t *total) add(v uint64) {
	var carry uint64
	t.low, carry = bits.Add64(t.low, v, 0)
	t.high += carry
}

func (t *total) sub(v uint64) {
	var borrow uint64
	t.low, borrow = bits.Sub64(t.low, v, 0)
	t.high -= borrow
}

// value saturates.
func (t *total) value() uint64 {
	if t.high != 0 {
		return math.MaxUint64
	}
	return t.low
}

func addSaturating(a, b uint64) uint64 {
	if sum := a + b; sum >= a {
		return sum
	}
	return math.MaxUint64
}

func mulSaturating(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	if high != 0 {
		return math.MaxUint64
	}
	return low
}
