package selection_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector/ttft"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// holdingFor starts a service that holds requests, with so many workers. An idle engine
// of its default model computes 12,000 tokens a second.
func holdingFor(t *testing.T, workers uint64, parameters string, change ...func(*node.Config)) *servicetest.World {
	t.Helper()
	w := servicetest.Start(t, append([]func(*node.Config){servicetest.Policy(t, "predicted-ttft", parameters), servicetest.EventsOff}, change...)...)
	for id := range workers {
		w.Put(servicetest.Record(id, 1))
	}
	return w
}

// TestHold: a request goes to a rank that has little left to compute, at once or as soon
// as there is one, and the shorter one goes first.
func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := holdingFor(t, 1, "hold_seconds: 0.2")
		w.Book("first", servicetest.Prompt(1, 12000)) // a second
		long := startCall(w, "long", servicetest.Prompt(20000, 6000))
		short := startCall(w, "short", servicetest.Prompt(40000, 1200))
		synctest.Wait()
		if !long.waits() || !short.waits() {
			t.Fatal("not held, although a second is left")
		}
		time.Sleep(790 * time.Millisecond)
		synctest.Wait()
		if !long.waits() || !short.waits() {
			t.Fatal("not held, although 0.21 s are left")
		}
		time.Sleep(20 * time.Millisecond)
		short.served(t) // 0.1 s: 0.29 s are left with it
		synctest.Wait()
		if !long.waits() {
			t.Fatal("the long one is not held behind the short one")
		}
		if err := w.PrefillComplete("first"); err != nil {
			t.Fatal(err)
		}
		long.served(t)
	})
}

// TestHoldEnds: after the longest time a request goes whatever is left to compute.
func TestHoldEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := holdingFor(t, 1, "hold_seconds: 0.2, hold_max_seconds: 3")
		w.Book("first", servicetest.Prompt(1, 120000))
		c := startCall(w, "a", servicetest.Prompt(200000, 1200))
		time.Sleep(2999 * time.Millisecond)
		synctest.Wait()
		if !c.waits() {
			t.Fatal("it went too early")
		}
		time.Sleep(2 * time.Millisecond)
		c.served(t)
	})
}

// TestHeldIsCharged: a request that is held for a rank is work there for those behind it.
func TestHeldIsCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := holdingFor(t, 2, "hold_seconds: 0.2")
		w.Book("long ago", servicetest.Prompt(1<<20, 12))
		if err := w.Free("long ago"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Second) // next to nothing arrives
		warm := w.Book("warm", servicetest.Prompt(1, 7200))
		time.Sleep(100 * time.Millisecond)
		// 0.5 s are left. Of this one 0.2 s are to be computed there, 0.8 s elsewhere.
		first := startCall(w, "first", servicetest.Prompt(1, 9600))
		if !first.waits() {
			t.Fatal("not held for the rank that computes its beginning")
		}
		// Of this one it is 0.4 s there, 1 s elsewhere: the one before makes the difference.
		second := startCall(w, "second", servicetest.Prompt(1, 12000))
		if sel := second.served(t); sel.Rank == warm.Rank {
			t.Error("as if nothing were held for that rank")
		}
		if !first.waits() {
			t.Error("the first is not held any more")
		}
		time.Sleep(310 * time.Millisecond)
		if sel := first.served(t); sel.Rank != warm.Rank {
			t.Errorf("the first is on %v", sel.Rank)
		}
	})
}

// TestNothingIsHeldForLateCallers: guard rails end the hold.
func TestNothingIsHeldForLateCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := holdingFor(t, 1, "hold_seconds: 0.2")
		runLate(w, t, 30)
		w.Book("first", servicetest.Prompt(1<<20, 120000))
		startCall(w, "second", servicetest.Prompt(1<<21, 1200)).served(t)
	})
}

// TestHeldRequestsEnd with their client, their workers and the service.
func TestHeldRequestsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := holdingFor(t, 1, "hold_seconds: 0.2, hold_max_seconds: 100")
		w.Book("first", servicetest.Prompt(1, 1200000))
		gone := startCall(w, "gone", servicetest.Prompt(1<<21, 1200))
		stays := startCall(w, "stays", servicetest.Prompt(1<<22, 1200))
		synctest.Wait()
		if loads := w.Loads(nil, nil); loads[0].PendingCount != 2 || loads[0].PendingISLTokens != 2400 {
			t.Errorf("pending %d, %d tokens", loads[0].PendingCount, loads[0].PendingISLTokens)
		}
		gone.cancel()
		synctest.Wait()
		if gone.waits() {
			t.Error("the client is gone and it waits")
		}
		w.Remove(0)
		synctest.Wait()
		if stays.waits() {
			t.Error("the worker is gone and it waits")
		}
		servicetest.WantError(t, stays.err, contract.Unavailable, "no schedulable workers are available")
	})
}

// TestPoliciesChange: a request is held from when the policies hold requests, for what was booked before,
// too, and goes at once when they no longer do; and what was learned is kept meanwhile.
func TestPoliciesChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const holds = `{"aggregated":"p","instances":[{"name":"p","type":"predicted-ttft","parameters":{"hold_seconds":0.2,"hold_max_seconds":60}}]}`
		w := servicetest.Start(t, servicetest.EventsOff)
		w.Put(servicetest.Record(0, 1))
		apply := func(section []byte) {
			t.Helper()
			if err := w.ApplyPolicies(section); err != nil {
				t.Fatal(err)
			}
		}
		w.Book("first", servicetest.Prompt(1, 12000)) // a second
		apply([]byte(holds))
		w.Put(servicetest.Record(0, 1)) // as it is
		held := startCall(w, "held", servicetest.Prompt(20000, 6000))
		routed := startCall(w, "routed", servicetest.Prompt(20000, 6000), func(r *selection.SelectRequest) {
			r.Prompt = selection.Prompt{Routing: &selection.Routing{TokenIDs: r.Prompt.TokenIDs}}
		})
		synctest.Wait()
		if !held.waits() || !routed.waits() {
			t.Fatal("not held, although a second is left")
		}
		if err := w.ApplyPolicies([]byte(`{"aggregated":"q"}`)); err == nil || w.PolicySection() != holds {
			t.Errorf("a section with a fault: %v, then in force %s", err, w.PolicySection())
		}
		apply([]byte(strings.Replace(holds, "0.2", "0.3", 1)))
		synctest.Wait()
		if !held.waits() || !routed.waits() {
			t.Fatal("not held by the policies after these")
		}
		apply(nil)
		held.served(t)
		routed.served(t)
		if got := w.Policies(catalog.ScopeFilter{})[0]; got.Name != "default" || got.Learned != nil {
			t.Errorf("policies %+v", got)
		}
		second := startCall(w, "second", servicetest.Prompt(40000, 6000))
		second.served(t)
		apply([]byte(holds))
		for i := range 60 {
			run(w, t, fmt.Sprint("r", i), 100+i*17%4000, ttft.Default())
		}
		time.Sleep(2 * time.Second)
		samples := learned(w, t).Samples
		apply(nil)
		apply([]byte(holds))
		if got := learned(w, t).Samples; got != samples || samples == 0 {
			t.Errorf("learned from %d prefills before, from %d now", samples, got)
		}
	})
}

// TestPoliciesOfWaiting: a request that waits in a queue which stays is decided by the policies of when
// its turn comes.
func TestPoliciesOfWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := busy(t, remembering)
		waits := startCall(w, "waits", servicetest.Prompt(1, 8))
		if err := w.ApplyPolicies([]byte(`{"aggregated":"p","instances":[{"name":"p","type":"predicted-ttft"}]}`)); err != nil {
			t.Fatal(err)
		}
		if !waits.waits() {
			t.Fatal("it did not wait")
		}
		if err := w.PrefillComplete("first"); err != nil {
			t.Fatal(err)
		}
		waits.served(t)
		if all := w.Decisions(catalog.ScopeFilter{}, 1); len(all) != 1 || all[0].Explain().Policy != "p" {
			t.Errorf("decided as %+v", all)
		}
	})
}
