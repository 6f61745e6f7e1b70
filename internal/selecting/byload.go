package selecting

import (
	"math/bits"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
)

// Of a prompt most ranks of a wide scope have the same: nothing, or what all prompts
// begin with. They differ by their loads alone, and the ledger has them in that order. So
// the others are scored one by one, and of these the best.

// wideScope is how many ranks a scope must have for that; to look at fewer one by one
// costs less.
const wideScope = 32

// byLoad is the memory of a choice by the order of loads.
type byLoad struct {
	used   bool
	except []uint64        // slots that are no candidates or are scored one by one
	scored []catalog.Entry // those that are scored
	slots  []uint32
	like   selector.Candidate // what most ranks have
}

// pick chooses among ranks. It returns the ranks that were scored, and which of them is
// chosen.
func (c *selection) pick(ranks []catalog.Entry, v *reservations.View) (scored []catalog.Entry, i int) {
	if i, c.byLoad.used = c.pickByLoad(ranks, v); c.byLoad.used {
		return c.byLoad.scored, i
	}
	c.score(ranks, v)
	return ranks, selector.Pick(c.costs, c.temperature(), selector.Global())
}

// pickByLoad is pick for all candidates of a wide scope. ok is false where every one of
// them has to be looked at.
func (c *selection) pickByLoad(ranks []catalog.Entry, v *reservations.View) (i int, ok bool) {
	if len(ranks) < wideScope || len(ranks) != c.snapshot.NumRanks || len(c.request.PreferredTaints) > 0 || c.tellsAll() {
		return 0, false
	}
	order, ok := c.loadOrder(v)
	if !ok || !c.listOthers(v, len(ranks)/2) {
		return 0, false
	}
	b := &c.byLoad
	least, ok := v.LeastLoaded(reservations.LoadOrder{Token: order.Token, Block: order.Block, Request: order.Request}, b.except)
	if !ok {
		return 0, false
	}
	count := 1 // of the ranks that the last one scored stands for
	switch limit := order.Limit(least.Key); {
	case least.Count == 0 && len(b.scored) == 0:
		return 0, false
	case least.Count == 0:
	case least.Next > limit:
		b.scored = append(b.scored, c.snapshot.BySlot(least.Slot))
		count = int(least.Count)
	default:
		b.slots = v.UpTo(limit, b.slots[:0])
		for _, slot := range b.slots {
			b.scored = append(b.scored, c.snapshot.BySlot(slot))
		}
	}
	last := len(b.scored) - 1
	if least.Count > 0 { // for the spread of the costs
		b.scored = append(b.scored, c.snapshot.BySlot(least.MostSlot))
	}
	c.score(b.scored, v)
	if !c.candidates[last].Known {
		return 0, false // the slot has another rank meanwhile
	}
	i, nth := selector.PickLowest(c.costs[:last+1], count, selector.Global())
	if i == last && count > 1 {
		b.scored[i] = c.snapshot.BySlot(v.Equal(&least, uint32(nth)))
		c.candidates[i] = candidate(b.scored[i], &c.overlap, v)
	}
	return i, true
}

// tellsAll reports whether the costs of all ranks are to be told, now or later.
func (c *selection) tellsAll() bool {
	p := c.scope.Policies
	return c.request.Explain || c.request.ExplainOnly || c.request.Fallbacks > 0 || p != nil && len(p.Shadows()) > 0 || c.keeps()
}

// loadOrder is that of the ranks that have of the prompt what most ranks have.
func (c *selection) loadOrder(v *reservations.View) (selector.LoadOrder, bool) {
	var policy selector.Policy = selector.CostFunction{}
	if p := c.scope.Policies; p != nil {
		policy = p.Policy
	}
	ordered, is := policy.(selector.LoadOrdered)
	if !is {
		return selector.LoadOrder{}, false
	}
	c.decision = selector.Decision{Prompt: c.size, Weights: c.weights}
	c.byLoad.like = selector.Candidate{Device: c.overlap.Common(), Shared: v.CommonShared(), Known: true}
	return ordered.LoadOrder(&c.decision, &c.byLoad.like)
}

// listOthers lists the candidates that do not have of the prompt what most ranks have. It
// reports whether they are not more than most.
func (c *selection) listOthers(v *reservations.View, most int) bool {
	b := &c.byLoad
	b.except, b.scored = b.except[:0], b.scored[:0]
	candidates := c.snapshot.CandidateSlots()
	n := 0
	for w := range (v.Slots() + 63) / 64 {
		set := uint64(0)
		if w < len(candidates) {
			set = candidates[w]
		}
		others := set & (c.overlap.Others(w) | v.OthersShared(w))
		b.except = append(b.except, others|^set)
		if n += bits.OnesCount64(others); n > most {
			return false
		}
		for ; others != 0; others &= others - 1 {
			b.scored = append(b.scored, c.snapshot.BySlot(uint32(w*64+bits.TrailingZeros64(others))))
		}
	}
	return true
}
