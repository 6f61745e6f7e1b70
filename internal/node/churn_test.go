package node_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestSelectDuringChanges: workers come, go, change and publish while requests
// are booked and freed. With one worker that stays, no request fails; what is
// answered is a worker as it was registered; in the end nothing is left booked.
func TestSelectDuringChanges(t *testing.T) {
	w := servicetest.Start(t)
	w.Put(servicetest.Record(0, 1))
	var done atomic.Bool
	var clients, changers sync.WaitGroup
	for id := uint64(1); id <= 3; id++ {
		changers.Go(func() {
			for i := uint32(0); !done.Load(); i++ {
				w.Put(servicetest.Record(id, 1+i%3))
				e := w.Engine(id, 0)
				for dp := range 1 + i%3 {
					e.Publish(dp, e.Stored(servicetest.Prompt(i%8, 32), servicetest.BlockSize, nil))
				}
				w.Patch(id, catalog.Patch{Taints: []string{fmt.Sprint(i)}})
				w.Patch(id, catalog.Patch{Size: new(1 + (i+1)%3), KVEventsEndpoints: servicetest.Endpoints(id, 1+(i+1)%3)})
				w.Remove(id)
			}
		})
	}
	changers.Go(func() {
		for !done.Load() {
			w.Settle()
			w.Loads(nil, nil)
			if _, err := w.PotentialLoads(&selection.ProjectRequest{Scope: servicetest.Scope, Prompt: servicetest.Ask(servicetest.Prompt(1, 32)).Prompt}); err != nil {
				t.Error(err)
			}
		}
	})
	for c := range uint32(4) {
		clients.Go(func() {
			for i := range uint32(300) {
				sel, err := w.Select(context.Background(), servicetest.Ask(servicetest.Prompt(i%8, 32)), true)
				if err != nil {
					t.Errorf("client %d: %v", c, err)
					return
				}
				if sel.Endpoint != servicetest.Address(sel.Rank.Worker) || sel.Rank.DP > 2 {
					t.Errorf("%v at %s was never registered", sel.Rank, sel.Endpoint)
				}
				var e *contract.Error
				if err := w.Free(*sel.ReservationID); err != nil && (!errors.As(err, &e) || e.Kind != contract.NotFound || sel.Rank.Worker == 0) {
					t.Errorf("free on %v: %v", sel.Rank, err)
				}
			}
		})
	}
	clients.Wait()
	done.Store(true)
	changers.Wait()
	w.WantLoad("0/0: 0 0 0")
	w.WantDevice(servicetest.Prompt(0, 32), "0/0:0")
	if n := servicetest.Sum(w.Metrics()["index_blocks"]); n != 0 {
		t.Errorf("%v blocks are left of workers that are gone", n)
	}
	stats := w.Metrics()["reservation_events_total"]
	if booked, ended := servicetest.Sum(stats, "booked"), servicetest.Sum(stats, "freed")+servicetest.Sum(stats, "dropped"); booked != 1200 || ended != 1200 {
		t.Errorf("%v booked, %v ended; want 1,200 each", booked, ended)
	}
}

// TestBlockSizeDuringReservations: no reservation that was cut for one block size
// is ever found in the pool of the other.
func TestBlockSizeDuringReservations(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff)
	w.Put(servicetest.Record(1, 1))
	a := servicetest.Prompt(1, 64)
	for i := range 100 {
		size := uint32(8 << (i % 2))
		var wg sync.WaitGroup
		for c := range 4 {
			wg.Go(func() {
				for n := range 5 {
					id := fmt.Sprint(i, "-", c, "-", n)
					if n%2 == 0 {
						req := servicetest.Ask(a)
						req.ReservationID = &id
						_, _ = w.Select(context.Background(), req, true) // 503 while the worker is out
						continue
					}
					_, _ = w.Reserve(&selection.ReserveRequest{Scope: servicetest.Scope, ID: id, Rank: catalog.Rank{Worker: 1}, Prompt: servicetest.Ask(a).Prompt})
				}
			})
		}
		w.Patch(1, catalog.Patch{BlockSize: &size})
		wg.Wait()
		// All have the same prompt: its blocks are counted once.
		load := w.Loads(nil, nil)[0].Loads[0]
		if load.Requests > 0 && load.DecodeBlocks != uint64(64/size) {
			t.Fatalf("round %d: %d blocks of %d tokens for a prompt of 64", i, load.DecodeBlocks, size)
		}
	}
}

// TestLostRankLeavesNoBlocks: a batch on its way that names a rank which is
// taken away must not leave blocks in the slot that somebody else gets.
func TestLostRankLeavesNoBlocks(t *testing.T) {
	w := servicetest.Start(t)
	e := w.Engine(1, 0)
	var events []any
	for i := range uint32(200) {
		events = append(events, e.Stored(servicetest.Prompt(i, 32), servicetest.BlockSize, nil))
	}
	payload := servicetest.Batch(1, events...)
	for round := range 60 {
		w.Put(servicetest.Record(1, 2))
		for range 5 {
			e.Deliver(payload) // for rank 1, on the socket of rank 0
		}
		w.Patch(1, catalog.Patch{Size: new(uint32(1)), KVEventsEndpoints: servicetest.Endpoints(1, 1)})
		w.Put(servicetest.Record(2, 1)) // in the slot of rank 1
		w.Settle()
		if n := servicetest.Sum(w.Metrics()["index_blocks"]); n != 0 {
			t.Fatalf("round %d: %v blocks, all of a rank that is gone", round, n)
		}
		w.Remove(2)
	}
}

// TestSoleWorkerComesAndGoes (decision D8): registered again, the only worker of
// a scope serves at once, from an index that listens.
func TestSoleWorkerComesAndGoes(t *testing.T) {
	w := servicetest.Start(t)
	for i := range uint32(50) {
		w.Put(servicetest.Record(1, 1))
		a := servicetest.Prompt(i, 16)
		e := w.Engine(1, 0)
		e.Publish(0, e.Stored(a, servicetest.BlockSize, nil))
		w.WantDevice(a, "1/0:4")
		w.WantDevice(servicetest.Prompt(i-1, 16), "1/0:0")
		w.Remove(1)
	}
}
