package catalog_test

import (
	"math/rand/v2"
	"testing"

	"github.com/select-service/select-service/pkg/catalog"
)

// TestSlotTable: any history leaves the table as two maps say.
func TestSlotTable(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 5))
		var table catalog.SlotTable
		ranks, slots := map[uint32]catalog.Rank{}, map[catalog.Rank]uint32{}
		for range 2000 {
			rank := catalog.Rank{Worker: r.Uint64N(3), DP: 1<<32 - 1 - r.Uint32N(12)}
			slot := r.Uint32N(30)
			if r.IntN(2) == 0 { // neighbours, as usual
				slot = rank.DP % 16
			}
			_, taken := ranks[slot]
			_, has := slots[rank]
			switch {
			case !taken && !has:
				table.Assign(slot, rank)
				ranks[slot], slots[rank] = rank, slot
			case r.IntN(3) == 0:
				table.Release(slot)
				if taken {
					delete(slots, ranks[slot])
					delete(ranks, slot)
				}
			}
			if table.Len() != len(ranks) {
				t.Fatalf("seed %d: %d ranks, want %d", seed, table.Len(), len(ranks))
			}
			for slot := range uint32(31) {
				got, ok := table.Rank(slot)
				want, taken := ranks[slot]
				if got != want || ok != taken || taken && !table.Has(slot, want) || table.Has(slot, catalog.Rank{Worker: 9}) {
					t.Fatalf("seed %d: slot %d has %v, want %v", seed, slot, got, want)
				}
			}
			got, ok := table.Slot(rank)
			if want, has := slots[rank]; got != want || ok != has {
				t.Fatalf("seed %d: %v has slot %d, want %d", seed, rank, got, want)
			}
			n := 0
			for slot, rank := range table.All() {
				if n++; ranks[slot] != rank {
					t.Fatalf("seed %d: slot %d has %v, want %v", seed, slot, rank, ranks[slot])
				}
			}
			if n != len(ranks) {
				t.Fatalf("seed %d: %d slots are listed, want %d", seed, n, len(ranks))
			}
		}
	}
}
