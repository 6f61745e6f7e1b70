package selection_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
	"github.com/select-service/select-service/pkg/selector/ttft"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// predicting starts a service whose policy is predicted-ttft, with so many workers.
func predicting(t *testing.T, workers uint64, change ...func(*node.Config)) *servicetest.World {
	t.Helper()
	w := servicetest.Start(t, append([]func(*node.Config){servicetest.Policy(t, "predicted-ttft", ""), servicetest.EventsOff}, change...)...)
	for id := range workers {
		w.Put(servicetest.Record(id, 1))
	}
	return w
}

// run books a prompt, and reports its prefill complete when an engine of these
// coefficients has computed it, and its end a second later.
func run(w *servicetest.World, t *testing.T, id string, size int, theta ttft.Parameters) {
	t.Helper()
	req := servicetest.Ask(servicetest.Prompt(uint32(len(id))<<16, size))
	req.ReservationID = &id
	sel, err := w.Select(context.Background(), req, true)
	if err != nil {
		t.Fatal(err)
	}
	took := theta.Prefill(float64(sel.EffectivePrefillTokens), float64(size))
	w.Serve(id, time.Duration(took*float64(time.Second)))
}

// runLate books n prompts one after the other, and reports each's prefill complete only
// with its end.
func runLate(w *servicetest.World, t *testing.T, n int) {
	t.Helper()
	for i := range n {
		id := fmt.Sprint("late", i)
		w.Book(id, servicetest.Prompt(uint32(i)<<12, 400))
		time.Sleep(5 * time.Second)
		if w.PrefillComplete(id) != nil || w.Free(id) != nil {
			t.Fatal("not there")
		}
	}
}

// learned is what the service shows of the scope.
func learned(w *servicetest.World, t *testing.T) *selection.LearnedPrefills {
	t.Helper()
	all := w.Policies(catalog.ScopeFilter{})
	if len(all) != 1 || all[0].Type != "predicted-ttft" || all[0].Learned == nil {
		t.Fatalf("policies %+v", all)
	}
	return all[0].Learned
}

// TestPredictedHerd: a herd of equal requests spreads evenly; time stands still for it.
func TestPredictedHerd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counts := herd(t, servicetest.Policy(t, "predicted-ttft", ""))
		for _, n := range counts {
			if n != 25 {
				t.Fatalf("the workers got %v", counts)
			}
		}
	})
}

// TestPrefillTimesAreLearned from the calls that callers make.
func TestPrefillTimesAreLearned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := predicting(t, 2)
		theta := ttft.Parameters{Base: 0.03, PerToken: 1.0 / 4000, PerContext: 1e-8}
		for i := range 300 {
			run(w, t, fmt.Sprint("r", i), 100+i*17%4000, theta)
		}
		time.Sleep(2 * time.Second)
		got := learned(w, t)
		if !got.Learned || got.Samples != 300 {
			t.Errorf("learned %v from %d samples", got.Learned, got.Samples)
		}
		// The engine takes what is predicted, but for what the first samples have not told.
		if c := got.Calibration; c.Samples < 280 || math.Abs(c.Q50-1) > 0.1 || math.Abs(c.Q90-1) > 0.1 || len(got.Compared.Deciles) != 10 {
			t.Errorf("calibration %+v, %+v", c, got.Compared)
		}
		for _, size := range []float64{500, 2000, 4000} {
			if x, want := got.Prefill(size, size), theta.Prefill(size, size); math.Abs(x-want) > 0.05*want {
				t.Errorf("%g tokens are predicted to take %g s, not %g s", size, x, want)
			}
		}
		for _, rail := range got.Rails {
			if rail.Engaged {
				t.Errorf("%v is engaged", rail.Rail)
			}
		}
	})
}

// TestShadowLearns: a policy that only watches learns the same, and explanations of the one
// that decides predict by it.
func TestShadowLearns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, servicetest.EventsOff, servicetest.Policies(t, "shadow: [p]\ninstances: [{name: p, type: predicted-ttft}]"))
		w.Put(servicetest.Record(1, 1))
		theta := ttft.Parameters{Base: 0.03, PerToken: 1.0 / 4000, PerContext: 1e-8}
		for i := range 100 {
			run(w, t, fmt.Sprint("r", i), 100+i*17%4000, theta)
		}
		time.Sleep(2 * time.Second)
		if l := w.Policies(catalog.ScopeFilter{})[0].Learned; l == nil || l.Samples != 100 {
			t.Fatalf("learned %+v", l)
		}
		x, err := w.Explain(context.Background(), servicetest.Ask(servicetest.Prompt(1<<30, 2000)))
		if err != nil {
			t.Fatal(err)
		}
		got, want := x.Candidates[0].TTFT(), theta.Prefill(2000, 2000)
		if x.Policy != "default" || x.Candidates[0].Unit != "blocks" || math.Abs(got-want) > 0.05*want {
			t.Errorf("%s, in %s, predicts %g s, not %g s", x.Policy, x.Candidates[0].Unit, got, want)
		}
	})
}

// TestWaitFades: what a rank has had the time to compute does not count any more, and
// what is left there counts against what a free rank would have to compute.
func TestWaitFades(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := predicting(t, 2)
		first := w.Book("long", servicetest.Prompt(1, 12000)) // a second at 12,000 tokens a second
		second := w.Book("short", servicetest.Prompt(20000, 6000))
		if first.Rank == second.Rank {
			t.Fatalf("both on %v", first.Rank)
		}
		time.Sleep(700 * time.Millisecond) // 0.3 s are left of the first, nothing of the second
		if third := w.Book("third", servicetest.Prompt(40000, 1200)); third.Rank != second.Rank {
			t.Errorf("the third is on %v, where more is left", third.Rank)
		}
		if err := w.PrefillComplete("long"); err != nil {
			t.Fatal(err)
		}
		if fourth := w.Book("fourth", servicetest.Prompt(60000, 1200)); fourth.Rank != first.Rank {
			t.Errorf("the fourth is on %v, where others wait", fourth.Rank)
		}
		for _, r := range learned(w, t).Ranks {
			if r.Rank == first.Rank && math.Abs(r.Wait-0.1) > 1e-6 {
				t.Errorf("%v: the wait is %g s", r.Rank, r.Wait)
			}
		}
	})
}

// TestLateCallersGetDynamosCost: callers that report the end of the prefill with the end
// of the answer engage the guard rails, and timely ones end them.
func TestLateCallersGetDynamosCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := predicting(t, 2)
		engaged := func() (names []string) {
			time.Sleep(2 * time.Second)
			for _, r := range learned(w, t).Rails {
				if r.Engaged {
					names = append(names, r.Rail.String())
				}
			}
			return names
		}
		// logged counts the lines about a rail, and takes them.
		logged := func(rail, what string) (n int) {
			for _, line := range w.Log.Take(t) {
				if strings.Contains(line, rail) && strings.Contains(line, "guard rail of predicted-ttft "+what) {
					n++
				}
			}
			return n
		}
		runLate(w, t, 30)
		if got := fmt.Sprint(engaged()); got != "[nothing_to_learn late_rank late_scope]" {
			t.Errorf("engaged %s", got)
		}
		if n := logged("late_scope", "engaged"); n != 1 {
			t.Errorf("%d lines say that late_scope is engaged", n)
		}
		if n := learned(w, t).Samples; n != 0 {
			t.Errorf("learned from %d late reports", n)
		}
		x, err := w.Explain(context.Background(), servicetest.Ask(servicetest.Prompt(1, 400)))
		if err != nil || x.Type != "predicted-ttft" || x.Candidates[0].Source != selector.Fallback || x.Candidates[0].Unit != "blocks" {
			t.Errorf("explained as %+v, %v", x, err)
		}
		for i := range 500 {
			run(w, t, fmt.Sprint("good", i), 400, ttft.Default())
		}
		if got := engaged(); got != nil {
			t.Errorf("engaged %v after 500 timely reports", got)
		}
		if n := logged("late_scope", "ended"); n != 1 {
			t.Errorf("%d lines say that late_scope ended", n)
		}
	})
}

// TestWithoutTrackedPrefill there is nothing to predict by.
func TestWithoutTrackedPrefill(t *testing.T) {
	w := predicting(t, 2, func(c *node.Config) { c.Selection.Weights.TrackPrefill = false })
	w.Book("a", servicetest.Prompt(1, 400))
	for _, r := range learned(w, t).Rails {
		if r.Engaged != (r.Rail == ttft.Untracked) {
			t.Errorf("%v: engaged %v", r.Rail, r.Engaged)
		}
	}
}

// TestPrefillInferred: a caller that is told of no prefill gets the predicted time once that
// is mature; what it then infers is nothing to learn from, and says nothing of when callers report: answers that are not streamed,
// and those of embeddings, would otherwise turn predictions off.
func TestPrefillInferred(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := predicting(t, 1)
		theta := ttft.Parameters{Base: 0.03, PerToken: 1.0 / 4000, PerContext: 1e-8}
		infer := func(i int) time.Duration {
			req := servicetest.Ask(servicetest.Prompt(uint32(1_000_000+i), 1000))
			req.Stored = func() { t.Error("there are no events") }
			sel, err := w.Select(context.Background(), req, true)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			if err := w.PrefillInferred(*sel.ReservationID); err != nil {
				t.Fatal(err)
			}
			w.WantLoad("0/0: 0 250 1")
			if err := w.Free(*sel.ReservationID); err != nil {
				t.Fatal(err)
			}
			return sel.PredictedTTFT
		}
		if d := infer(0); d != 0 {
			t.Errorf("%v is predicted with nothing learned", d)
		}
		for i := range 300 {
			run(w, t, fmt.Sprint("r", i), 100+i*17%4000, theta)
		}
		time.Sleep(2 * time.Second)
		samples := learned(w, t).Samples
		if d, want := infer(1), theta.Prefill(1000, 1000); math.Abs(d.Seconds()-want) > 0.1*want {
			t.Errorf("%v is predicted, not %g s", d, want)
		}
		for i := range 200 {
			infer(i + 2)
		}
		if d, want := infer(999), theta.Prefill(1000, 1000); math.Abs(d.Seconds()-want) > 0.1*want {
			t.Errorf("%v is predicted in the end, not %g s", d, want)
		}
		for _, r := range learned(w, t).Rails {
			if late := r.Rail == ttft.LateScope || r.Rail == ttft.LateRank; r.Engaged && late {
				t.Errorf("%v is engaged", r.Rail)
			}
		}
		if got := learned(w, t); got.Samples != samples {
			t.Errorf("%d samples became %d", samples, got.Samples)
		}
	})
}

// TestFallbacks: the next cheapest workers, one rank of each, in this order.
func TestFallbacks(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff)
	for id := range uint64(4) {
		w.Put(servicetest.Record(id+1, 2))
	}
	for id := range uint64(3) { // the first is the busiest
		for i := range 4 - id {
			direct := &selection.ReserveRequest{Scope: servicetest.Scope, ID: fmt.Sprint(id, i), Rank: catalog.Rank{Worker: id + 1, DP: 1}, Prompt: servicetest.Hashes(servicetest.Prompt(uint32(10*id+i), 16))}
			if _, err := w.Reserve(direct); err != nil {
				t.Fatal(err)
			}
		}
	}
	req := servicetest.Ask(servicetest.Prompt(99, 16))
	req.Fallbacks = 2
	req.Eligible = func(*catalog.Snapshot) func(catalog.Entry) bool {
		return func(e catalog.Entry) bool { return e.DP == 1 }
	}
	sel, err := w.Select(context.Background(), req, false)
	if err != nil {
		t.Fatal(err)
	}
	want := []catalog.Rank{{Worker: 3, DP: 1}, {Worker: 2, DP: 1}}
	if sel.Rank != (catalog.Rank{Worker: 4, DP: 1}) || !slices.Equal(sel.Fallbacks, want) {
		t.Errorf("chosen %v, then %v", sel.Rank, sel.Fallbacks)
	}
}
