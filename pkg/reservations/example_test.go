package reservations_test

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// leastLoaded chooses the rank with the fewest active blocks beyond those that it
// shares with the prompt.
func leastLoaded(ranks []catalog.Rank, promptBlocks int) func(*reservations.View) (reservations.Placement, error) {
	return func(v *reservations.View) (reservations.Placement, error) {
		slots := make([]uint32, len(ranks))
		for i := range slots {
			slots[i] = uint32(i)
		}
		best := slices.MinFunc(slots, func(a, b uint32) int {
			return cmp.Compare(v.Load(a).Blocks-uint64(v.Shared(a)), v.Load(b).Blocks-uint64(v.Shared(b)))
		})
		return reservations.Placement{
			Slot: best, Rank: ranks[best],
			PrefillTokens: 16 * uint64(promptBlocks-int(v.Shared(best))),
		}, nil
	}
}

// A request is placed and booked in one step, and freed when its answer is
// complete.
func Example() {
	ledger := reservations.New(1, time.Now, nil)
	scope := catalog.Scope{Model: "llama", Tenant: "default"}
	ranks := []catalog.Rank{{Worker: 7}, {Worker: 8}}
	for slot, r := range ranks {
		ledger.PutRank(scope, uint32(slot), r)
	}

	prompt := []uint64{11, 12, 13} // sequence hashes of its blocks, of 16 tokens each
	for _, id := range []string{"r1", "r2", "r3"} {
		req := reservations.Request{ID: id, Hashes: prompt, TrackPrefill: true}
		p, err := ledger.Book(scope, req, leastLoaded(ranks, len(prompt)))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s: worker %d computes %d tokens\n", id, p.Rank.Worker, p.PrefillTokens)
	}
	_ = ledger.PrefillComplete("r1")
	_ = ledger.Free("r2")
	for _, row := range ledger.Loads(scope) {
		fmt.Printf("worker %d: %d tokens to compute, %d blocks, %d requests\n",
			row.Rank.Worker, row.PrefillTokens, row.Blocks, row.Requests)
	}
	// Output:
	// r1: worker 7 computes 48 tokens
	// r2: worker 7 computes 0 tokens
	// r3: worker 7 computes 0 tokens
	// worker 7: 0 tokens to compute, 3 blocks, 2 requests
	// worker 8: 0 tokens to compute, 0 blocks, 0 requests
}

// Two replicas agree after an exchange of what is live and what has ended.
func ExampleLedger_MergeReservation() {
	scope, rank := catalog.Scope{Model: "llama", Tenant: "default"}, catalog.Rank{Worker: 7}
	replica := func(process uint64) *reservations.Ledger {
		l := reservations.New(process, time.Now, nil)
		l.PutRank(scope, 0, rank)
		return l
	}
	first, second := replica(1), replica(2)
	choose := func(*reservations.View) (reservations.Placement, error) {
		return reservations.Placement{Slot: 0, Rank: rank}, nil
	}
	for _, id := range []string{"a", "b"} {
		if _, err := first.Book(scope, reservations.Request{ID: id}, choose); err != nil {
			fmt.Println(err)
			return
		}
	}
	live, _, _ := first.Reservations(reservations.Cursor{}, 10)
	_ = first.Free("a")
	for process, ended := range first.Ended() {
		second.MergeEnded(process, ended)
	}
	for _, r := range live { // an older message than the ends
		fmt.Println(r.ID, second.MergeReservation(r))
	}
	// Output:
	// a ended
	// b applied
}
