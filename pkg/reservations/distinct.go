package reservations

import (
	"math/bits"
	"math/rand/v2"
	"sync"
)

// seenSets are scratch tables of distinct; rows are block hashes, 0 = free.
var (
	seenSets = sync.Pool{New: func() any { return new([]uint64) }}
	seenSeed = rand.Uint64()
)

// distinct returns hashes without repeats: the slice itself if there are none,
// as in every prompt hashed by the rules, else a copy of the first occurrences.
func distinct(hashes []uint64) []uint64 {
	if len(hashes) < 2 {
		return hashes
	}
	pooled := seenSets.Get().(*[]uint64)
	seen := hashSet{rows: zeroed(*pooled, 1<<bits.Len(uint(2*len(hashes))))}
	out := hashes
	for i, h := range hashes {
		switch fresh := seen.add(h); {
		case fresh && len(out) != len(hashes):
			out = append(out, h)
		case !fresh && len(out) == len(hashes):
			out = append(make([]uint64, 0, len(hashes)-1), hashes[:i]...)
		}
	}
	*pooled = seen.rows
	seenSets.Put(pooled)
	return out
}

// hashSet is a fixed-size set with room for half as many hashes as rows.
type hashSet struct {
	rows []uint64 // length a power of two
	zero bool     // whether hash 0 is a member
}

// add reports whether h is new.
func (s *hashSet) add(h uint64) bool {
	if h == 0 {
		fresh := !s.zero
		s.zero = true
		return fresh
	}
	mask := uint64(len(s.rows) - 1)
	for i := mix(h, seenSeed) & mask; ; i = (i + 1) & mask {
		switch s.rows[i] {
		case 0:
			s.rows[i] = h
			return true
		case h:
			return false
		}
	}
}
