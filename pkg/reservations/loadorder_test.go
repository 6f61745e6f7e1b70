package reservations

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
)

// TestLoadOrder: over random histories, the description of the ranks outside any set of
// slots is that of a list of their loads.
func TestLoadOrder(t *testing.T) {
	orders := []LoadOrder{{Token: 1. / 16, Block: 1}, {Block: 1, Request: 0.1}, {Request: 1}, {Token: 1. / 24, Block: 1, Request: 0.3}, {Token: math.MaxFloat64, Block: 1}}
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		l, order := New(1, newFakeClock().now, nil), orders[seed%uint64(len(orders))]
		n, tokens := 1+r.Uint32N(150), []uint64{1, 4, math.MaxUint64}[r.IntN(3)]
		live := []string{}
		for step := range 300 {
			slot := r.Uint32N(n)
			rank := catalog.Rank{Worker: uint64(slot)}
			switch r.IntN(8) {
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

func checkOrder(t *testing.T, l *Ledger, order LoadOrder, r *rand.Rand) {
	except := make([]uint64, r.IntN(4))
	for i := range except {
		except[i] = r.Uint64() & r.Uint64() & -(r.Uint64() & 1)
	}
	l.Look(testScope, nil, func(v *View) {
		got, ok := v.LeastLoaded(order, except)
		if !ok {
			return // kept from the next one on
		}
		outside := make(map[uint32]SlotLoad)
		want := LeastLoad{Key: math.Inf(1), Next: math.Inf(1), Most: math.Inf(-1)}
		for slot := range uint32(v.Slots()) {
			if !v.Known(slot, catalog.Rank{Worker: uint64(slot)}) || int(slot/64) < len(except) && except[slot/64]>>(slot%64)&1 == 1 {
				continue
			}
			outside[slot] = v.Load(slot)
			key := order.key(v.Load(slot))
			want.Key, want.Most = min(want.Key, key), max(want.Most, key)
		}
		if len(outside) == 0 {
			if got.Count != 0 {
				t.Errorf("%+v of no rank", got)
			}
			return
		}
		if got.Key != want.Key || got.Most != want.Most || order.key(outside[got.MostSlot]) != want.Most || order.key(outside[got.Slot]) != want.Key {
			t.Errorf("%+v, want %+v", got, want)
		}
		var same []uint32
		for slot := range uint32(v.Slots()) {
			switch load, is := outside[slot]; {
			case !is:
			case load == outside[got.Slot]:
				same = append(same, slot)
			default:
				want.Next = min(want.Next, order.key(load))
			}
		}
		if got.Next != want.Next || got.Next > got.Key && int(got.Count) != len(same) {
			t.Errorf("%+v, want next %g and %d equals", got, want.Next, len(same))
		}
		if got.Next > got.Key {
			for n, slot := range same {
				if s := v.Equal(&got, uint32(n)); s != slot {
					t.Errorf("slot %d is number %d of equals, want %d", s, n, slot)
				}
			}
		}
		limit := want.Key + 4*r.Float64()
		var upTo []uint32
		for slot, load := range outside {
			if order.key(load) <= limit {
				upTo = append(upTo, slot)
			}
		}
		slices.Sort(upTo)
		if got := v.UpTo(limit, nil); !slices.Equal(got, upTo) {
			t.Errorf("up to %g: slots %v, want %v", limit, got, upTo)
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
