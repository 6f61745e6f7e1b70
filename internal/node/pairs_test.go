package node_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/counts"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// role has a record's worker serve only so much of a request.
func role(r string) func(*catalog.Record) { return func(x *catalog.Record) { x.Role = &r } }

// TestPairsAmongReplicas: another replica knows both sides of a pair and their parent, also one that
// starts late, so that callers may take each step at any replica. One that knows only one of the
// workers carries that side, and calls there act on it everywhere.
func TestPairsAmongReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		prefill, decode := servicetest.Record(1, 1, role(catalog.RolePrefill)), servicetest.Record(2, 1, role(catalog.RoleDecode))
		m := servicetest.NewMesh()
		a, b, half := m.Start(t, "a", servicetest.EventsOff), m.Start(t, "b", servicetest.EventsOff), m.Start(t, "half", servicetest.EventsOff)
		m.Connect(t, "a", "b")
		m.Connect(t, "half", "a")
		m.Connect(t, "half", "b")
		for _, w := range []*servicetest.World{a, b} {
			w.Put(prefill)
			w.Put(decode)
		}
		half.Put(decode)
		book := func(id string) selection.Pair {
			t.Helper()
			req := &selection.PairRequest{SelectRequest: *servicetest.Ask(servicetest.Prompt(1, 8))}
			req.ReservationID, req.Lease, req.IfExists = &id, 20*time.Second, selection.ReturnFirst
			pair, err := a.SelectPair(t.Context(), req)
			if err != nil || pair.Reason != counts.Paired {
				t.Fatalf("%+v, %v", pair, err)
			}
			servicetest.Announced()
			return pair
		}
		const none = "1/0: 0 0 0, 2/0: 0 0 0"
		book("p")
		b.WantLoad("1/0: 8 2 1, 2/0: 0 2 1")
		half.WantLoad("2/0: 0 2 1")

		c := m.Start(t, "c", servicetest.EventsOff)
		c.Put(prefill)
		c.Put(decode)
		m.Connect(t, "c", "a")
		m.Connect(t, "c", "b")
		servicetest.Announced()
		c.WantLoad("1/0: 8 2 1, 2/0: 0 2 1")
		req := &selection.PairRequest{SelectRequest: *servicetest.Ask(servicetest.Prompt(1, 8))}
		req.ReservationID, req.IfExists = new("p"), selection.ReturnFirst
		again, err := c.SelectPair(t.Context(), req)
		if err != nil || !again.Decode.PlacementOnly || again.Prefill == nil || again.Prefill.Rank.Worker != 1 || again.Decode.Rank.Worker != 2 || again.Reason != counts.Paired {
			t.Fatalf("asked again at another replica: %+v, %v", again, err)
		}

		if err := c.PrefillComplete("p"); err != nil {
			t.Fatal(err)
		}
		servicetest.Announced()
		for _, w := range []*servicetest.World{a, b, c} {
			w.WantLoad("1/0: 0 0 0, 2/0: 0 2 1")
		}
		if err := b.Free("p"); err != nil {
			t.Fatal(err)
		}
		servicetest.Announced()
		for _, w := range []*servicetest.World{a, b, c} {
			w.WantLoad(none)
			servicetest.WantError(t, w.Free("p"), contract.NotFound, "reservation p not found")
		}
		half.WantLoad("2/0: 0 0 0")

		// A call at a replica that knows one side ends that side everywhere, and the lease the other one.
		book("q")
		if err := half.Free("q"); err != nil {
			t.Fatal(err)
		}
		servicetest.Announced()
		a.WantLoad("1/0: 8 2 1, 2/0: 0 0 0")
		time.Sleep(time.Minute)
		for _, w := range []*servicetest.World{a, b, c} {
			w.WantLoad(none)
		}

		// The loss of a worker ends its side, and the pair's id goes on to mean the other.
		book("r")
		a.Remove(1)
		servicetest.Announced()
		if err := errors.Join(a.PrefillComplete("r"), a.Free("r")); err != nil {
			t.Fatal(err)
		}
		servicetest.Announced()
		a.WantLoad("2/0: 0 0 0")
	})
}

// TestTakeOverAmongReplicas: what is reserved at one replica can be taken over at another one, once: its load is the same at all of them, and
// ends with the request that has taken it.
func TestTakeOverAmongReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := servicetest.NewMesh()
		worlds := []*servicetest.World{m.Start(t, "a", servicetest.EventsOff), m.Start(t, "b", servicetest.EventsOff)}
		m.Connect(t, "a", "b")
		for _, w := range worlds {
			w.Put(servicetest.Record(1, 1, role(catalog.RolePrefill)))
			w.Put(servicetest.Record(2, 1, role(catalog.RoleDecode)))
		}
		a, b := worlds[0], worlds[1]
		want := func(load string) {
			t.Helper()
			servicetest.Announced()
			a.WantLoad(load)
			b.WantLoad(load)
		}
		req := &selection.PairRequest{SelectRequest: *servicetest.Ask(servicetest.Prompt(1, 8))}
		req.ReservationID, req.Lease = new("r"), 10*time.Second
		if _, err := a.SelectPair(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		const both, none = "1/0: 8 2 1, 2/0: 0 2 1", "1/0: 0 0 0, 2/0: 0 0 0"
		want(both)
		if !b.IsReserved("r") {
			t.Error("the other replica does not know it")
		}
		pair, err := b.TakeOver("r", time.Minute)
		if err != nil || pair.Decode.Rank.Worker != 2 || pair.Prefill == nil || pair.Prefill.Rank.Worker != 1 {
			t.Fatalf("%+v, %v", pair, err)
		}
		want(both)
		for _, w := range worlds {
			if _, err := w.TakeOver("r", time.Minute); contract.KindOf(err) != contract.NotFound {
				t.Errorf("taken twice: %v", err)
			}
		}
		time.Sleep(20 * time.Second) // beyond the first lease
		want(both)
		if err := b.Free(pair.ID); err != nil {
			t.Fatal(err)
		}
		want(none)
	})
}

// TestTakeOverTwice: two replicas that have not heard of each other take over one reservation. Both of their requests run on the
// engines, so both count, at all replicas and in whatever order the messages come, and each ends with its own request. One whose
// replica is gone ends with its lease.
func TestTakeOverTwice(t *testing.T) {
	const none, one, two = "1/0: 0 0 0, 2/0: 0 0 0", "1/0: 8 2 1, 2/0: 0 2 1", "1/0: 16 2 2, 2/0: 0 2 2"
	for name, tt := range map[string]struct {
		after time.Duration // how long after a the replica b takes over
		lost  bool          // what a tells of it is lost
		crash bool          // a is gone then
	}{
		"at once": {}, "before it hears": {after: 90 * time.Millisecond}, "lost": {after: time.Second, lost: true},
		"gone": {after: 90 * time.Millisecond, crash: true},
	} {
		for _, reserving := range []int{0, 1, 2} {
			t.Run(fmt.Sprint(name, " ", reserving), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := servicetest.NewMesh()
					m.Delay = 100 * time.Millisecond
					var lost atomic.Bool
					m.Loses = lost.Load
					var worlds []*servicetest.World
					for _, name := range []string{"a", "b", "c"} {
						w := m.Start(t, name, servicetest.EventsOff)
						w.Put(servicetest.Record(1, 1, role(catalog.RolePrefill)))
						w.Put(servicetest.Record(2, 1, role(catalog.RoleDecode)))
						worlds = append(worlds, w)
					}
					m.Connect(t, "a", "b")
					m.Connect(t, "b", "c")
					m.Connect(t, "a", "c")
					servicetest.Announced()
					a, b := worlds[0], worlds[1]
					want := func(load string) {
						t.Helper()
						servicetest.Announced()
						for i, w := range worlds {
							if i > 0 || !tt.crash {
								w.WantLoad(load)
							}
						}
					}
					req := &selection.PairRequest{SelectRequest: *servicetest.Ask(servicetest.Prompt(1, 8))}
					req.ReservationID, req.Lease = new("r"), 10*time.Second
					if _, err := worlds[reserving].SelectPair(t.Context(), req); err != nil {
						t.Fatal(err)
					}
					want(one)
					lost.Store(tt.lost)
					first, err := a.TakeOver("r", time.Minute)
					if err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					lost.Store(false)
					time.Sleep(tt.after)
					second, err := b.TakeOver("r", time.Minute)
					if err != nil {
						t.Fatal(err)
					}
					if tt.crash {
						synctest.Wait()
						m.Crash("a")
					}
					want(two)
					if err := b.Free(second.ID); err != nil {
						t.Fatal(err)
					}
					want(one)
					if tt.crash {
						time.Sleep(2 * time.Minute)
					} else if err := a.Free(first.ID); err != nil {
						t.Fatal(err)
					}
					want(none)
					for _, w := range worlds[1:] {
						if w.IsReserved("r") {
							t.Error("it is reserved still")
						}
					}
				})
			})
		}
	}
}

// TestTwoOfOneID: two replicas that have booked one id each, because nothing was heard of the first one, leave nothing behind:
// neither if both are taken over, nor if one is and the other's lease ends.
func TestTwoOfOneID(t *testing.T) {
	for _, takers := range []int{0, 1, 2} {
		t.Run(fmt.Sprint(takers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := servicetest.NewMesh()
				var lost atomic.Bool
				lost.Store(true)
				m.Loses = lost.Load
				worlds := []*servicetest.World{m.Start(t, "a", servicetest.EventsOff), m.Start(t, "b", servicetest.EventsOff)}
				m.Connect(t, "a", "b")
				for _, w := range worlds {
					w.Put(servicetest.Record(1, 1))
				}
				for _, w := range worlds {
					req := servicetest.Ask(servicetest.Prompt(1, 8))
					req.ReservationID, req.Lease = new("r"), 10*time.Second
					if _, err := w.Select(t.Context(), req, true); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
				lost.Store(false)
				servicetest.Announced()
				for _, w := range worlds[:takers] {
					pair, err := w.TakeOver("r", time.Minute)
					if err != nil {
						continue // it went with the other one
					}
					servicetest.Announced()
					if err := w.Free(*pair.Decode.ReservationID); err != nil {
						t.Error(err)
					}
					servicetest.Announced()
				}
				time.Sleep(20 * time.Second) // beyond the lease
				for i, w := range worlds {
					w.WantLoad("1/0: 0 0 0")
					if w.IsReserved("r") {
						t.Errorf("replica %d has it still", i)
					}
				}
			})
		})
	}
}
