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
