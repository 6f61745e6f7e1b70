package replicas_test

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/select-service/select-service/test/checks/e2e"
	"github.com/select-service/select-service/test/helpers/natstest"
)

// TestFleetCost compares what the same reservations cost over NATS and over the mesh, in turn: the CPU
// of the replica that books, and that of those that only hear of it, and how long they take to. They must
// know the same loads afterwards. The ratios are judged where nothing else runs.
func TestFleetCost(t *testing.T) {
	server := natstest.Start(t)
	forms := []struct {
		name string
		options
	}{{"mesh", options{direct: true}}, {"nats", options{direct: true, nats: server.URL}}}
	var fleets []*fleet
	for i := range forms {
		forms[i].args = func([]string, int) []string { return []string{"--use-kv-events=false"} }
		f := newFleet(t, forms[i].options)
		for _, r := range f.replicas {
			e2e.Eventually(t, r.name+" answers", func() error { return r.get("/workers", new([]e2e.Object)) })
		}
		for _, w := range workers {
			for n, r := range f.replicas {
				if n == 0 || forms[i].nats == "" {
					e2e.Eventually(t, "a worker is registered", func() error {
						return r.Do(t.Context(), http.MethodPost, "/workers", e2e.Object{
							"worker_id": w.id, "model_name": w.model, "endpoint": fmt.Sprintf("http://w%d:8000", w.id),
							"block_size": blockSize, "data_parallel_size": w.ranks,
						}, nil)
					})
				}
			}
		}
		for _, r := range f.replicas {
			e2e.Eventually(t, r.name+" is ready", r.ready)
		}
		fleets = append(fleets, f)
	}
	const rounds = 4
	bookings := of(5000, 500)
	var booker, receiver [2][]float64 // microseconds of CPU for a booking and its end, by round
	var delays [2][]time.Duration
	for round := range rounds {
		for i, f := range fleets {
			before := cpu(t, f)
			drive(t, f.replicas[0], fmt.Sprintf("%d-%d", i, round), bookings)
			f.sameLoads()
			after := cpu(t, f)
			booker[i] = append(booker[i], 1e6*(after[0]-before[0])/float64(bookings))
			delays[i] = append(delays[i], f.delays(fmt.Sprintf("%d-%d-late", i, round), of(200, 20))...)
			receiver[i] = append(receiver[i], 1e6*(after[1]-before[1]+after[2]-before[2])/float64(2*bookings))
		}
	}
	for i := range forms {
		t.Logf("%s: %.0f µs for a booking and its end, %.1f µs in each replica that hears of it (of rounds %.0f, %.1f)",
			forms[i].name, slices.Min(booker[i]), slices.Min(receiver[i]), booker[i], receiver[i])
	}
	var median [2]time.Duration
	for i, all := range delays {
		slices.Sort(all)
		median[i] = all[len(all)/2]
	}
	t.Logf("another replica knows of a booking after %v over the mesh, %v over nats (p50)", median[0], median[1])
	book, hear := slices.Min(booker[1])/slices.Min(booker[0]), slices.Min(receiver[1])/slices.Min(receiver[0])
	t.Logf("nats costs %.3f of the mesh where it is booked, %.2f where it is heard", book, hear)
	if e2e.Alone() && (book > 1.05 || hear > 1.5 || median[1] > 2*median[0]) {
		t.Error("more than is allowed")
	}
}

// cpu returns the seconds of CPU of each replica so far.
func cpu(t *testing.T, f *fleet) (seconds [fleetSize]float64) {
	t.Helper()
	for i, r := range f.replicas {
		used, err := r.CPU()
		if err != nil {
			t.Fatal(err)
		}
		seconds[i] = used.Seconds()
	}
	return seconds
}

// drive books and frees at a replica, and leaves one booking in a hundred.
func drive(t *testing.T, r *replica, prefix string, bookings int) {
	t.Helper()
	const callers = 8
	var all sync.WaitGroup
	for c := range callers {
		all.Go(func() {
			for n := c; n < bookings; n += callers {
				id := fmt.Sprintf("%s-%d", prefix, n)
				if err := r.Do(t.Context(), http.MethodPost, "/select_and_reserve", e2e.Object{
					"model_name": "alpha", "reservation_id": id, "token_ids": make([]int, 10*blockSize),
				}, nil); err != nil {
					t.Error(err)
					return
				}
				if n%100 == 0 {
					continue
				}
				if err := r.Do(t.Context(), http.MethodDelete, "/reservations/"+id, nil, nil); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// delays books at one replica, at most 400 times a second, and returns how long after the answer
// another one can free it. From 1,000 messages a second on those over NATS wait for others.
func (f *fleet) delays(prefix string, bookings int) (all []time.Duration) {
	f.t.Helper()
	pace := time.NewTicker(2500 * time.Microsecond)
	defer pace.Stop()
	for n := range bookings {
		<-pace.C
		id := fmt.Sprintf("%s-%d", prefix, n)
		f.replicas[0].must(http.StatusOK, http.MethodPost, "/select_and_reserve", e2e.Object{
			"model_name": "alpha", "reservation_id": id, "token_ids": make([]int, 10*blockSize),
		})
		booked := time.Now()
		for {
			a, err := f.replicas[1].Call(f.t.Context(), http.MethodDelete, "/reservations/"+id, nil)
			if err != nil || a.Status != http.StatusNotFound && a.Status != http.StatusOK || time.Since(booked) > e2e.Patience {
				f.t.Fatalf("free %s: %v, %v", id, a, err)
			}
			if a.Status == http.StatusOK {
				break
			}
		}
		all = append(all, time.Since(booked))
	}
	return all
}

// sameLoads waits until all replicas know the same loads.
func (f *fleet) sameLoads() {
	f.t.Helper()
	e2e.Eventually(f.t, "the replicas know the same loads", func() error {
		first, err := f.replicas[0].Loads(f.t.Context())
		if err != nil {
			return err
		}
		for _, r := range f.replicas[1:] {
			if loads, err := r.Loads(f.t.Context()); err != nil || fmt.Sprint(loads) != fmt.Sprint(first) {
				return fmt.Errorf("%s: %v, not %v, %w", r.name, loads, first, err)
			}
		}
		return nil
	})
}
