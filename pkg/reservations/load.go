package reservations

import (
	"math"
	"math/bits"

	"github.com/select-service/select-service/pkg/catalog"
)

// fullWeight is the weight of a full block in fixed-point units. Weights are kept as
// deficits (whole - weight), so that a rank without decayed blocks has the sum
// zero: no history of additions and subtractions can make it drift.
const fullWeight = 1 << 31

// deficitOf converts a fraction in [0, 1].
func deficitOf(fraction float64) uint32 {
	return uint32(math.Round((1 - fraction) * fullWeight))
}

// load is what one rank carries.
type load struct {
	rank    catalog.Rank
	prefill tokenSum // unfinished prefill tokens
	blocks  uint64   // distinct prompt blocks and output blocks
	deficit uint64   // sum over these blocks, in units of 1/whole block
	decayed uint64   // how many of these blocks have a deficit
	held    []*entry
}

// reweigh accounts for n blocks whose deficit changes.
func (l *load) reweigh(n uint64, from, to uint32) {
	l.deficit += n*uint64(to) - n*uint64(from)
	if from != 0 {
		l.decayed -= n
	}
	if to != 0 {
		l.decayed += n
	}
}

// active is the weighted number of blocks, rounded half away from zero. Each
// deficit is right to half a unit only (three blocks at 5/6 make 2.5, whatever
// the last bit says), so a sum that may be a half counts as one.
func (l *load) active() uint64 {
	return (l.blocks*fullWeight - l.deficit + fullWeight/2 + l.decayed/2) / fullWeight
}

// tokenSum is a 128-bit sum: it cannot wrap, so taking back what was added
// leads back to zero exactly, whatever clients claim.
type tokenSum struct{ hi, lo uint64 }

func (s *tokenSum) add(n uint64) {
	var carry uint64
	s.lo, carry = bits.Add64(s.lo, n, 0)
	s.hi += carry
}

func (s *tokenSum) sub(n uint64) {
	var borrow uint64
	s.lo, borrow = bits.Sub64(s.lo, n, 0)
	s.hi -= borrow
}

// value saturates at 2^64-1.
func (s tokenSum) value() uint64 {
	if s.hi != 0 {
		return math.MaxUint64
	}
	return s.lo
}
