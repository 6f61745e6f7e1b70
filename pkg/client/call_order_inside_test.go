package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestFreedBound proves, against a list, that exactly the latest freed ids are
// remembered and that what is kept is bounded.
func TestFreedBound(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var order callOrder
	var list []string // "" was booked again
	for range 40_000 {
		id := fmt.Sprint(rnd.IntN(3 * maxFreed))
		at := slices.Index(list, id)
		if order.wasFreed(id) != (at >= 0) {
			t.Fatalf("%s: remembered %v at %d of %d", id, order.wasFreed(id), at, len(list))
		}
		switch {
		case rnd.IntN(4) == 0:
			order.markBooked(id)
			if at >= 0 {
				list[at] = ""
			}
		case at < 0:
			order.markFreed(id)
			list = append(list, id)
			list = list[max(0, len(list)-maxFreed):]
		}
		if len(order.freed) > maxFreed || len(order.order) > maxFreed || len(order.queues) != 0 {
			t.Fatalf("keeps %d ids, %d places, %d lines", len(order.freed), len(order.order), len(order.queues))
		}
	}
}

// TestCrowd proves that one call of an id has the turn at a time, that each call
// who waits gets it or its context's error, and that nothing is kept.
func TestCrowd(t *testing.T) {
	var order callOrder
	var inside [3]atomic.Int32
	var had, gaveUp atomic.Int32
	var g sync.WaitGroup
	for i := range uint64(16) {
		g.Go(func() {
			rnd := rand.New(rand.NewPCG(i, 3))
			for range 500 {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rnd.IntN(200))*time.Microsecond)
				at := rnd.IntN(len(inside))
				give, err := order.acquire(ctx, fmt.Sprint(at))
				if err != nil {
					gaveUp.Add(1)
				} else {
					if inside[at].Add(1) != 1 {
						t.Error("two have the turn")
					}
					if rnd.IntN(4) == 0 {
						<-ctx.Done()
					}
					inside[at].Add(-1)
					had.Add(1)
					give()
				}
				cancel()
			}
		})
	}
	g.Wait()
	if len(order.queues) != 0 || had.Load() == 0 || gaveUp.Load() == 0 {
		t.Errorf("%d lines left, %d had a turn, %d gave up", len(order.queues), had.Load(), gaveUp.Load())
	}
}
