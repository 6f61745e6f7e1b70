package reservations

import (
	"sync"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// View shows what every slot of a scope carries at one moment. It is valid only
// inside the function that receives it, and must not be changed.
type View struct {
	scope  *scope
	at     time.Duration // see Now
	shared leading
	wants  bool // the scope is to keep the order wanted
	wanted LoadOrder
	nodes  []uint32 // scratch of LeastLoaded: the nodes that it describes
}

// Slots is how many slots there may be: every slot that has a rank is below.
func (v *View) Slots() int { return v.shared.depths.Slots() }

// Shared returns how many leading blocks of the prompt in question lie on the active
// prompts of a slot. It is 0 for slots that have no rank.
func (v *View) Shared(slot uint32) uint32 { return v.shared.depths.At(slot) }

// CommonShared returns what Shared is for most slots: those that are not in
// OthersShared.
func (v *View) CommonShared() uint32 { return v.shared.depths.Common() }

// OthersShared returns word w of a bit set of slots, 64 to a word.
func (v *View) OthersShared(w int) uint64 { return v.shared.depths.Others(w) }

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
	v.shared.find(&s.blocks, hashes, s.slots)
	return v
}

// look is Ledger.Look within the scope. wants says that an order is to be kept.
func (s *scope) look(hashes []uint64, f func(*View)) (wanted LoadOrder, wants bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	v := s.view(hashes)
	f(v)
	wanted, wants = v.wanted, v.wants
	v.recycle()
	return wanted, wants
}

// recycle keeps the scratch for another View and drops the reference to the scope.
func (v *View) recycle() {
	v.scope, v.at, v.wants = nil, 0, false
	views.Put(v)
}
