package selection_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestOverlapRefresh (contract §7): the overlap of a request that waited for long
// enough is looked up again; load always is.
func TestOverlapRefresh(t *testing.T) {
	tests := []struct {
		name        string
		after, wait time.Duration
		want        uint32 // device tokens in the answer
	}{
		{"too early", 10 * time.Second, 9 * time.Second, 0},
		{"due", 10 * time.Second, 10 * time.Second, 8},
		{"never", 0, 4 * time.Minute, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := servicetest.Start(t, servicetest.Queueing(0), func(c *node.Config) { c.Scopes.Queues.OverlapRefresh = tt.after })
				w.Put(servicetest.Record(1, 1))
				w.Book("first", servicetest.Prompt(1000, 8))
				c := startCall(w, "a", servicetest.Prompt(1, 8))
				e := w.Engine(1, 0)
				e.Publish(0, e.Stored(servicetest.Prompt(1, 8), servicetest.BlockSize, nil))
				time.Sleep(tt.wait)
				if err := w.Free("first"); err != nil {
					t.Fatal(err)
				}
				sel := c.served(t)
				if sel.Overlap.GPU != tt.want || sel.EffectivePrefillTokens != 8-uint64(tt.want) {
					t.Errorf("overlap %d, prefill %d tokens; want %d and %d", sel.Overlap.GPU, sel.EffectivePrefillTokens, tt.want, 8-tt.want)
				}
			})
		})
	}
}

// TestDispatchTimer: a queued request gets its turn when a stale reservation is
// ended.
func TestDispatchTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := busy(t)
		c := startCall(w, "a", servicetest.Prompt(1, 8))
		time.Sleep(300*time.Second - time.Millisecond)
		synctest.Wait()
		if !c.waits() {
			t.Fatal("admitted before the first reservation ended")
		}
		time.Sleep(2 * time.Minute)
		c.served(t)
		w.WantLoad("1/0: 8 2 1")
	})
}

// TestExpiry: a reservation whose caller never comes back ends 300 to 360 s
// after it was made; nothing that happens meanwhile extends it.
func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, servicetest.EventsOff)
		w.Put(servicetest.Record(1, 1))
		time.Sleep(7 * time.Second) // out of step with the timers
		w.Book("r", servicetest.Prompt(1, 8))
		time.Sleep(299 * time.Second)
		if err := w.OutputBlock("r", nil); err != nil {
			t.Fatalf("after 299 s: %v", err)
		}
		w.WantLoad("1/0: 8 3 1")
		time.Sleep(61 * time.Second)
		synctest.Wait()
		servicetest.WantError(t, w.OutputBlock("r", nil), contract.NotFound, "reservation r not found")
		w.WantLoad("1/0: 0 0 0")
		if n := servicetest.Sum(w.Metrics()["reservation_events_total"], "expired"); n != 1 {
			t.Errorf("%v expired, want 1", n)
		}
		w.Book("r", servicetest.Prompt(1, 8))
	})
}
