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

// TestFairRankOfTwoReplicas: replicas that have prefills on one rank at the same time charge together the time that the rank has,
// though each of them knows the times of its own requests only.
func TestFairRankOfTwoReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := servicetest.NewMesh()
		settings := fairBeyond(t, "tenant, half_life_seconds: 86400", 1<<20)
		replicas := []*servicetest.World{m.Start(t, "a", servicetest.EventsOff, settings), m.Start(t, "b", servicetest.EventsOff, settings)}
		m.Connect(t, "a", "b")
		for _, w := range replicas {
			w.Put(servicetest.Record(1, 1))
		}
		servicetest.Announced()
		// Tenant A has three prefills at a time at one replica, B one at the other. The rank computes one at a time, each in a
		// second, in their order, and generates two answers at a time.
		type request struct {
			at *servicetest.World
			id string
		}
		var prefills, answers []request
		n := 0
		ask := func(at *servicetest.World) {
			n++
			tenant := "A"
			if at == replicas[1] {
				tenant = "B"
			}
			r := request{at, fmt.Sprint("r", n)}
			startCall(at, r.id, servicetest.Prompt(uint32(n)<<10, 100), func(r *selection.SelectRequest) { r.FairTenant = tenant }).served(t)
			synctest.Wait()
			prefills = append(prefills, r)
		}
		end := func() {
			if err := answers[0].at.Free(answers[0].id); err != nil {
				t.Fatal(err)
			}
			answers = answers[1:]
			synctest.Wait()
		}
		const seconds = 400
		for _, i := range []int{0, 0, 0, 1} {
			ask(replicas[i])
		}
		for range seconds {
			time.Sleep(time.Second)
			next := prefills[0]
			prefills = prefills[1:]
			if err := next.at.PrefillComplete(next.id); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if answers = append(answers, next); len(answers) > 2 {
				end()
			}
			ask(next.at)
		}
		charged := func() (a, b float64) {
			for _, w := range replicas {
				for _, c := range w.Fairness(&selection.FairnessQuery{Limit: 10}).Consumers {
					if c.Tenant == "A" {
						a = max(a, c.Seconds)
					} else {
						b = max(b, c.Seconds)
					}
				}
			}
			return a, b
		}
		servicetest.Announced()
		if a, b := charged(); a < 0.7*seconds || a > 0.8*seconds || b < 0.22*seconds || b > 0.28*seconds {
			t.Errorf("A is charged %g s and B %g s of %d, three quarters of which A has", a, b, seconds)
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
