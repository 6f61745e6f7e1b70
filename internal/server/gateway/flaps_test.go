package gateway_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/server/gateway"
	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/internal/server/gateway/extproc"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/test/helpers/servicetest"
)

// bubbleLease is the lease of bookings in a bubble, renewed every second.
const bubbleLease = 3 * time.Second

// inBubble runs an endpoint picker over a service in a synctest bubble, without a network. begin
// plays messages, waits for what they do, and holds the request's stream until end is called; stop ends the picker.
func inBubble(t *testing.T, of *servicetest.World) (w *world, begin func(messages ...int) (end func()), stop func()) {
	w = &world{World: of, metrics: counts.NewGateway(), log: new(servicetest.Log)}
	placing := gateway.New(gateway.Config{
		Models: map[string]catalog.Scope{model: servicetest.Scope}, Metrics: w.metrics, Log: zerolog.New(w.log),
		MaxStreams: 100, MaxBody: 1 << 20, PickTimeout: time.Minute, Lease: bubbleLease,
	}, gateway.Service{Selecting: w.API, Catalog: w.Catalog(), Ready: w.Settled})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = placing.Run(ctx) })
	server := extproc.New(extproc.Config{MaxStreams: 100, Log: zerolog.New(w.log)}, placing)
	begin = func(messages ...int) (end func()) {
		var all []step
		for _, i := range messages {
			all = append(all, step{message: steps[i]})
		}
		s := newScript(all)
		s.hold = make(chan struct{})
		running.Go(func() {
			if err := server.Process(s); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		return func() { close(s.hold) }
	}
	return w, begin, func() {
		cancel()
		running.Wait()
	}
}

// TestFlapOnReplicas: an answer whose worker flaps, at its own replica, at the other or at both,
// counts on both again, as a whole, and once; with its end it counts on neither.
func TestFlapOnReplicas(t *testing.T) {
	for name, at := range map[string]struct{ own, other bool }{
		"own": {own: true}, "other": {other: true}, "both": {own: true, other: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := servicetest.Pair(t)
				w, begin, stop := inBubble(t, a)
				defer stop()
				w.put(1, 1)
				want := func(load string) {
					t.Helper()
					servicetest.Announced()
					time.Sleep(2 * bubbleLease)
					synctest.Wait()
					a.WantLoad(load)
					b.WantLoad(load)
				}
				chat, light := begin(0, 4), begin(3, 7, 6)
				want("1/0: 9 2 2")
				for range 2 {
					if at.own {
						a.Remove(1)
					}
					if at.other {
						b.Remove(1)
					}
					synctest.Wait()
					if at.own {
						w.put(1, 1)
					}
					if at.other {
						b.Put(servicetest.Record(1, 1))
					}
					want("1/0: 9 2 2")
				}
				chat()
				want("1/0: 0 0 1")
				light()
				want("1/0: 0 0 0")
			})
		})
	}
}

// TestFlapAtTheEnd: an answer that ends in the very moment in which it is booked again leaves
// nothing booked.
func TestFlapAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, begin, stop := inBubble(t, servicetest.Start(t))
		defer stop()
		w.put(1, 1)
		for i := range 60 {
			late := time.Duration(i%3 - 1) // the end comes before, with or after the renewal
			end := begin(0, 4)
			w.Remove(1)
			w.put(1, 1)
			time.Sleep(bubbleLease/3 + late)
			end()
			synctest.Wait()
			time.Sleep(bubbleLease/3 - late)
			if got := w.loads(); got != "1/0: 0 0 0" {
				t.Fatalf("loads are %s", got)
			}
		}
		if w.count("rebooked_total", "") == 0 {
			t.Error("no renewal came before the end of an answer")
		}
	})
}

// TestFlapOfLegs: the prefill's and the decode's worker each get their leg back, and a leg that is
// complete stays so.
func TestFlapOfLegs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, begin, stop := inBubble(t, servicetest.Start(t))
		defer stop()
		put := func(id uint64) {
			w.put(id, 1, func(r *catalog.Record) {
				if r.Role = new(catalog.RoleDecode); id == 1 {
					r.Role = new(catalog.RolePrefill)
				}
			})
		}
		put(1)
		put(2)
		flap := func(want string) {
			t.Helper()
			for _, id := range []uint64{1, 2} {
				w.Remove(id)
				put(id)
			}
			time.Sleep(bubbleLease)
			synctest.Wait()
			if got := w.loads(); got != want {
				t.Errorf("loads are %s, want %s", got, want)
			}
		}
		end := begin(0, 4)
		flap("1/0: 9 2 1; 2/0: 0 2 1")
		flap("1/0: 9 2 1; 2/0: 0 2 1")
		end()
		flap("1/0: 0 0 0; 2/0: 0 0 0")

		end = begin(0, 4, 10, 14) // with the first piece of the answer
		flap("1/0: 0 0 0; 2/0: 0 4 1")
		end()
		flap("1/0: 0 0 0; 2/0: 0 0 0")
		if n := w.count("rebooked_total", ""); n != 5 {
			t.Errorf("%v legs were booked again", n)
		}
	})
}
