package selection_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestNoWaiterIsForgotten: reservations, releases, newcomers, worker changes and
// disconnects all at once; in the end every request has been answered and nothing
// is booked.
func TestNoWaiterIsForgotten(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, servicetest.Queueing(0))
	for id := range uint64(4) {
		w.Put(servicetest.Record(id, 1))
	}
	var wg sync.WaitGroup
	for c := range uint32(16) {
		wg.Go(func() {
			for i := range uint32(60) {
				ctx, cancel := context.WithCancel(context.Background())
				if i%5 == 0 {
					go cancel()
				}
				req := servicetest.Ask(servicetest.Prompt(c*1000+i, 8))
				if i%3 == 0 {
					req.Pinned = &catalog.Rank{Worker: uint64(i % 4)}
				}
				sel, err := w.Select(ctx, req, true)
				cancel()
				if err == nil {
					_ = w.PrefillComplete(*sel.ReservationID)
					_ = w.Free(*sel.ReservationID) // not found: its worker went
				}
			}
		})
	}
	wg.Go(func() {
		for i := range 50 {
			w.Remove(3)
			w.Put(servicetest.Record(3, 1+uint32(i%2)))
			w.Patch(2, catalog.Patch{Taints: []string{fmt.Sprint(i)}})
		}
	})
	wg.Wait()
	w.Put(servicetest.Record(3, 1))
	w.WantLoad("0/0: 0 0 0, 1/0: 0 0 0, 2/0: 0 0 0, 3/0: 0 0 0")
	stats := w.Metrics()["reservation_events_total"]
	if booked, ended := servicetest.Sum(stats, "booked"), servicetest.Sum(stats, "freed")+servicetest.Sum(stats, "dropped"); booked != ended {
		t.Errorf("%v booked, %v ended", booked, ended)
	}
}

// TestEvenSpread: 200 parallel calls on 8 equal idle workers end 25 on each,
// with and without a queue.
func TestEvenSpread(t *testing.T) {
	for name, change := range map[string]func(*node.Config){"without queue": servicetest.EventsOff, "with queue": servicetest.Queueing(16)} {
		t.Run(name, func(t *testing.T) {
			w := servicetest.Start(t, servicetest.EventsOff, change)
			for id := range uint64(8) {
				w.Put(servicetest.Record(id, 1, func(r *catalog.Record) { r.MaxNumBatchedTokens = new(uint64(8192)) }))
			}
			var mu sync.Mutex
			chosen := make([]int, 8)
			var wg sync.WaitGroup
			for i := range uint32(200) {
				wg.Go(func() {
					sel, err := w.Select(context.Background(), servicetest.Ask(servicetest.Prompt(i, 64)), true)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					defer mu.Unlock()
					chosen[sel.Rank.Worker]++
				})
			}
			wg.Wait()
			if !slices.Equal(chosen, []int{25, 25, 25, 25, 25, 25, 25, 25}) {
				t.Errorf("requests per worker: %v", chosen)
			}
		})
	}
}
