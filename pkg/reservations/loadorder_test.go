package reservations

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/length"
)

// TestLoadOrder: over random histories, the description of the ranks of any set of slots
// is that of a list of their loads and foreign loads.
func TestLoadOrder(t *testing.T) {
	orders := []LoadOrder{{Token: 1. / 16, Block: 1}, {Block: 1, Request: 0.1}, {Request: 1}, {Token: 1. / 24, Block: 1, Request: 0.3}, {Token: math.MaxFloat64, Block: 1}}
	for seed := range uint64(length.Of(200, 200, 40)) {
		r := rand.New(rand.NewPCG(seed, 3))
		l, order := New(1, newFakeClock().now, nil), orders[seed%uint64(len(orders))]
		n, tokens := 1+r.Uint32N(150), []uint64{1, 4, math.MaxUint64}[r.IntN(3)]
		live := []string{}
		for step := range 300 {
			slot := r.Uint32N(n)
			rank := catalog.Rank{Worker: uint64(slot)}
			switch r.IntN(9) {
			case 8:
				l.SetEngineLoads(testScope, drawnLoads(r, n, tokens))
			case 0:
				l.RemoveRank(testScope, slot)
			case 1, 2:
				l.PutRank(testScope, slot, rank)
			case 3, 4:
				id := fmt.Sprint(step)
				if _, err := l.Book(testScope, Request{ID: id, Hashes: []uint64{r.Uint64N(9)}, TrackPrefill: true}, func(*View) (Placement, error) {
					return Placement{Slot: slot, Rank: rank, PrefillTokens: 16 * r.Uint64N(tokens)}, nil
				}); err == nil {
					live = append(live, id)
				}
			default:
				if len(live) > 0 {
					i := r.IntN(len(live))
					_ = l.PrefillComplete(live[i])
					if r.IntN(2) == 0 {
						_ = l.Free(live[i])
						live = slices.Delete(live, i, i+1)
					}
				}
			}
			checkOrder(t, l, order, r)
			if t.Failed() {
				t.Fatalf("seed %d, step %d", seed, step)
			}
		}
	}
}

// drawnLoads draws what the engines of up to four ranks say.
func drawnLoads(r *rand.Rand, slots uint32, tokens uint64) (loads []RankEngineLoad) {
	for range 1 + r.IntN(4) {
		slot := r.Uint32N(slots)
		loads = append(loads, RankEngineLoad{slot, catalog.Rank{Worker: uint64(slot)}, EngineLoad{
			Foreign: Foreign{Requests: r.Uint32N(3), PrefillTokens: 16 * r.Uint64N(tokens), Blocks: r.Uint64N(4)},
		}})
	}
	return loads
}

func checkOrder(t *testing.T, l *Ledger, order LoadOrder, r *rand.Rand) {
	set := make([]uint64, r.IntN(4))
	for i := range set {
		set[i] = ^(r.Uint64() & r.Uint64() & -(r.Uint64() & 1))
	}
	l.Look(testScope, nil, func(v *View) {
		got, ok := v.LeastLoaded(order, set)
		if !ok {
			return // kept from the next one on
		}
		loads := make(map[uint32]SlotLoad)
		least, most := math.Inf(1), math.Inf(-1)
		for slot := range uint32(v.Slots()) {
			if v.Known(slot, catalog.Rank{Worker: uint64(slot)}) && int(slot/64) < len(set) && set[slot/64]>>(slot%64)&1 == 1 {
				loads[slot] = v.Total(slot)
				least, most = min(least, order.sum(v.Total(slot))), max(most, order.sum(v.Total(slot)))
			}
		}
		if got.Any != (len(loads) > 0) {
			t.Errorf("%+v of %d ranks", got, len(loads))
		}
		if !got.Any {
			return
		}
		if got.Sum != least || got.Most != most || order.sum(loads[got.MostSlot]) != most || order.sum(loads[got.Slot]) != least {
			t.Errorf("%+v, want %g to %g", got, least, most)
		}
		limit := least + 4*r.Float64()
		var same, others []uint32
		for _, slot := range slices.Sorted(maps.Keys(loads)) {
			switch {
			case loads[slot] == loads[got.Slot]:
				same = append(same, slot)
			case order.sum(loads[slot]) <= limit:
				others = append(others, slot)
			}
		}
		if equal, near := v.Near(&got, limit, set, nil); equal != len(same) || !slices.Equal(near, others) {
			t.Errorf("%d equals and %v up to %g, want %d and %v", equal, near, limit, len(same), others)
		}
		for n, slot := range same {
			if s := v.Equal(&got, set, n); s != slot {
				t.Errorf("slot %d is number %d of equals, want %d", s, n, slot)
			}
		}
	})
}

// TestLoadOrderWanted: the order that is asked for again and again replaces another one.
func TestLoadOrderWanted(t *testing.T) {
	l, _ := withRanks(40, nil)
	asks := func(o LoadOrder) (kept bool) {
		l.Look(testScope, nil, func(v *View) { _, kept = v.LeastLoaded(o, nil) })
		return kept
	}
	first, second := LoadOrder{Block: 1}, LoadOrder{Request: 1}
	asks(first)
	for n := range 10 * orderMisses {
		if !asks(first) || n > 0 && asks(second) {
			t.Fatalf("the order of every second view is replaced after %d", n)
		}
	}
	n := 0
	for ; !asks(second); n++ {
	}
	if n > orderMisses+1 || asks(first) {
		t.Errorf("an order is kept after %d misses, want %d", n, orderMisses)
	}
}
