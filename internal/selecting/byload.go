package selecting

import (
	"math/bits"
	"slices"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
)

// In a wide scope many ranks have the same of a prompt: nothing, or what all prompts begin
// with. Those of such a class differ by their loads alone, and the ledger has the loads in
// order. So the best of each class and the ranks in no class are compared, not all ranks.

// wideScope is how many ranks a scope must have for that; to look at fewer one by one
// costs less.
const wideScope = 32

// fewRanks is how many ranks of a class are scored one by one instead.
const fewRanks = 3

// byLoad is the memory of a choice by the order of loads.
type byLoad struct {
	used   bool
	scored []catalog.Entry // the ranks that are compared; those with the most load are only scored
	counts []int           // how many ranks each one of scored stands for; 0: none
	groups []loadGroup
	sets   []uint64 // of the groups, one after the other
	slots  []uint32
	like   selector.Candidate // a rank of a class
}

// loadGroup is the ranks of a class in the index that are of one class of the active
// prompts too.
type loadGroup struct {
	set   []uint64
	least reservations.LeastLoad
	at    int // in scored
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
	b := &c.byLoad
	b.scored, b.counts, b.groups = b.scored[:0], b.counts[:0], b.groups[:0]
	if !c.addGroups(v) || len(b.scored) > len(ranks)/2 {
		return 0, false
	}
	c.score(b.scored, v)
	for i := range b.groups {
		if !c.candidates[b.groups[i].at].Known {
			return 0, false // the slot has another rank meanwhile
		}
	}
	i, nth := selector.PickCounted(c.costs, b.counts, selector.Global())
	if i < 0 {
		return 0, false
	}
	for g := range b.groups {
		if of := &b.groups[g]; of.at == i {
			b.scored[i] = c.snapshot.BySlot(v.Equal(&of.least, of.set, nth))
			if c.candidates[i] = candidate(b.scored[i], &c.overlap, v); !c.candidates[i].Known {
				return 0, false
			}
		}
	}
	return i, true
}

// tellsAll reports whether the costs of all ranks are to be told, now or later.
func (c *selection) tellsAll() bool {
	p := c.scope.Policies
	return c.request.Explain || c.request.ExplainOnly || c.request.Fallbacks > 0 || p != nil && len(p.Shadows()) > 0 || c.keeps()
}

// addGroups lists the best ranks of all classes, and those in none. It is false if the
// ledger or the policy have no order.
func (c *selection) addGroups(v *reservations.View) bool {
	b := &c.byLoad
	candidates := c.snapshot.CandidateSlots()
	words := min(len(candidates), (v.Slots()+63)/64)
	b.sets = slices.Grow(b.sets[:0], words)
	rest := b.sets[:words]
	copy(rest, candidates)
	b.sets = rest
	for x := range c.overlap.Classes() {
		for y := range v.Classes() {
			from, n := len(b.sets), 0
			for w := range words {
				set := candidates[w] & c.overlap.ClassSlots(x, w) & v.ClassSlots(y, w)
				n += bits.OnesCount64(set)
				b.sets = append(b.sets, set)
			}
			if n <= fewRanks {
				b.sets = b.sets[:from]
				continue
			}
			set := b.sets[from:]
			for w := range words {
				b.sets[w] &^= set[w]
			}
			b.like = selector.Candidate{Device: c.overlap.Class(x), Shared: v.Class(y), Known: true}
			if !c.addGroup(set, v) {
				return false
			}
		}
	}
	for w := range words {
		for set := b.sets[w]; set != 0; set &= set - 1 {
			b.add(c.snapshot.BySlot(uint32(w*64+bits.TrailingZeros64(set))), 1)
		}
	}
	return true
}

func (b *byLoad) add(e catalog.Entry, count int) {
	b.scored, b.counts = append(b.scored, e), append(b.counts, count)
}

// addGroup lists the best ranks of a group that has like of the prompt. Of those that
// carry the same one stands for all.
func (c *selection) addGroup(set []uint64, v *reservations.View) bool {
	b := &c.byLoad
	order, ok := c.loadOrder()
	if !ok {
		return false
	}
	least, ok := v.LeastLoaded(reservations.LoadOrder{Token: order.Token, Block: order.Block, Request: order.Request}, set)
	if !ok {
		return false
	}
	if !least.Any {
		return true
	}
	equal, near := v.Near(&least, order.Limit(least.Sum), set, b.slots[:0])
	b.slots = near
	b.groups = append(b.groups, loadGroup{set: set, least: least, at: len(b.scored)})
	b.add(c.snapshot.BySlot(least.Slot), equal)
	for _, slot := range near {
		b.add(c.snapshot.BySlot(slot), 1)
	}
	// For the spread of the costs. Where costs are cut off at 0 another rank may cost more.
	b.add(c.snapshot.BySlot(least.MostSlot), 0)
	return true
}

// loadOrder is that of the ranks that have the same of the prompt.
func (c *selection) loadOrder() (selector.LoadOrder, bool) {
	var policy selector.Policy = selector.CostFunction{}
	if p := c.scope.Policies; p != nil {
		policy = p.Policy
	}
	ordered, is := policy.(selector.LoadOrdered)
	if !is {
		return selector.LoadOrder{}, false
	}
	c.decision = selector.Decision{Prompt: c.size, Weights: c.weights}
	return ordered.LoadOrder(&c.decision, &c.byLoad.like)
}
