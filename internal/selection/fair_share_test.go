package selection_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// TestFairBehindTwoReplicas: a tenant that sends to two replicas gets one share, beside a tenant that sends to one of them.
// Which replica hears of an end first, and so places the next request, is chance, as behind a load balancer: two times of three
// it is the one of both tenants. If that did not know what the other one serves, the first tenant would get two turns of
// three: half of those of the one, and all of the other's.
func TestFairBehindTwoReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := servicetest.NewMesh()
		replicas := []*servicetest.World{m.Start(t, "a", servicetest.EventsOff, fairQueue(t, "tenant")), m.Start(t, "b", servicetest.EventsOff, fairQueue(t, "tenant"))}
		m.Connect(t, "a", "b")
		for _, w := range replicas {
			w.Put(servicetest.Record(1, 1))
		}
		servicetest.Announced()
		type session struct {
			tenant string
			at     *servicetest.World
			call   *call
		}
		n := 0
		ask := func(s *session) {
			n++
			s.call = startCall(s.at, fmt.Sprint(s.tenant, n), servicetest.Prompt(uint32(n), 8), func(r *selection.SelectRequest) { r.FairTenant = s.tenant })
			synctest.Wait()
		}
		var all []*session
		for range 3 {
			all = append(all, &session{tenant: "A", at: replicas[0]}, &session{tenant: "A", at: replicas[1]}, &session{tenant: "B", at: replicas[0]})
		}
		for _, s := range all {
			ask(s)
		}
		rnd := rand.New(rand.NewPCG(1, 2))
		const turns = 300
		got := map[string]int{}
		for done := 0; done < turns; {
			for _, s := range all {
				if s.call.waits() {
					continue
				}
				done++
				got[s.tenant]++
				id := *s.call.served(t).ReservationID
				time.Sleep(time.Second)
				ask(s)
				hears := replicas[rnd.IntN(3)/2]
				if err := hears.PrefillComplete(id); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if err := hears.Free(id); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
		}
		if share := float64(got["B"]) / float64(got["A"]+got["B"]); share < 0.45 || share > 0.55 {
			t.Errorf("turns %v", got)
		}
		for name, w := range map[string]*servicetest.World{"a": replicas[0], "b": replicas[1]} {
			l := w.Fairness(&selection.FairnessQuery{Limit: 10})
			if e := l.Classes[0]; len(l.Consumers) != 2 || e.OfTenants < 0.98 {
				t.Errorf("%s shows %+v", name, l)
			}
		}
	})
}

// TestFairCorrectedElsewhere: what a replica has charged for a request is corrected when another replica hears of the end of its
// prefill and of its answer, and all replicas come to know what was observed.
func TestFairCorrectedElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := servicetest.NewMesh()
		replicas := []*servicetest.World{m.Start(t, "a", servicetest.EventsOff, fairQueue(t, "tenant, half_life_seconds: 86400")), m.Start(t, "b", servicetest.EventsOff, fairQueue(t, "tenant, half_life_seconds: 86400"))}
		m.Connect(t, "a", "b")
		for _, w := range replicas {
			w.Put(servicetest.Record(1, 1))
		}
		servicetest.Announced()
		served := func(want float64, when string) {
			t.Helper()
			time.Sleep(5 * time.Second) // it is told each second
			synctest.Wait()
			for i, w := range replicas {
				l := w.Fairness(&selection.FairnessQuery{Limit: 10})
				if len(l.Consumers) != 1 || l.Consumers[0].Seconds < want-0.1 || l.Consumers[0].Seconds > want+0.1 {
					t.Errorf("%s, replica %d: %+v, want %v s", when, i, l.Consumers, want)
				}
			}
		}
		id := *startCall(replicas[0], "r", servicetest.Prompt(1, 8), func(r *selection.SelectRequest) { r.FairTenant = "A" }).served(t).ReservationID
		served(0, "predicted")
		time.Sleep(15 * time.Second)
		if err := replicas[1].PrefillComplete(id); err != nil {
			t.Fatal(err)
		}
		served(20, "after its prefill")
		time.Sleep(5 * time.Second)
		if err := replicas[1].Free(id); err != nil {
			t.Fatal(err)
		}
		served(30, "after its end")
	})
}
