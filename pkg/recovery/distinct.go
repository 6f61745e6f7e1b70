package recovery

import (
	"math/bits"
	"math/rand/v2"

	"github.com/select-service/select-service/pkg/indexer"
)

// distinct finds repeated hashes in short lists. It is an open hash set whose
// entries count if their round is the present one, so that a new list needs no
// clearing.
type distinct struct {
	seen  []seenHash
	round uint32
	spin  uint64 // odd and random: nobody can aim at one place
}

type seenHash struct {
	hash  uint64
	round uint32
}

// repeats reports whether a name comes twice in an event, its parent included.
func (d *distinct) repeats(ev *indexer.Store) bool {
	if len(ev.Names) == 1 {
		return ev.HasParent && ev.Parent == ev.Names[0]
	}
	d.begin(len(ev.Names) + 1)
	if ev.HasParent {
		d.add(ev.Parent)
	}
	for _, h := range ev.Names {
		if !d.add(h) {
			return true
		}
	}
	return false
}

// begin empties the set and makes room for n hashes.
func (d *distinct) begin(n int) {
	if d.spin == 0 {
		d.spin = rand.Uint64() | 1
	}
	if len(d.seen) < 2*n {
		d.seen, d.round = make([]seenHash, 1<<bits.Len(uint(2*n-1))), 0
	}
	if d.round++; d.round == 0 {
		clear(d.seen)
		d.round = 1
	}
}

// add puts h into the set and reports whether it was new.
func (d *distinct) add(h uint64) bool {
	mask := len(d.seen) - 1
	for i := int(h*d.spin>>32) & mask; ; i = (i + 1) & mask {
		at := &d.seen[i]
		if at.round != d.round {
			*at = seenHash{h, d.round}
			return true
		}
		if at.hash == h {
			return false
		}
	}
}
