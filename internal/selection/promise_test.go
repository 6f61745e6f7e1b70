package selection_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// promised books a request with a target of a second and a deadline of ten.
func promised(t *testing.T, w *servicetest.World, id string, change ...func(*selection.SelectRequest)) {
	t.Helper()
	req := servicetest.Ask(servicetest.Prompt(uint32(len(id)), 8))
	req.ReservationID, req.FairTenant = &id, "gold"
	req.TTFTTarget, req.Deadline = time.Second, time.Now().Add(10*time.Second)
	for _, c := range change {
		c(req)
	}
	if _, err := w.Select(context.Background(), req, true); err != nil {
		t.Fatal(err)
	}
}

func promisesOf(w *servicetest.World, labels ...string) float64 {
	return servicetest.Sum(w.Metrics()["promises_total"], labels...)
}

// TestReservedAhead: of what is reserved for a request that follows, nothing is counted if none does, whether the time is over when
// the reservation ends or not. If one takes it over, its target and its deadline run from then on.
func TestReservedAhead(t *testing.T) {
	ahead := func(r *selection.SelectRequest) { r.Ahead, r.Lease = time.Now(), 20*time.Second }
	synctest.Test(t, func(t *testing.T) {
		w := servicetest.Start(t, servicetest.EventsOff)
		w.Put(servicetest.Record(1, 1))
		promised(t, w, "lapses", ahead)
		time.Sleep(time.Minute)
		promised(t, w, "is freed", ahead)
		time.Sleep(15 * time.Second)
		if err := w.Free("is freed"); err != nil {
			t.Fatal(err)
		}
		if got := w.Metrics()["promises_total"]; len(got) > 0 && promisesOf(w, "gold") != 0 {
			t.Errorf("nobody has followed, but %v is counted", got)
		}
		for _, tt := range []struct {
			first, ends time.Duration // since the request that follows
			what        string
		}{{time.Second * 9 / 10, 9 * time.Second, "attained"}, {time.Second * 11 / 10, 11 * time.Second, "missed"}} {
			promised(t, w, "r", ahead)
			time.Sleep(5 * time.Second)
			pair, err := w.TakeOver("r", time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(tt.first)
			if err := w.PrefillComplete(pair.ID); err != nil {
				t.Fatal(err)
			}
			time.Sleep(tt.ends - tt.first)
			if err := w.Free(pair.ID); err != nil {
				t.Fatal(err)
			}
			if tokens, answers := promisesOf(w, "gold", "first_token", tt.what), promisesOf(w, "gold", "answer", tt.what); tokens != 1 || answers != 1 {
				t.Errorf("of a request that has followed %g first tokens are %s, %g answers", tokens, tt.what, answers)
			}
		}
	})
}

// TestPromises: what is counted is when the first token and the end were reported, and nothing that nobody knows.
func TestPromises(t *testing.T) {
	type counted struct{ tokensInTime, tokensLate, answersInTime, answersLate float64 }
	for name, tt := range map[string]struct {
		play func(w *servicetest.World)
		want counted
	}{
		"in time": {func(w *servicetest.World) {
			time.Sleep(time.Second / 2)
			_ = w.PrefillComplete("r")
			_ = w.PrefillComplete("r") // again
			time.Sleep(time.Second)
			_ = w.Free("r")
		}, counted{1, 0, 1, 0}},
		"both late": {func(w *servicetest.World) {
			time.Sleep(2 * time.Second)
			_ = w.PrefillComplete("r")
			time.Sleep(9 * time.Second)
			_ = w.Free("r")
		}, counted{0, 1, 0, 1}},
		"first token not reported, and too late": {func(w *servicetest.World) {
			time.Sleep(2 * time.Second)
			_ = w.Free("r")
		}, counted{0, 1, 1, 0}},
		"freed at once": {func(w *servicetest.World) { _ = w.Free("r") }, counted{0, 0, 1, 0}},
		"inferred": {func(w *servicetest.World) {
			_ = w.PrefillInferred("r") // by a prediction
			time.Sleep(2 * time.Second)
			w.FirstToken("r")
			_ = w.Free("r")
		}, counted{0, 1, 1, 0}},
		"client gone in time": {func(w *servicetest.World) {
			_ = w.PrefillComplete("r")
			w.Abandon("r")
			_ = w.Free("r")
		}, counted{1, 0, 0, 0}},
		"client gone too late": {func(w *servicetest.World) {
			time.Sleep(11 * time.Second)
			w.Abandon("r")
			_ = w.Free("r")
		}, counted{0, 1, 0, 1}},
		"worker gone": {func(w *servicetest.World) {
			w.Put(servicetest.Record(2, 1)) // keeps the model
			time.Sleep(2 * time.Second)
			w.Remove(1)
		}, counted{0, 1, 0, 0}},
		"moved": {func(w *servicetest.World) {
			_ = w.PrefillInferred("r")
			req := servicetest.Ask(servicetest.Prompt(9, 8))
			id := "s"
			req.ReservationID = &id
			sel, err := w.Select(context.Background(), req, true)
			if err != nil {
				w.T.Fatal(err)
			}
			_ = w.Free("s")
			if _, err := w.Rebook(&selection.Rebooking{ID: "s", Former: "r", Selection: &sel, Rank: sel.Rank}); err != nil {
				w.T.Fatal(err)
			}
			_ = w.Free("r")
			time.Sleep(2 * time.Second)
			_ = w.PrefillComplete("s")
			_ = w.Free("s")
		}, counted{0, 1, 1, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := servicetest.Start(t, servicetest.EventsOff, fairQueue(t, "tenant"))
				w.Put(servicetest.Record(1, 1))
				promised(t, w, "r")
				tt.play(w)
				got := counted{
					promisesOf(w, "c", "gold", "first_token", "attained"), promisesOf(w, "c", "gold", "first_token", "missed"),
					promisesOf(w, "c", "gold", "answer", "attained"), promisesOf(w, "c", "gold", "answer", "missed"),
				}
				if got != tt.want {
					t.Errorf("counted %+v, want %+v", got, tt.want)
				}
			})
		})
	}
}

// TestPromiseAtAnotherReplica: behind a load balancer the first token and the end are reported to any replica. They count where
// the request was placed, at the time when they came there.
func TestPromiseAtAnotherReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := servicetest.Pair(t)
		servicetest.Announced()
		promised(t, a, "r")
		synctest.Wait()
		if err := b.PrefillComplete("r"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second) // later than the target
		if err := b.Free("r"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := promisesOf(a, "gold", "attained"); n != 2 || promisesOf(a, "missed") != 0 || promisesOf(b) != 0 {
			t.Errorf("%g attained, %g missed, %g at the other replica", n, promisesOf(a, "missed"), promisesOf(b))
		}
	})
}

// TestPromiseOfALostReplica: what a replica has accepted that is gone does not count at the one that is told its end.
func TestPromiseOfALostReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := servicetest.NewMesh()
		a, b := m.Start(t, "a", servicetest.EventsOff), m.Start(t, "b", servicetest.EventsOff)
		m.Connect(t, "a", "b")
		a.Put(servicetest.Record(1, 1))
		b.Put(servicetest.Record(1, 1))
		servicetest.Announced()
		promised(t, a, "r")
		synctest.Wait()
		m.Crash("a")
		time.Sleep(10 * time.Second)
		if err := errors.Join(b.PrefillComplete("r"), b.Free("r")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := promisesOf(b); n != 0 {
			t.Errorf("%g are counted", n)
		}
		b.WantLoad("1/0: 0 0 0")
	})
}

// TestPromisesRefused: a request that is refused for what it wants counts for each of that.
func TestPromisesRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := trained(t, 1)
		w.Book("long", servicetest.Prompt(1, 12000)) // 3.8 s
		req := servicetest.Ask(servicetest.Prompt(1<<30, 2000))
		req.TTFTTarget, req.Deadline, req.RefuseOnMiss = time.Second, time.Now().Add(time.Hour), true
		if _, err := w.Select(context.Background(), req, true); contract.KindOf(err) != contract.TargetMissed {
			t.Fatal(err)
		}
		for _, wanted := range []string{"first_token", "answer"} {
			if n := promisesOf(w, servicetest.Scope.Tenant, wanted, "refused"); n != 1 {
				t.Errorf("%g of %s are refused", n, wanted)
			}
		}
	})
}

// TestPromisesOfManyTenants: a client that makes up tenants does not make up series: those that the policy file does not name
// share one beyond the 32nd. Names that are no UTF-8, or long, do not break a scrape.
func TestPromisesOfManyTenants(t *testing.T) {
	w := servicetest.Start(t, servicetest.EventsOff, fairQueue(t, "tenant, weights: {late: 2}"))
	w.Put(servicetest.Record(1, 1))
	long := string(make([]byte, 300))
	for i := range 100 {
		id := fmt.Sprint("r", i)
		promised(t, w, id, func(r *selection.SelectRequest) { r.FairTenant = fmt.Sprint("\xff", i, long) })
		_ = w.PrefillComplete(id)
		_ = w.Free(id)
	}
	promised(t, w, "last", func(r *selection.SelectRequest) { r.FairTenant = "late" })
	_ = w.Free("last")
	series := w.Metrics()["promises_total"]
	if len(series) != 6*(32+1+1) {
		t.Errorf("%d series", len(series))
	}
	if n := servicetest.Sum(series, "attained"); n != 201 {
		t.Errorf("%g are attained", n)
	}
	if n := servicetest.Sum(series, "late", "attained"); n != 1 {
		t.Errorf("%g of the tenant that is named are attained", n)
	}
}
