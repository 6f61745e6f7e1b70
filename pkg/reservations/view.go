package reservations

import (
	"sync"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// View shows what every slot of a scope carries at one moment. It is valid only
// inside the function that receives it, and must not be changed.
type View struct {
	// Shared is, by slot, how many leading blocks of the prompt in question lie on the
	// rank's active prompts. Slots beyond it, and slots for which Known says no, belong
	// to no rank.
	Shared []uint32

	scope    *scope
	at       time.Duration // see Now
	matching []uint64      // scratch of blocks.leading, which fills Shared
}

// Known reports whether the ledger has this rank under this slot. The rank is given
// too because slots are reused.
func (v *View) Known(slot uint32, r catalog.Rank) bool {
	return v.scope != nil && v.scope.holds(slot, r)
}

// Load returns what the rank of a slot carries.
func (v *View) Load(slot uint32) SlotLoad {
	if v.scope == nil {
		return SlotLoad{}
	}
	return v.scope.loadOf(slot)
}

// Slot returns the slot of a rank, for a caller that chose it earlier.
func (v *View) Slot(r catalog.Rank) (slot uint32, ok bool) {
	if v.scope == nil {
		return 0, false
	}
	slot, ok = v.scope.ranks.Slot(r)
	return slot, ok
}

var views = sync.Pool{New: func() any { return new(View) }}

// view needs s.mu, shared or not.
func (s *scope) view(hashes []uint64) *View {
	v := views.Get().(*View)
	v.scope = s
	v.Shared = zeroed(v.Shared, s.slots)
	v.matching = zeroed(v.matching, s.blocks.words())
	s.blocks.leading(hashes, v.matching, v.Shared)
	return v
}

// recycle keeps the scratch for another View and drops the reference to the scope.
func (v *View) recycle() {
	*v = View{Shared: v.Shared, matching: v.matching}
	views.Put(v)
}

// zeroed returns n zeros, in buf if it is large enough.
func zeroed[E uint32 | uint64](buf []E, n int) []E {
	if cap(buf) < n {
		return make([]E, n)
	}
	buf = buf[:n]
	clear(buf)
	return buf
}
