package selection_test

import (
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestThresholdsAtDispatch: with a wait queue, thresholds are read when a request
// is scored. One that waits is not answered because a threshold changes; when
// its turn comes it gets the 503 if all its workers are overloaded by then.
func TestThresholdsAtDispatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, servicetest.EventsOff, servicetest.Queueing(0))
		w.Put(servicetest.Record(1, 1, servicetest.Total(10)))
		w.Book("first", servicetest.Prompt(1000, 8)) // 2 blocks
		a, b := startCall(w, "a", servicetest.Prompt(1, 8)), startCall(w, "b", servicetest.Prompt(2, 8))
		w.SetBusy(overload.Thresholds{DecodeBlocks: new(.1)})
		late := startCall(w, "late", servicetest.Prompt(5, 8)) // has to wait by the queue's rule, too
		time.Sleep(5 * time.Minute / 2)                        // the timer dispatches the queue
		synctest.Wait()
		if !a.waits() || !b.waits() || !late.waits() {
			t.Fatal("a threshold has answered a request that waits")
		}
		w.WantLoad("1/0: 8 2 1, waiting: 3 with 24")
		if err := w.PrefillComplete("first"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for _, c := range []*call{a, b, late} {
			if c.waits() {
				t.Fatal("still waits for its turn")
			}
			servicetest.WantError(t, c.err, contract.Overloaded, allBusy)
		}
		w.WantLoad("1/0: 0 2 1")
		if c := startCall(w, "c", servicetest.Prompt(3, 8)); c.waits() || c.err == nil {
			t.Errorf("c waits: %t, %v", c.waits(), c.err)
		}
		w.ClearBusy()
		startCall(w, "d", servicetest.Prompt(4, 8)).served(t)
	})
}

// TestStaleAtDispatch: reservations whose time is over do not count when a request that has waited
// is judged by the thresholds, though there are more than a booking ends by itself.
func TestStaleAtDispatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, servicetest.EventsOff, servicetest.Queueing(0))
		w.Put(servicetest.Record(1, 1, servicetest.Total(80)))
		const lease = 1500 * time.Millisecond
		for i := range 60 {
			id := strconv.Itoa(i)
			if _, err := reserve(w, id, servicetest.Prompt(uint32(100+i), servicetest.BlockSize), leased(lease)); err != nil {
				t.Fatal(err)
			}
			if err := w.PrefillComplete(id); err != nil {
				t.Fatal(err)
			}
		}
		w.Book("first", servicetest.Prompt(1000, 8))
		w.SetBusy(overload.Thresholds{DecodeBlocks: new(.5)})
		waiting := startCall(w, "a", servicetest.Prompt(1, 8))
		if !waiting.waits() {
			t.Fatal("it does not wait")
		}
		time.Sleep(lease + time.Nanosecond) // before the timer that ends leases
		if err := w.PrefillComplete("first"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		waiting.served(t)
	})
}

// TestThresholdsCauseNoWait: however full the workers are, no one waits unless
// the queue's own rule says so.
func TestThresholdsCauseNoWait(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, servicetest.Queueing(1e9), servicetest.Limits(overload.Thresholds{PrefillTokens: new(uint64(7))}))
	w.Put(servicetest.Record(1, 1))
	w.Put(servicetest.Record(2, 1))
	w.Burden("r1", 1, 0, 1, 8)
	wantFree(w)
	w.Burden("r2", 2, 0, 1, 8)
	wantBusy(w)
	servicetest.WantError(t, try(w, pin(1, 0)), contract.Overloaded, "pinned worker 1 is overloaded")
	w.WantLoad("1/0: 8 1 1, 2/0: 8 1 1")
	if err := w.Free("r1"); err != nil {
		t.Fatal(err)
	}
	wantFree(w)
}

// TestReplicasMakeBusy: what another replica books counts, and what it frees
// counts no more; each replica has thresholds of its own.
func TestReplicasMakeBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := servicetest.Pair(t)
		b.SetBusy(overload.Thresholds{PrefillTokens: new(uint64(7))})
		a.Book("r1", servicetest.Prompt(1, 8))
		synctest.Wait()
		wantBusy(b)
		wantFree(a)
		a.Book("r2", servicetest.Prompt(2, 8)) // applied at b, though it is busy there
		synctest.Wait()
		b.WantLoad("1/0: 16 4 2")
		for _, id := range []string{"r1", "r2"} {
			wantBusy(b)
			if err := a.Free(id); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		wantFree(b)
	})
}

// TestPrefillThresholdAboveTheMark proves what the start warns of: with a wait
// queue, a prefill threshold at or above the queue's mark refuses nothing, for
// what is not too busy for a class is not above it.
func TestPrefillThresholdAboveTheMark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, servicetest.EventsOff, servicetest.Queueing(.1), servicetest.Limits(overload.Thresholds{PrefillTokens: new(uint64(10)), PrefillFraction: new(.1)}))
		w.Put(servicetest.Record(1, 1)) // the mark is 10 tokens
		var calls []*call
		for i := range 20 {
			calls = append(calls, startCall(w, strconv.Itoa(i), servicetest.Prompt(uint32(1000*i), 8)))
		}
		for i, c := range calls {
			c.served(t)
			if next := i + 2; next < len(calls) && !calls[next].waits() {
				t.Errorf("request %d does not wait: %v", next, calls[next].err)
			}
			if err := w.Free(strconv.Itoa(i)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
	})

	rnd := rand.New(rand.NewPCG(1, 2))
	free := 0
	for range 100_000 {
		batch, mark := rnd.Uint64N(20_000), 2*rnd.Float64()
		above := mark * (1 + float64(rnd.IntN(2))*rnd.Float64())
		class := admission.Config{Threshold: &mark}.ForModel("m").Class("", 0)
		prefill := rnd.Uint64N(30_000)
		limits := overload.Thresholds{PrefillTokens: new(uint64(math.Ceil(above * float64(batch)))), PrefillFraction: &above}
		if batch > 0 && !class.Busy(prefill, batch) {
			free++
			if why := limits.Exceeded(overload.Load{Prefill: prefill}, overload.Capacity{BatchedTokens: batch}); why != 0 {
				t.Fatalf("%d of %d tokens are above %v (%b), but not above %v", prefill, batch, above, why, mark)
			}
		}
	}
	if free < 1000 {
		t.Errorf("only %d loads were not busy", free)
	}
}
