package telemetry_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// in asks for a selection of another scope.
func in(model, tenant string) func(*selection.SelectRequest) {
	return func(r *selection.SelectRequest) { r.Scope = catalog.Scope{Model: model, Tenant: tenant} }
}

// fails asks for selections that must not succeed.
func fails(w *servicetest.World, times int, change ...func(*selection.SelectRequest)) {
	w.T.Helper()
	for range times {
		req := servicetest.Ask(servicetest.Prompt(1, 8))
		for _, f := range change {
			f(req)
		}
		if sel, err := w.Select(context.Background(), req, false); err == nil {
			w.T.Errorf("selected %+v", sel)
		}
	}
}

// wantFree asks for four selections that must succeed, and ends what two of them
// book.
func wantFree(w *servicetest.World) {
	w.T.Helper()
	for _, reserve := range []bool{false, true, false, true} {
		sel, err := w.Select(context.Background(), servicetest.Ask(servicetest.Prompt(77, 8)), reserve)
		if err != nil {
			w.T.Fatalf("refused: %v", err)
		}
		if reserve {
			if err := w.Free(*sel.ReservationID); err != nil {
				w.T.Error(err)
			}
		}
	}
}

// TestWatchRefusals: while a model refuses selections each look has one line with
// how many and why, one more tells when it has stopped, and that is all.
func TestWatchRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, servicetest.EventsOff, servicetest.Limits(overload.Thresholds{DecodeBlocks: new(.5), PrefillTokens: new(uint64(7))}))
		w.Put(servicetest.Record(1, 1, servicetest.Total(2)))
		w.Put(servicetest.Record(2, 1, func(r *catalog.Record) { r.Scope.Model = "idle" }))
		wantFree(w)
		w.Look()
		w.WantLog()

		w.Burden("r", 1, 0, 2, 8)
		fails(w, 3)
		fails(w, 1, func(r *selection.SelectRequest) { r.Prompt = selection.Prompt{} }) // is no refusal
		w.Look()
		w.WantLog("warn: selections of a model were refused causes=map[active_decode_blocks:3 active_prefill_tokens:3] model=m refused=3 selections=3")

		if err := w.PrefillComplete("r"); err != nil {
			t.Fatal(err)
		}
		fails(w, 1)
		w.Look()
		w.WantLog("warn: selections of a model were refused causes=map[active_decode_blocks:1] model=m refused=1 selections=1")

		if err := w.Free("r"); err != nil {
			t.Fatal(err)
		}
		wantFree(w)
		w.Look()
		w.WantLog("info: selections of a model are no longer refused model=m selections=4")
		w.Look()
		w.WantLog()
	})
}

// TestWatchFullQueue: what a queue limit turns away is refused, too; a model that
// goes while it refuses has no last word.
func TestWatchFullQueue(t *testing.T) {
	policy, err := admission.ParsePolicy([]byte(`default_policy_family: f
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: c, policy_family: f, cache_bucket: all, quantum: 1, prefill_busy_threshold: 0, request_queue_limit_per_worker: 0}
`))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, servicetest.EventsOff, func(c *node.Config) { c.Scopes.Admission.File = policy })
		w.Put(servicetest.Record(1, 1))
		w.Book("r", servicetest.Prompt(1, 8))
		fails(w, 2)
		w.Look()
		w.WantLog("warn: selections of a model were refused causes=map[queue_limit:2] model=m refused=2 selections=3")
		w.Remove(1)
		w.Look()
		w.WantLog()
	})
}

// TestWatchUnserved: selections that no worker could serve have one line a look,
// with one of the models and tenants, whatever its length.
func TestWatchUnserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, servicetest.EventsOff)
		fails(w, 3)
		w.Look()
		w.WantLog("warn: selections came for models or tenants without schedulable workers example=map[model:m tenant:t] selections=3")
		w.Look()
		w.WantLog()

		w.Put(servicetest.Record(1, 1))
		long := strings.Repeat("x", 1<<20)
		for _, scope := range []func(*selection.SelectRequest){in("m", long), in("n", "t"), in(long, "t")} {
			fails(w, 1, scope)
		}
		wantFree(w)
		w.Look()
		w.WantLog("warn: selections came for models or tenants without schedulable workers example=map[model:m tenant:" + long[:256] + "…] selections=3")

		w.Close()
		fails(w, 1)
		w.Look()
		w.WantLog() // it was told to stop
	})
}

// TestWatchIsBoundedByModels: however many models refuse, or have stopped to, a
// look writes so many lines, the worst first, and one that counts the rest.
func TestWatchIsBoundedByModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, servicetest.EventsOff, servicetest.Limits(overload.Thresholds{PrefillTokens: new(uint64(0))}))
		const models = 30
		name := func(i int) string { return fmt.Sprintf("m%02d", i) }
		for i := range models {
			w.Put(servicetest.Record(uint64(i), 1, func(r *catalog.Record) { r.Scope.Model = name(i) }))
			req := servicetest.Ask(servicetest.Prompt(1, 8))
			in(name(i), "t")(req)
			if _, err := w.Select(context.Background(), req, true); err != nil {
				t.Fatal(err)
			}
		}
		w.Look()
		w.WantLog()
		refuse := func(i, times int) { fails(w, times, in(name(i), "t")) }
		for i := range models {
			refuse(i, 1)
		}
		refuse(29, 2)
		refuse(7, 1)
		w.Look()
		got := w.Log.Take(t)
		if len(got) != 21 || !strings.Contains(got[0], "model=m29 refused=3") || !strings.Contains(got[1], "model=m07 refused=2") ||
			!strings.Contains(got[2], "model=m00 refused=1") || got[20] != "warn: refusals of more models have begun, gone on or ended more=10" {
			t.Errorf("%d lines: %s", len(got), strings.Join(got, "\n"))
		}
		refuse(29, 1)
		w.Look()
		got = w.Log.Take(t)
		if len(got) != 21 || !strings.Contains(got[0], "model=m29 refused=1") || got[1] != "info: selections of a model are no longer refused model=m00 selections=0" ||
			got[20] != "info: refusals of more models have begun, gone on or ended more=10" {
			t.Errorf("%d lines: %s", len(got), strings.Join(got, "\n"))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := w.Log.Take(t); len(got) != 1 || !strings.Contains(got[0], "no longer refused model=m29") {
			t.Errorf("log is %s", strings.Join(got, "\n"))
		}
	})
}
