package blackbox_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"
)

// TestParallelBookingsSpread proves that a choice and its booking are one step:
// 200 requests at once on 8 equal idle workers end 25 on each, with and without
// the queue. Choices that did not see each other's bookings would pile up.
func TestParallelBookingsSpread(t *testing.T) {
	t.Parallel()
	const workers, each = 8, 25
	tests := map[string]map[string]string{
		"without the queue": eventsOff(),
		"with the queue":    eventsOff("DYN_ROUTER_QUEUE_THRESHOLD", "16"),
	}
	for name, env := range tests {
		t.Run(name, func(t *testing.T) {
			s := start(t, env)
			s.register(t, workers)
			s.book(t, 1) // the first request warms up what the process keeps
			s.free(t, "w-0")
			before := s.use(t)

			got := s.bookAll(t, workers*each)
			for id := uint64(1); id <= workers; id++ {
				if got[id] != each {
					t.Errorf("worker %d got %d requests, want %d (all: %v)", id, got[id], each, got)
				}
			}
			for i := range workers * each {
				s.free(t, fmt.Sprintf("r-%d", i))
			}
			s.idle(t)
			s.settles(t, before)
		})
	}
}

// TestParallelBookingsWait proves that nobody is forgotten in the queue: with a
// threshold of 0 a worker takes one prompt at a time, so most of 200 requests
// wait for somebody else's prefill to complete.
func TestParallelBookingsWait(t *testing.T) {
	t.Parallel()
	const workers, requests = 8, 200
	s := start(t, eventsOff("DYN_ROUTER_QUEUE_THRESHOLD", "0"))
	s.register(t, workers)
	before := s.use(t)
	var wg sync.WaitGroup
	for i := range requests {
		wg.Go(func() {
			id := fmt.Sprintf("r-%d", i)
			a, err := s.Call(t.Context(), "POST", "/select_and_reserve", object{"token_ids": prompt(i), "reservation_id": id})
			if err != nil || a.Status != http.StatusOK {
				t.Errorf("%s: %v %v", id, a, err)
				return
			}
			a, err = s.Call(t.Context(), "POST", "/reservations/"+id+"/prefill_complete", nil)
			if err != nil || a.Status != http.StatusOK {
				t.Errorf("%s prefill complete: %v %v", id, a, err)
			}
		})
	}
	wg.Wait()
	for i := range requests {
		s.free(t, fmt.Sprintf("r-%d", i))
	}
	s.idle(t)
	s.settles(t, before)
}

// prompt is a prompt of three blocks that shares none with another number's.
func prompt(i int) []int {
	tokens := make([]int, 12)
	for k := range tokens {
		tokens[k] = 1000*i + k
	}
	return tokens
}

func (s *service) book(t *testing.T, n int) {
	t.Helper()
	for i := range n {
		s.Must(t, http.StatusOK, "POST", "/select_and_reserve",
			object{"token_ids": prompt(i), "reservation_id": fmt.Sprintf("w-%d", i)}, nil)
	}
}

// bookAll books n requests at once and counts them per worker.
func (s *service) bookAll(t *testing.T, n int) map[uint64]int {
	t.Helper()
	chosen := make([]uint64, n)
	gate := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-gate
			a, err := s.Call(t.Context(), "POST", "/select_and_reserve",
				object{"token_ids": prompt(i), "reservation_id": fmt.Sprintf("r-%d", i)})
			if err != nil || a.Status != http.StatusOK {
				t.Errorf("request %d: %v %v", i, a, err)
				return
			}
			var sel struct {
				WorkerID uint64 `json:"worker_id"`
			}
			if err := json.Unmarshal(a.Body, &sel); err != nil {
				t.Errorf("request %d: %v: %v", i, err, a)
			}
			chosen[i] = sel.WorkerID
		})
	}
	close(gate)
	wg.Wait()
	counts := map[uint64]int{}
	for _, id := range chosen {
		counts[id]++
	}
	return counts
}

func (s *service) free(t *testing.T, id string) {
	t.Helper()
	s.Must(t, http.StatusOK, "DELETE", "/reservations/"+id, nil, nil)
}

// idle expects that no load is left and nobody waits.
func (s *service) idle(t *testing.T) {
	t.Helper()
	scope := s.loads(t)
	for _, l := range scope.Loads {
		if l.Prefill != 0 || l.Decode != 0 || l.Requests != 0 {
			t.Errorf("load left: %+v", l)
		}
	}
	if scope.Pending != 0 {
		t.Errorf("%d requests wait", scope.Pending)
	}
}
