package selection_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/test/helpers/length"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestReplicasDoNotOscillate: two replicas that hear of each other's bookings 5 ms late do
// not send everything to the same worker in turn. Requests come in pairs, one to each.
func TestReplicasDoNotOscillate(t *testing.T) {
	for _, name := range []string{"", "dynamo-two-tier-cost-fn", "lmetric", "least-loaded", "predicted-ttft"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				change := []func(*node.Config){servicetest.EventsOff}
				if name != "" {
					change = append(change, servicetest.Policy(t, name, ""))
				}
				m := servicetest.NewMesh()
				m.Delay = 5 * time.Millisecond
				replicas := []*servicetest.World{m.Start(t, "a", change...), m.Start(t, "b", change...)}
				m.Connect(t, "a", "b")
				const workers = 8
				for _, w := range replicas {
					for id := range uint64(workers) {
						w.Put(servicetest.Record(id, 1))
					}
				}
				servicetest.Announced()

				counts := make([]int, workers)
				widest := 0
				for i := range length.Of(200, 200, 60) {
					for j, w := range replicas {
						req := servicetest.Ask(servicetest.Prompt(uint32(2*i+j), 2400))
						req.ReservationID = new(fmt.Sprint(i, w))
						sel, err := w.Select(context.Background(), req, true)
						if err != nil {
							t.Fatal(err)
						}
						counts[sel.Rank.Worker]++
					}
					widest = max(widest, slices.Max(counts)-slices.Min(counts))
					time.Sleep(2 * time.Millisecond) // two to three pairs are on their way
				}
				// Of what is on its way a replica misses 3 at most; both may choose alike.
				if widest > 6 {
					t.Errorf("the loads differ by up to %d requests: %v", widest, counts)
				}
				t.Logf("differ by up to %d: %v", widest, counts)
			})
		})
	}
}

// TestReplicasPredict: what one replica has booked is waited for at the other, and each
// learns from its own callers alone.
func TestReplicasPredict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := servicetest.NewMesh()
		change := []func(*node.Config){servicetest.EventsOff, servicetest.Policy(t, "predicted-ttft", "")}
		a, b := m.Start(t, "a", change...), m.Start(t, "b", change...)
		m.Connect(t, "a", "b")
		a.Put(servicetest.Record(1, 1))
		b.Put(servicetest.Record(1, 1))
		servicetest.Announced()

		a.Book("r", servicetest.Prompt(1, 12000)) // a second, as nothing is learned
		time.Sleep(100 * time.Millisecond)
		for name, w := range map[string]*servicetest.World{"a": a, "b": b} {
			if rank := learned(w, t).Ranks[0]; math.Abs(rank.Wait-0.9) > 0.01 {
				t.Errorf("%s: %g s are left, not 0.9", name, rank.Wait)
			}
		}
		if err := a.PrefillComplete("r"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if err := a.Free("r"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if rank := learned(b, t).Ranks[0]; rank.Wait != 0 {
			t.Errorf("b: %g s are left", rank.Wait)
		}
		if own, other := learned(a, t).Samples, learned(b, t).Samples; own != 1 || other != 0 {
			t.Errorf("learned from %d samples, and from %d at the other", own, other)
		}
	})
}
