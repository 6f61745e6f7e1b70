package selection_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// queueing is a service with one worker and a wait queue, which has observed 300 first tokens of targetEngine, unless it does not
// predict. Then the worker gets a request of so many tokens, "first", that keeps it busy.
func queueing(t *testing.T, predicts bool, tokens int) *servicetest.World {
	t.Helper()
	change := []func(*node.Config){servicetest.EventsOff, servicetest.Queueing(0)}
	if predicts {
		change = append(change, servicetest.Policy(t, "predicted-ttft", ""))
	}
	w := servicetest.Start(t, change...)
	w.Put(servicetest.Record(1, 1))
	for i := range 300 {
		run(w, t, fmt.Sprint("r", i), 100+i*17%4000, targetEngine)
	}
	time.Sleep(2 * time.Second)
	w.Book("first", servicetest.Prompt(1<<29, tokens))
	return w
}

// asking starts calls that are named, and notes in which order they are served.
type asking struct {
	w      *servicetest.World
	calls  map[string]*call
	number uint32
}

func (a *asking) ask(name string, target time.Duration, refuse bool) *call {
	a.number++
	c := startCall(a.w, name, servicetest.Prompt(1<<30+a.number<<14, 2000), func(r *selection.SelectRequest) { // 0.53 s
		r.TTFTTarget, r.RefuseOnMiss = target, refuse
	})
	a.calls[name] = c
	return c
}

// serve ends the request that keeps the worker busy, and then each that gets its turn.
func (a *asking) serve(t *testing.T) (order []string) {
	t.Helper()
	last := "first"
	for {
		if err := a.w.Free(last); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		before := last
		for name, c := range a.calls {
			if !c.waits() {
				delete(a.calls, name)
				if c.err == nil {
					order, last = append(order, name), name
				}
			}
		}
		if last == before {
			return order
		}
	}
}

// TestDeadlinesInTheQueue: of the requests that wait for a busy worker the earliest deadline goes first. One that cannot be in time
// any more, because its own first token takes longer than what is left, is refused at that moment or, with on_miss place, goes last.
func TestDeadlinesInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := queueing(t, true, 400000) // they take 900 s, so that the worker does not count as stalled
		a := &asking{w: w, calls: map[string]*call{}}
		a.ask("none", 0, false)
		a.ask("late", 2*time.Second, false)
		a.ask("second", 3000*time.Second, true)
		a.ask("third", 3500*time.Second, false)
		a.ask("first of them", 20*time.Second, true)
		begin := time.Now()
		refused := a.ask("refused", 1500*time.Millisecond, true)
		<-refused.done
		if took := time.Since(begin); took < 900*time.Millisecond || took > time.Second {
			t.Errorf("refused after %v, want 1.5 s less the 0.53 s that its first token takes", took)
		}
		missed, is := errors.AsType[*contract.TargetError](refused.err)
		if !is || contract.KindOf(refused.err) != contract.TargetMissed || refused.err.Error() != "request deadline exceeded" {
			t.Fatalf("refused with %v", refused.err)
		}
		if p := missed.Predicted; p < 500*time.Millisecond || p > 600*time.Millisecond || missed.RetryAfter() != 1 {
			t.Errorf("%v is predicted, retry after %d s", p, missed.RetryAfter())
		}
		if c := a.ask("hopeless", 300*time.Millisecond, true); c.waits() || contract.KindOf(c.err) != contract.TargetMissed {
			t.Errorf("what can never be in time waits: %v", c.err)
		}
		time.Sleep(time.Second)
		if got, want := a.serve(t), []string{"first of them", "second", "third", "none", "late"}; !slices.Equal(got, want) {
			t.Errorf("served %q, want %q", got, want)
		}
		for what, want := range map[string]float64{"refused": 2, "missed": 1, "held": 3} {
			if n := servicetest.Sum(w.Metrics()["request_targets_total"], servicetest.Scope.Model, what); n != want {
				t.Errorf("%g requests count as %s, not %g", n, what, want)
			}
		}
	})
}

// TestDeadlinesWithoutPredictions: where nothing predicts first tokens, targets are the order of the queue, and nothing is refused:
// what is late goes last.
func TestDeadlinesWithoutPredictions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := queueing(t, false, 8)
		a := &asking{w: w, calls: map[string]*call{}}
		a.ask("none", 0, false)
		a.ask("late", time.Second, true)
		a.ask("second", 60*time.Second, true)
		a.ask("first of them", 50*time.Second, true)
		time.Sleep(2 * time.Second)
		req := servicetest.Ask(servicetest.Prompt(1, 8))
		req.TTFTTarget = time.Second
		x, err := w.Explain(context.Background(), req)
		if err != nil || x.Target == nil || x.Target.OnlyQueued != "no policy, not even a shadow, predicts first tokens" {
			t.Errorf("explained as %+v, %v", x.Target, err)
		}
		if got, want := a.serve(t), []string{"first of them", "second", "none", "late"}; !slices.Equal(got, want) {
			t.Errorf("served %q, want %q", got, want)
		}
		if n := servicetest.Sum(w.Metrics()["request_targets_total"], servicetest.Scope.Model, "only_queued"); n != 3 {
			t.Errorf("%g requests count as only queued, not 3", n)
		}
	})
}

// TestDeadlinesOfAStalledWorker: while a guard rail of every worker that a request may use is engaged, it waits, whatever it wants.
func TestDeadlinesOfAStalledWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := queueing(t, true, 8) // its prefill is not reported
		time.Sleep(30 * time.Second)
		a := &asking{w: w, calls: map[string]*call{}}
		a.ask("late", time.Second, true)
		a.ask("none", 0, false)
		time.Sleep(2 * time.Second)
		if got, want := a.serve(t), []string{"none", "late"}; !slices.Equal(got, want) {
			t.Errorf("served %q, want %q", got, want)
		}
	})
}
