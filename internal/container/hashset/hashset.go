package hashset

import (
	"math/bits"
	"math/rand/v2"
)

// Set is a set of 64-bit hashes with open addressing and linear probing. It is
// meant to be reused: Reset costs nothing while the set has room. The zero
// value has room for no hash; call Reset first. A Set is not safe for
// concurrent use.
type Set struct {
	slots []slot // a power of two, at least two per hash
	shift uint8  // 64 - log2(len(slots))
	// round is the number of the present round of use, never 0. A slot of
	// another round is empty.
	round uint32
	// factor is odd and random. The upper bits of its product with a hash choose
	// the hash's first slot (multiply-shift hashing, Dietzfelbinger et al. 1997).
	factor uint64
}

type slot struct {
	hash  uint64
	round uint32
}

// Reset empties the set and makes room for n hashes. It allocates only if the
// set never had room for as many.
func (s *Set) Reset(n int) {
	if s.factor == 0 {
		s.factor = rand.Uint64() | 1
	}
	log := bits.Len(uint(2*max(n, 1) - 1))
	s.shift = uint8(64 - log)
	if size := 1 << log; size <= cap(s.slots) {
		s.slots = s.slots[:size]
	} else {
		s.slots, s.round = make([]slot, size), 0
	}
	if s.round++; s.round == 0 {
		clear(s.slots[:cap(s.slots)])
		s.round = 1
	}
}

// Add puts h into the set and reports whether it was new. The set must have
// room for it.
func (s *Set) Add(h uint64) bool {
	mask := len(s.slots) - 1
	for i := int(h * s.factor >> s.shift); ; i = (i + 1) & mask {
		at := &s.slots[i]
		if at.round != s.round {
			*at = slot{h, s.round}
			return true
		}
		if at.hash == h {
			return false
		}
	}
}

// ChainRepeats empties the set and reports whether a hash comes twice in a
// chain of blocks. With hasParent, parent is the first hash of the chain.
func (s *Set) ChainRepeats(parent uint64, hasParent bool, hashes []uint64) bool {
	if len(hashes) == 1 {
		return hasParent && parent == hashes[0]
	}
	s.Reset(len(hashes) + 1)
	if hasParent {
		s.Add(parent)
	}
	for _, h := range hashes {
		if !s.Add(h) {
			return true
		}
	}
	return false
}
