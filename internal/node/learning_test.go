package node_test

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector/ttft"
	"github.com/select-service/select-service/test/servicetest"
)

// TestLearnedSurvivesRestart: the coefficients are there again; a service whose policy
// does not predict ignores them.
func TestLearnedSurvivesRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := t.TempDir()
		learned := func(w *stateful) *node.LearnedPrefills {
			all := w.Policies(catalog.ScopeFilter{})
			if len(all) != 1 {
				t.Fatalf("%d scopes", len(all))
			}
			return all[0].Learned
		}
		w := startAt(t, path, servicetest.EventsOff, servicetest.Policy(t, "predicted-ttft", ""))
		w.Put(servicetest.Record(1, 1))
		theta := ttft.Parameters{Base: 0.05, PerToken: 1e-3, PerContext: 1e-7}
		for i := range 250 {
			id, size := fmt.Sprint("r", i), 100+i%7*300
			w.Book(id, servicetest.Prompt(uint32(i)<<12, size))
			time.Sleep(time.Duration(theta.Prefill(float64(size), float64(size)) * float64(time.Second)))
			if err := w.PrefillComplete(id); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			if err := w.Free(id); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Second)
		before := learned(w)
		w.save()

		w = startAt(t, path, servicetest.EventsOff, servicetest.Policy(t, "predicted-ttft", ""))
		after := learned(w)
		if after.Parameters != before.Parameters || after.Samples != 250 || !after.Mature {
			t.Errorf("after the restart %+v, before %+v", after, before)
		}
		if got, want := after.Prefill(1500, 1500), theta.Prefill(1500, 1500); math.Abs(got-want) > 0.05*want {
			t.Errorf("predicts %g s, not %g s", got, want)
		}
		w.save()

		w = startAt(t, path, servicetest.EventsOff)
		if got := learned(w); got != nil {
			t.Errorf("the built-in cost has learned %+v", got)
		}
	})
}
