package selecting_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/service"
	"github.com/select-service/select-service/internal/servicetest"
	"github.com/select-service/select-service/pkg/replicasync"
)

// late is a transport whose messages arrive after 5 ms. It is for a synctest bubble.
type late struct{ replicasync.Transport }

func (l late) Follow(peer string, deliver func(string, []byte), status func(bool)) (func(), error) {
	return l.Transport.Follow(peer, func(topic string, payload []byte) {
		time.AfterFunc(5*time.Millisecond, func() { deliver(topic, payload) })
	}, status)
}

// TestLateReplicasDoNotOscillate: two replicas choose for the same workers and hear of each
// other's bookings 5 ms later, with a request each millisecond that stays for 100. What the
// workers have is never further apart than what a replica can not know yet.
func TestLateReplicasDoNotOscillate(t *testing.T) {
	for _, name := range []string{"", "dynamo-two-tier-cost-fn", "predicted-ttft", "lmetric", "least-loaded"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mesh := servicetest.NewMesh()
				change := []func(*service.Config){eventsOff}
				if name != "" {
					change = append(change, policyType(t, name, ""))
				}
				var replicas []*servicetest.World
				for _, host := range []string{"a", "b"} {
					replicas = append(replicas, mesh.StartOver(t, host, func(x replicasync.Transport) replicasync.Transport { return late{x} }, change...))
				}
				mesh.Connect(t, "a", "b")
				for _, w := range replicas {
					for id := range uint64(8) {
						w.Put(record(id, 1))
					}
				}
				servicetest.Announced()
				var mu sync.Mutex // guards counts
				counts, widest := make([]int, 8), 0
				for i := range 600 {
					sel, err := replicas[i%2].Select(context.Background(), ask(prompt(uint32(i), 64)), true)
					if err != nil {
						t.Fatal(err)
					}
					mu.Lock()
					counts[sel.Rank.Worker]++
					mu.Unlock()
					go func() {
						time.Sleep(20 * time.Millisecond)
						_ = replicas[i%2].PrefillComplete(*sel.ReservationID)
						time.Sleep(80 * time.Millisecond)
						_ = replicas[i%2].Free(*sel.ReservationID)
						mu.Lock()
						counts[sel.Rank.Worker]--
						mu.Unlock()
					}()
					time.Sleep(time.Millisecond)
					synctest.Wait()
					mu.Lock()
					if i > 200 {
						widest = max(widest, slices.Max(counts)-slices.Min(counts))
					}
					mu.Unlock()
				}
				time.Sleep(time.Second)
				if widest > 10 { // mostly 5, never above 7
					t.Errorf("the workers' requests are up to %d apart", widest)
				}
			})
		})
	}
}
