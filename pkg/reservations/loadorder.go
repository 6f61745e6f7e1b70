package reservations

import (
	"math"
	"math/bits"
)

// LoadOrder orders ranks by a weighted sum of their loads, foreign load included. The weights are not negative.
type LoadOrder struct {
	Token   float64 // per token of unfinished prefill
	Block   float64 // per active block
	Request float64 // per live reservation
}

func (o *LoadOrder) sum(l SlotLoad) float64 {
	return o.Token*float64(l.PrefillTokens) + o.Block*float64(l.Blocks) + o.Request*float64(l.Requests)
}

// LeastLoad describes a set of ranks by their sums in a LoadOrder.
type LeastLoad struct {
	Any      bool    // the set has at least one rank
	Sum      float64 // the least sum
	Slot     uint32  // of a rank with the least sum
	Most     float64 // the greatest sum
	MostSlot uint32  // of a rank with the greatest sum
}

// loadSums has the sums of a scope's ranks in a LoadOrder. The search for the least sum in
// a set of slots goes through a word's slots only if the word's least sum is below what was
// found so far and belongs to a slot outside the set.
type loadSums struct {
	order LoadOrder
	sums  []float64  // by slot
	words []wordSums // of 64 slots each
}

// wordSums describes the ranks of 64 slots.
type wordSums struct {
	ranks uint64  // the slots that have a rank
	least float64 // the least sum
	equal uint64  // the slots with the same loads as the first one with the least sum
	next  float64 // the least sum of the other slots
	most  float64 // the greatest sum
}

// keepOrder makes the scope keep the sums in an order from now on. It needs s.mu.
func (s *scope) keepOrder(o LoadOrder) {
	n := (max(s.slots, 1) + 63) / 64
	s.order = &loadSums{order: o, sums: make([]float64, 64*n), words: make([]wordSums, n)}
	for slot := range s.ranks.All() {
		s.order.sums[slot] = o.sum(s.totalOf(slot))
		s.order.words[slot/64].ranks |= 1 << (slot % 64)
	}
	for w := range s.order.words {
		s.describe(w)
	}
}

// reorder updates s.order after a change of a slot's load or rank.
func (s *scope) reorder(slot uint32) {
	t := s.order
	if s.ranks.Len() == 0 {
		s.order = nil
		return
	}
	if int(slot) >= len(t.sums) {
		grow := len(t.words)
		t.sums, t.words = append(t.sums, make([]float64, 64*grow)...), append(t.words, make([]wordSums, grow)...)
		s.reorder(slot)
		return
	}
	w := &t.words[slot/64]
	w.ranks &^= 1 << (slot % 64)
	if _, known := s.ranks.Rank(slot); known {
		w.ranks |= 1 << (slot % 64)
		t.sums[slot] = t.order.sum(s.totalOf(slot))
	}
	s.describe(int(slot / 64))
}

// describe computes the wordSums of a word from its sums.
func (s *scope) describe(word int) {
	t := s.order
	d := wordSums{ranks: t.words[word].ranks, least: math.Inf(1), next: math.Inf(1)}
	first := uint32(0) // of equal
	for m := d.ranks; m != 0; m &= m - 1 {
		slot := uint32(word*64 + bits.TrailingZeros64(m))
		bit := m & -m
		switch sum := t.sums[slot]; {
		case d.equal == 0 || sum < d.least:
			d.next, d.least, d.equal, first = d.least, sum, bit, slot
		case sum == d.least && s.totalOf(slot) == s.totalOf(first):
			d.equal |= bit
		case sum < d.next:
			d.next = sum
		}
		d.most = max(d.most, t.sums[slot])
	}
	t.words[word] = d
}

// LeastLoaded describes the ranks whose slots are in set, a bit set with 64 slots to a
// word. ok is false if the ledger does not keep that order. It starts to keep it if it
// keeps none, or once enough views in a row have wanted another order than the kept one.
func (v *View) LeastLoaded(o LoadOrder, set []uint64) (l LeastLoad, ok bool) {
	s := v.scope
	if s == nil {
		return l, false
	}
	t := s.order
	if t == nil || t.order != o {
		if s.missed.Add(1) >= orderMisses || t == nil {
			v.wanted, v.wants = o, true
		}
		return l, false
	}
	if s.missed.Load() != 0 {
		s.missed.Store(0)
	}
	for i := range min(len(set), len(t.words)) {
		w := &t.words[i]
		in := set[i] & w.ranks
		if in == 0 {
			continue
		}
		if !l.Any {
			l.Any, l.Slot = true, uint32(i*64+bits.TrailingZeros64(in))
			l.Sum, l.Most, l.MostSlot = t.sums[l.Slot], t.sums[l.Slot], l.Slot
		}
		if equal := in & w.equal; equal != 0 && w.least < l.Sum {
			l.Sum, l.Slot = w.least, uint32(i*64+bits.TrailingZeros64(equal))
		} else if w.least < l.Sum {
			for m := in; m != 0; m &= m - 1 {
				if slot := i*64 + bits.TrailingZeros64(m); t.sums[slot] < l.Sum {
					l.Sum, l.Slot = t.sums[slot], uint32(slot)
				}
			}
		}
		if w.most > l.Most {
			for m := in; m != 0; m &= m - 1 {
				if slot := i*64 + bits.TrailingZeros64(m); t.sums[slot] > l.Most {
					l.Most, l.MostSlot = t.sums[slot], uint32(slot)
				}
			}
		}
	}
	return l, true
}

// Near looks for the ranks of the set with sums up to a limit: equal counts those with the
// same loads as l.Slot, others are the slots of the rest, appended to dst. It needs an l
// from LeastLoaded with the same set.
func (v *View) Near(l *LeastLoad, limit float64, set []uint64, dst []uint32) (equal int, others []uint32) {
	t := v.scope.order
	for i := range min(len(set), len(t.words)) {
		w := &t.words[i]
		in := set[i] & w.ranks
		if in == 0 || w.least > limit {
			continue
		}
		same := v.same(l, i, in)
		equal += bits.OnesCount64(same)
		if in &^= same; in&w.equal == 0 && w.next > limit {
			continue
		}
		for ; in != 0; in &= in - 1 {
			if slot := i*64 + bits.TrailingZeros64(in); t.sums[slot] <= limit {
				dst = append(dst, uint32(slot))
			}
		}
	}
	return equal, dst
}

// Equal returns the n-th, from 0, of the slots in the set with the same loads as l.Slot.
func (v *View) Equal(l *LeastLoad, set []uint64, n int) uint32 {
	t := v.scope.order
	for i := range min(len(set), len(t.words)) {
		same := v.same(l, i, set[i]&t.words[i].ranks)
		if has := bits.OnesCount64(same); n >= has {
			n -= has
			continue
		}
		for ; n > 0; n-- {
			same &= same - 1
		}
		return uint32(i*64 + bits.TrailingZeros64(same))
	}
	return l.Slot
}

// same returns those of the slots in, of one word, that have the same loads as l.Slot.
func (v *View) same(l *LeastLoad, word int, in uint64) (same uint64) {
	t := v.scope.order
	w := &t.words[word]
	if w.least > l.Sum {
		return 0
	}
	load := v.scope.totalOf(l.Slot)
	if first := uint32(word*64 + bits.TrailingZeros64(w.equal)); w.equal != 0 && v.scope.totalOf(first) == load {
		return in & w.equal
	}
	for m := in; m != 0; m &= m - 1 {
		if slot := uint32(word*64 + bits.TrailingZeros64(m)); t.sums[slot] == l.Sum && v.scope.totalOf(slot) == load {
			same |= m & -m
		}
	}
	return same
}

// orderMisses is how many views in a row must want another order than the kept one before
// it replaces that one: building it costs about as much as these views did without it.
const orderMisses = 16

// keepWanted makes the scope keep an order that a view has wanted, if none is kept or
// there were enough misses. It needs s.mu.
func (s *scope) keepWanted(o LoadOrder) {
	if s.order == nil || s.missed.Load() >= orderMisses {
		s.keepOrder(o)
		s.missed.Store(0)
	}
}
