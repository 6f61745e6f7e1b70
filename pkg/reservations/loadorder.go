package reservations

import (
	"math"
	"math/bits"
)

// LoadOrder orders ranks by a weighted sum of what they carry. The weights are not
// negative.
type LoadOrder struct {
	Token   float64 // of unfinished prefill
	Block   float64
	Request float64
}

func (o *LoadOrder) key(l SlotLoad) float64 {
	return o.Token*float64(l.PrefillTokens) + o.Block*float64(l.Blocks) + o.Request*float64(l.Requests)
}

// LeastLoad describes the ranks of some slots by their loads in a LoadOrder.
type LeastLoad struct {
	Key   float64 // the least sum
	Slot  uint32  // of a rank that has it
	Count uint32  // how many carry the same as that rank; 0: there is no rank at all
	Next  float64 // the least sum of the others: equal to Key if they carry something else
	Most  float64 // the greatest sum
	// MostSlot is the slot of a rank that has the greatest sum.
	MostSlot uint32
}

// loadTree keeps the ranks of a scope in a LoadOrder. It is a tournament: a binary tree
// over the slots, in which each node describes those below it. A load that changes
// changes the nodes above it.
type loadTree struct {
	order  LoadOrder
	leaves uint32      // a power of two
	nodes  []LeastLoad // the children of i are 2i and 2i+1; slot 0 is at leaves
}

// keepOrder keeps the ranks in that order from now on. It needs s.mu.
func (s *scope) keepOrder(o LoadOrder) {
	leaves := uint32(1) << bits.Len(uint(max(s.slots-1, 0)))
	t := &loadTree{order: o, leaves: leaves, nodes: make([]LeastLoad, 2*leaves)}
	s.order = t
	for slot := range s.ranks.All() {
		t.nodes[leaves+slot] = s.leaf(slot)
	}
	for i := leaves - 1; i > 0; i-- {
		t.nodes[i] = s.together(&t.nodes[2*i], &t.nodes[2*i+1])
	}
}

// reorder notes that the load of a slot, or whether it has a rank, may have changed.
func (s *scope) reorder(slot uint32) {
	t := s.order
	if s.ranks.Len() == 0 {
		s.order = nil
		return
	}
	if slot >= t.leaves {
		s.keepOrder(t.order)
		return
	}
	i := t.leaves + slot
	t.nodes[i] = s.leaf(slot)
	for i /= 2; i > 0; i /= 2 {
		joined := s.together(&t.nodes[2*i], &t.nodes[2*i+1])
		if joined == t.nodes[i] && joined.Slot != slot && joined.MostSlot != slot {
			return
		}
		t.nodes[i] = joined
	}
}

// leaf describes the rank of one slot.
func (s *scope) leaf(slot uint32) LeastLoad {
	if _, known := s.ranks.Rank(slot); !known {
		return LeastLoad{}
	}
	key := s.order.order.key(s.loadOf(slot))
	return LeastLoad{Key: key, Slot: slot, Count: 1, Next: math.Inf(1), Most: key, MostSlot: slot}
}

// together describes the ranks of two nodes together.
func (s *scope) together(a, b *LeastLoad) LeastLoad {
	if a.Count == 0 {
		return *b
	}
	r := *a
	if b.Count == 0 {
		return r
	}
	switch {
	case b.Key < a.Key:
		r.Key, r.Slot, r.Count, r.Next = b.Key, b.Slot, b.Count, lesser(b.Next, a.Key)
	case a.Key < b.Key:
		r.Next = lesser(a.Next, b.Key)
	case s.loadOf(a.Slot) == s.loadOf(b.Slot):
		r.Count, r.Next = a.Count+b.Count, lesser(a.Next, b.Next)
	default:
		r.Next = a.Key
	}
	if b.Most > a.Most {
		r.Most, r.MostSlot = b.Most, b.MostSlot
	}
	return r
}

func lesser(a, b float64) float64 {
	if b < a {
		return b
	}
	return a
}

// outside appends the nodes that together have all slots but those in except, a bit set,
// in the order of the slots.
func (t *loadTree) outside(except []uint64, dst []uint32) []uint32 {
	from := uint32(0)
	for w, set := range except {
		for ; set != 0; set &= set - 1 {
			slot := uint32(w*64 + bits.TrailingZeros64(set))
			if slot >= t.leaves {
				break
			}
			dst = t.between(from, slot, dst)
			from = slot + 1
		}
	}
	return t.between(from, t.leaves, dst)
}

// between appends the largest nodes that together have the slots in [from, to).
func (t *loadTree) between(from, to uint32, dst []uint32) []uint32 {
	for from < to {
		height := min(bits.TrailingZeros32(from), bits.Len32(to-from)-1)
		dst = append(dst, (t.leaves+from)>>height)
		from += 1 << height
	}
	return dst
}

// LeastLoaded describes the ranks whose slots are not in except, a bit set with 64 slots
// to a word. ok is false if the ledger does not keep that order. It begins to if it is
// the first one that is asked for, or the one that is wanted most.
func (v *View) LeastLoaded(o LoadOrder, except []uint64) (l LeastLoad, ok bool) {
	s := v.scope
	if s == nil {
		return l, false
	}
	if s.order == nil || s.order.order != o {
		if s.missed.Add(1) >= orderMisses || s.order == nil {
			v.wanted, v.wants = o, true
		}
		return l, false
	}
	if s.missed.Load() != 0 {
		s.missed.Store(0)
	}
	v.nodes = s.order.outside(except, v.nodes[:0])
	for _, i := range v.nodes {
		if n := &s.order.nodes[i]; n.Count > 0 {
			l = s.together(&l, n)
		}
	}
	return l, true
}

// Equal returns the n-th of the l.Count slots whose ranks carry the same as that of
// l.Slot. l is that of the last LeastLoaded, and l.Next is greater than l.Key.
func (v *View) Equal(l *LeastLoad, n uint32) uint32 {
	t := v.scope.order
	for _, i := range v.nodes {
		has := t.nodes[i].equals(l)
		if n >= has {
			n -= has
			continue
		}
		for i < t.leaves {
			i *= 2
			if has := t.nodes[i].equals(l); n >= has {
				n -= has
				i++
			}
		}
		return i - t.leaves
	}
	return l.Slot
}

// equals is how many of the ranks carry what l is about.
func (d *LeastLoad) equals(l *LeastLoad) uint32 {
	if d.Key != l.Key {
		return 0
	}
	return d.Count
}

// UpTo appends the slots whose ranks have a sum up to a limit, of those that the last
// LeastLoaded was about.
func (v *View) UpTo(limit float64, dst []uint32) []uint32 {
	for _, i := range v.nodes {
		dst = v.scope.order.upTo(i, limit, dst)
	}
	return dst
}

func (t *loadTree) upTo(i uint32, limit float64, dst []uint32) []uint32 {
	switch d := &t.nodes[i]; {
	case d.Count == 0 || d.Key > limit:
		return dst
	case i >= t.leaves:
		return append(dst, d.Slot)
	}
	return t.upTo(2*i+1, limit, t.upTo(2*i, limit, dst))
}

// orderMisses is how many views in a row must want another order than is kept before
// that is kept: to make it costs about as much as they did without it.
const orderMisses = 16

// keepWanted keeps the order that a view has wanted, if it is time for that. It needs
// s.mu.
func (s *scope) keepWanted(o LoadOrder) {
	if s.order == nil || s.missed.Load() >= orderMisses {
		s.keepOrder(o)
		s.missed.Store(0)
	}
}
