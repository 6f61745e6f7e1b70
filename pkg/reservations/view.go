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
}

// Slots is how many slots there may be: every slot that has a rank is below.
func (v *View) Slots() int { return v.shared.depths.Slots() }

// Shared returns how many leading blocks of the prompt in question lie on the active
// prompts of a slot. It is 0 for slots that have no rank.
func (v *View) Shared(slot uint32) uint32 { return v.shared.depths.At(slot) }

// Classes is how many classes of slots there are. Those of a class are many and share as
// many blocks with the prompt.
func (v *View) Classes() int { return v.shared.depths.Classes() }

// Class returns what Shared is for the slots of a class.
func (v *View) Class(class int) uint32 { return v.shared.depths.Depth(class) }

// ClassSlots returns word w of the bit set of a class, with 64 slots to a word.
func (v *View) ClassSlots(class, w int) uint64 { return v.shared.depths.Class(class, w) }

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
