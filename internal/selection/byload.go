package selection

import (
	"math/bits"
	"slices"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
)

// In a wide scope many ranks have the same blocks of a prompt: none, or the beginning that
// all prompts share. The ranks of such a class differ by their loads alone, and the ledger
// keeps the ranks in order of load. So it is enough to compare the best rank of each class
// and the ranks in no class.

// wideScope is the number of ranks from which that costs less than scoring every rank.
const wideScope = 32

// fewRanks is the size up to which the ranks of a class are scored one by one instead.
const fewRanks = 3

// byLoad is the scratch memory of a choice by the order of loads.
type byLoad struct {
	used   bool
	scored []catalog.Entry // the ranks that are scored: candidates, and the ranks with the most load, which are not
	counts []int           // how many ranks each rank of scored stands for; 0: it is not a candidate
	groups []loadGroup
	sets   []uint64 // slot sets of the groups, one after the other
	slots  []uint32
	sample selector.Candidate // what the ranks of the class being added have in common
}

// loadGroup has the ranks of one class of the index that are also in one class of the
// ledger's active prompts.
type loadGroup struct {
	set   []uint64
	least reservations.LeastLoad
	at    int // index in scored of the rank that stands for the group
}

// mayPickByLoad reports whether pickByLoad may choose among ranks, all of which take prompts: they are
// all such ranks of a wide scope, and no taint distinguishes them.
func (c *choice) mayPickByLoad(ranks []catalog.Entry) bool {
	return len(ranks) >= wideScope && len(ranks) == c.scope.snapshot.NumPrompts && len(c.PreferredTaints) == 0
}

// pickByLoad chooses among the ranks that mayPickByLoad was asked about. It fills in the ranks
// that it has scored, and returns the index of the chosen one. ok is false if every rank has to
// be scored.
func (c *choice) pickByLoad(ranks []catalog.Entry, v *reservations.View) (i int, ok bool) {
	b := &c.byLoad
	b.scored, b.counts, b.groups = b.scored[:0], b.counts[:0], b.groups[:0]
	if !b.addGroups(c, v) || len(b.scored) > c.scope.snapshot.NumPrompts/2 {
		return 0, false
	}
	if k := &c.session.kept; k.canStay() {
		b.add(ranks[indexRank(ranks, k.home)], 0)
	}
	c.score(b.scored, v)
	for i := range b.groups {
		if !c.candidates[b.groups[i].at].Known {
			return 0, false // the slot has been given to another rank
		}
	}
	i, nth := selector.PickCounted(c.compared(), b.counts, c.api.random)
	if i < 0 {
		return 0, false
	}
	for g := range b.groups {
		if of := &b.groups[g]; of.at == i {
			b.scored[i] = c.scope.snapshot.BySlot(v.Equal(&of.least, of.set, nth))
			if c.candidates[i] = candidate(b.scored[i], &c.prompt.overlap, v); !c.candidates[i].Known {
				return 0, false
			}
			if c.session.kept.countsActive {
				countActive(&c.candidates[i])
			}
		}
	}
	return i, true
}

// addGroups fills in scored: the best ranks of every class, and all ranks in no class. It
// returns false if the ledger or the policy cannot order ranks by load.
func (b *byLoad) addGroups(c *choice, v *reservations.View) bool {
	candidates := c.scope.snapshot.PromptSlots()
	words := min(len(candidates), (v.Slots()+63)/64)
	b.sets = slices.Grow(b.sets[:0], words)
	rest := b.sets[:words]
	copy(rest, candidates)
	b.sets = rest
	for x := range c.prompt.overlap.Classes() {
		for y := range v.Classes() {
			from, n := len(b.sets), 0
			for w := range words {
				set := candidates[w] & c.prompt.overlap.ClassSlots(x, w) & v.ClassSlots(y, w)
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
			b.sample = selector.Candidate{Device: c.prompt.overlap.Class(x), Shared: v.Class(y), Known: true}
			if c.session.kept.countsActive {
				countActive(&b.sample)
			}
			if !b.addGroup(c, set, v) {
				return false
			}
		}
	}
	for w := range words {
		for set := b.sets[w]; set != 0; set &= set - 1 {
			b.add(c.scope.snapshot.BySlot(uint32(w*64+bits.TrailingZeros64(set))), 1)
		}
	}
	return true
}

func (b *byLoad) add(e catalog.Entry, count int) {
	b.scored, b.counts = append(b.scored, e), append(b.counts, count)
}

// addGroup adds the least loaded ranks of a group, whose ranks have in common what sample has.
// One rank stands for all that carry the same load.
func (b *byLoad) addGroup(c *choice, set []uint64, v *reservations.View) bool {
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
	b.add(c.scope.snapshot.BySlot(least.Slot), equal)
	for _, slot := range near {
		b.add(c.scope.snapshot.BySlot(slot), 1)
	}
	// The most loaded rank, for the spread of the costs. If costs are cut off at 0, another
	// rank may cost more.
	b.add(c.scope.snapshot.BySlot(least.MostSlot), 0)
	return true
}

// loadOrder returns the policy's order by load of ranks that have the same blocks of the prompt.
func (c *choice) loadOrder() (selector.LoadOrder, bool) {
	var policy selector.Policy = selector.CostFunction{}
	if p := c.scope.rules.Policies; p != nil {
		policy = p.Policy
	}
	ordered, is := policy.(selector.LoadOrdered)
	if !is {
		return selector.LoadOrder{}, false
	}
	c.decision = selector.Decision{Prompt: c.prompt.size, Weights: c.weights}
	return ordered.LoadOrder(&c.decision, &c.byLoad.sample)
}
