package selection_test

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/fairness"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestFairnessList: who has used the engines most comes first, with the requests that run and wait and what came of targets.
func TestFairnessList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, servicetest.EventsOff, fairQueue(t, "program, half_life_seconds: 86400, weights: {gold: 3}"))
		w.Put(servicetest.Record(1, 1))
		ask := func(tenant, program string, target time.Duration) *call {
			return startCall(w, tenant+program, servicetest.Prompt(uint32(len(tenant+program)), 8), func(r *selection.SelectRequest) {
				r.FairTenant, r.FairnessID, r.TTFTTarget = tenant, program, target
			})
		}
		serve := func(tenant, program string, took time.Duration) {
			id := *ask(tenant, program, time.Second).served(t).ReservationID
			time.Sleep(took)
			if w.PrefillComplete(id) != nil || w.Free(id) != nil {
				t.Fatal("not there")
			}
		}
		serve("b", "x", 3*time.Second)
		serve("gold", "y", 6*time.Second)
		serve("gold", "zz", time.Second)
		// The one that runs is predicted to take as long as those before it in the mean: 2.9 s, where the later ones weigh more.
		running := ask("gold", "run", 0).served(t)
		waiting := ask("b", "wait", 0)
		synctest.Wait()
		show := func(programs bool, limit int) (rows []string) {
			l := w.Fairness(&selection.FairnessQuery{Programs: programs, Limit: limit})
			for _, c := range l.Consumers {
				rows = append(rows, fmt.Sprintf("%s %s %.1f s %.0f %% of %g, %d run, %d wait, %d %d", c.Tenant, c.Program, c.Seconds, 100*c.Share, c.Weight, c.Running, c.Waiting,
					c.Outcomes[fairness.Attained], c.Outcomes[fairness.Missed]))
			}
			rows = append(rows, fmt.Sprint(l.Total))
			if e := l.Classes[0]; e.Tenants != 2 || e.Programs != 5 || math.Abs(e.OfTenants-1) > 0.01 {
				t.Errorf("%+v", e)
			}
			return rows
		}
		if got, want := fmt.Sprint(show(false, 10)), "[gold  9.9 s 77 % of 3, 1 run, 0 wait, 1 1 b  3.0 s 23 % of 1, 0 run, 1 wait, 0 1 2]"; got != want {
			t.Errorf("tenants: %s, want %s", got, want)
		}
		if got, want := fmt.Sprint(show(true, 2)), "[gold y 6.0 s 46 % of 3, 0 run, 0 wait, 0 1 b x 3.0 s 23 % of 1, 0 run, 0 wait, 0 1 5]"; got != want {
			t.Errorf("programs: %s, want %s", got, want)
		}
		other := "elsewhere"
		if l := w.Fairness(&selection.FairnessQuery{Of: catalog.ScopeFilter{Tenant: &other}, Limit: 1}); l.Total != 0 || len(l.Classes) != 0 {
			t.Errorf("of another scope: %+v", l)
		}
		_ = w.Free(*running.ReservationID)
		_ = w.Free(*waiting.served(t).ReservationID)
	})
}
