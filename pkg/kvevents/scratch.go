package kvevents

import (
	"math/bits"
	"math/rand/v2"

	"github.com/select-service/select-service/pkg/indexer"
)

// scratch is reused from event to event and from batch to batch.
type scratch struct {
	local []uint64
	store indexer.Store

	// seen is an open hash set of block hashes. An entry counts if its round is
	// the present one, so that a new event needs no clearing.
	seen  []seenHash
	round uint32
	spin  uint64 // odd and random: nobody can aim at one slot
}

type seenHash struct {
	hash  uint64
	round uint32
}

// repeats reports whether a hash comes twice in an event, its parent included.
func (s *scratch) repeats(ev *Event) bool {
	if len(ev.Names) == 1 {
		return ev.HasParent && ev.Parent == ev.Names[0]
	}
	s.begin(len(ev.Names) + 1)
	if ev.HasParent {
		s.add(ev.Parent)
	}
	for _, h := range ev.Names {
		if !s.add(h) {
			return true
		}
	}
	return false
}

// begin empties the set and makes room for n hashes.
func (s *scratch) begin(n int) {
	if s.spin == 0 {
		s.spin = rand.Uint64() | 1
	}
	if len(s.seen) < 2*n {
		s.seen, s.round = make([]seenHash, 1<<bits.Len(uint(2*n-1))), 0
	}
	if s.round++; s.round == 0 {
		clear(s.seen)
		s.round = 1
	}
}

// add puts h into the set and reports whether it was new.
func (s *scratch) add(h uint64) bool {
	mask := len(s.seen) - 1
	for i := int(h*s.spin>>32) & mask; ; i = (i + 1) & mask {
		at := &s.seen[i]
		if at.round != s.round {
			*at = seenHash{h, s.round}
			return true
		}
		if at.hash == h {
			return false
		}
	}
}
