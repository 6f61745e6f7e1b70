package overload_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
)

const (
	clients    = 64
	exactSize  = 112 // tokens of every prompt
	exactBlock = exactSize / blockSize
)

// TestOneRequestAbove proves that a threshold is exact under concurrency: 64
// clients that book requests of one size on one worker get exactly as many as it
// takes to exceed the threshold, again after some were freed, and never more
// while they book and free at once.
func TestOneRequestAbove(t *testing.T) {
	s := start(t, "--use-kv-events=false")
	for i, tc := range []struct {
		threshold string
		value     float64
		above     uint64 // the first number of requests that exceeds it
	}{
		{"active_decode_blocks_threshold", 0.5, 500/exactBlock + 1},         // of 1,000 blocks
		{"active_prefill_tokens_threshold", 5000, 5000/exactSize + 1},       // tokens
		{"active_prefill_tokens_threshold_frac", 0.5, 4096/exactSize + 1},   // of 8,192 tokens
		{"active_prefill_tokens_threshold_frac", 1.25, 10240/exactSize + 1}, // more than one batch
		{"active_decode_blocks_threshold", 0, 1},
	} {
		t.Run(fmt.Sprintf("%s=%g", tc.threshold, tc.value), func(t *testing.T) {
			c := &crowd{service: s, model: fmt.Sprint("model ", i), above: tc.above}
			s.Must(t, http.StatusCreated, http.MethodPost, "/workers", object{
				"worker_id": i + 1, "model_name": c.model, "endpoint": "http://engine:8000", "block_size": blockSize,
				"total_kv_blocks": 1000, "max_num_batched_tokens": 8192,
			}, nil)
			s.Must(t, http.StatusOK, http.MethodPost, "/busy_threshold", object{"model": c.model, tc.threshold: tc.value}, nil)
			c.fill(t, tc.above)
			for round := range 5 {
				freed := c.free(t, rand.New(rand.NewPCG(uint64(round), uint64(i))))
				c.fill(t, freed)
			}
			c.churn(t, i+1)
			c.free(t, nil)
		})
	}
	s.isIdle(t, 5)
}

// crowd is many clients of one model with one worker.
type crowd struct {
	*service
	model string
	above uint64 // requests that are booked when the worker is overloaded
	next  atomic.Uint32
	live  []string // booked
}

// book asks for a booking of a prompt that nobody else has. The id is empty if
// it was refused.
func (c *crowd) book(ctx context.Context) (id string, err error) {
	prompt := make([]uint32, exactSize)
	prompt[0] = c.next.Add(1)
	body, err := json.Marshal(object{"model_name": c.model, "token_ids": prompt})
	if err != nil {
		return "", err
	}
	a, err := c.Call(ctx, http.MethodPost, "/select_and_reserve", body)
	if err != nil {
		return "", err
	}
	if refused, err := isRefusal(a); err != nil || refused {
		return "", err
	}
	var placed struct {
		ReservationID string `json:"reservation_id"`
	}
	err = json.Unmarshal(a.Body, &placed)
	return placed.ReservationID, err
}

// fill lets every client try until it is refused: exactly want bookings are
// made.
func (c *crowd) fill(t *testing.T, want uint64) {
	t.Helper()
	var (
		mu   sync.Mutex // guards got
		got  []string
		wait sync.WaitGroup
	)
	for range clients {
		wait.Go(func() {
			for {
				id, err := c.book(t.Context())
				if err != nil {
					t.Error(err)
				}
				if id == "" {
					return
				}
				mu.Lock()
				got = append(got, id)
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	c.live = append(c.live, got...)
	if uint64(len(got)) != want || uint64(len(c.live)) != c.above {
		t.Fatalf("%d requests booked, %d in all, want %d and %d", len(got), len(c.live), want, c.above)
	}
}

// free frees at least one booking, or all without rnd.
func (c *crowd) free(t *testing.T, rnd *rand.Rand) uint64 {
	t.Helper()
	n := len(c.live)
	if rnd != nil {
		n = 1 + rnd.IntN(n)
		rnd.Shuffle(len(c.live), func(i, j int) { c.live[i], c.live[j] = c.live[j], c.live[i] })
	}
	for _, id := range c.live[:n] {
		c.Must(t, http.StatusOK, http.MethodDelete, "/reservations/"+id, nil, nil)
	}
	c.live = c.live[n:]
	return uint64(n)
}

// churn lets all clients book and free for a while, and looks at the load.
func (c *crowd) churn(t *testing.T, worker int) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var watching, churning sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			all, ok := c.loadsUntil(ctx, t)
			if !ok {
				return
			}
			for _, l := range all {
				if l.WorkerID == uint64(worker) && (l.Requests > c.above || l.Decode > c.above*exactBlock || l.Prefill > c.above*exactSize) {
					t.Errorf("the worker carries %+v, more than %d requests", l, c.above)
				}
			}
		}
	})
	live := make(chan string, len(c.live))
	for _, id := range c.live {
		live <- id
	}
	for range clients {
		churning.Go(func() {
			for range 20 {
				select {
				case id := <-live:
					if err := c.Do(t.Context(), http.MethodDelete, "/reservations/"+id, nil, nil); err != nil {
						t.Error(err)
					}
				default: // others hold all
				}
				id, err := c.book(t.Context())
				switch {
				case err != nil:
					t.Error(err)
				case id != "":
					live <- id
				}
			}
		})
	}
	churning.Wait()
	stop()
	watching.Wait()
	c.live = nil
	for len(live) > 0 {
		c.live = append(c.live, <-live)
	}
}
