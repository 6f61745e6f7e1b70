package reservations

import (
	"sync"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// View shows the load of every slot of a scope at one moment. It is valid only
// inside the function that receives it, and must not be changed.
type View struct {
	scope  *scope
	at     time.Duration // see Now
	shared leading
	match  match // of the prompt
	wants  bool  // the scope should keep the order wanted
	wanted LoadOrder
}

// Slots returns a number above every slot that has a rank.
func (v *View) Slots() int { return v.shared.depths.Slots() }

// Shared returns how many leading blocks of the prompt are active on a slot anyway: the
// longest common prefix with the slot's active prompts. It is 0 for slots without a rank.
func (v *View) Shared(slot uint32) uint32 { return v.shared.depths.At(slot) }

// Classes returns the number of classes. A class is a set of many slots with the same
// Shared; see Class and ClassSlots. Slots need not be in a class.
func (v *View) Classes() int { return v.shared.depths.Classes() }

// Class returns Shared of the slots of a class.
func (v *View) Class(class int) uint32 { return v.shared.depths.Depth(class) }

// ClassSlots returns word w of the bit set of a class's slots, with 64 slots to a word.
func (v *View) ClassSlots(class, w int) uint64 { return v.shared.depths.Class(class, w) }

// Known reports whether the ledger has this rank under this slot. The rank is given
// too because slots are reused.
func (v *View) Known(slot uint32, r catalog.Rank) bool {
	return v.scope != nil && v.scope.holds(slot, r)
}

// Load returns the load of the rank in a slot.
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

// Registration returns a number that the rank in a slot got when it was put there, the same for
// as long as it stays: a reservation that was booked under another number has ended with its
// rank. It is at least 1, and never given twice in a ledger. It is 0 for slots without a rank.
func (v *View) Registration(slot uint32) uint64 {
	if v.scope == nil {
		return 0
	}
	if _, ok := v.scope.ranks.Rank(slot); !ok {
		return 0
	}
	return v.scope.registrations[slot]
}

var views = sync.Pool{New: func() any { return new(View) }}

// view returns a View of the scope and the prompt. It needs s.mu, at least for reading.
func (s *scope) view(hashes []uint64) *View {
	v := views.Get().(*View)
	v.scope = s
	v.match = v.shared.find(&s.blocks, hashes, s.slots)
	return v
}

// look is Ledger.Look within the scope. wants: the scope should keep the order wanted.
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
