package blackbox_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/test/checks/e2e"
)

// Bounds of TestFrozenEngine where nothing else runs.
const (
	// stallTime is --stalled-after, and the time until a scrape and a tick have shown it.
	stallTime = 3*time.Second + 500*time.Millisecond
	// thawTime is how long an engine that runs again may get nothing.
	thawTime = time.Second
	// trialTime is the time between two requests for an engine that gives no sign of life.
	trialTime = 10 * time.Second
)

// fleet is a service over engines of a process each, under load.
type fleet struct {
	*service
	engines   []*e2e.Process
	urls      []string
	placed    []atomic.Int64 // requests, by engine
	completed atomic.Int64
	running   sync.WaitGroup
}

// startFleet registers n engines by their URLs, with their load.
func startFleet(t *testing.T, n int) *fleet {
	f := &fleet{service: start(t, nil), placed: make([]atomic.Int64, n)}
	for i := range n {
		p, engines := e2e.Engines(t, 1, "--prefill-rate", "50000", "--decode-rate", "200")
		t.Cleanup(func() { _ = p.Signal(syscall.SIGCONT) }) // so that it can end
		f.engines, f.urls = append(f.engines, p), append(f.urls, engines[0].URL)
		f.Must(t, http.StatusCreated, "POST", "/workers", object{
			"worker_id": i, "endpoint": engines[0].URL, "describe": true, "load_metrics": object{"interval_seconds": 0.25},
		}, nil)
	}
	return f
}

// load sends a request every 25 ms until stop is closed, as clients that do not wait for others'
// answers.
func (f *fleet) load(t *testing.T, stop <-chan struct{}) {
	rnd := rand.New(rand.NewPCG(3, 2))
	every := time.NewTicker(25 * time.Millisecond)
	defer every.Stop()
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		case <-every.C:
		}
		prompt := make([]uint32, 100+rnd.IntN(900))
		for i := range prompt {
			prompt[i] = rnd.Uint32()
		}
		f.running.Go(func() {
			if err := f.request(t, fmt.Sprint("r", n), prompt); err != nil && t.Context().Err() == nil {
				t.Errorf("request %d: %v", n, err)
			}
		})
	}
}

// request places a request, sends it to its engine, and reports its steps.
func (f *fleet) request(t *testing.T, id string, prompt []uint32) error {
	var chosen struct {
		Worker int `json:"worker_id"`
	}
	ctx := t.Context()
	if err := f.Do(ctx, "POST", "/select_and_reserve", object{"model_name": "simulated", "reservation_id": id, "token_ids": prompt}, &chosen); err != nil {
		return err
	}
	f.placed[chosen.Worker].Add(1)
	body, err := json.Marshal(simapi.GenerateRequest{RequestID: id, TokenIDs: prompt, OutputTokenIDs: make([]uint32, 20)})
	if err != nil {
		return err
	}
	ask, err := http.NewRequestWithContext(ctx, "POST", f.urls[chosen.Worker]+simapi.PathGenerate, bytes.NewReader(body))
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(ask)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	for steps := json.NewDecoder(answer.Body); ; {
		var s simapi.Step
		if err := steps.Decode(&s); err != nil {
			return fmt.Errorf("answer of engine %d: %w", chosen.Worker, errors.Join(err, io.ErrUnexpectedEOF))
		}
		switch s.Event {
		case simapi.EventFirstToken:
			err = f.Do(ctx, "POST", "/reservations/"+id+"/prefill_complete", nil, nil)
		case simapi.EventDone:
			f.completed.Add(1)
			return f.Do(ctx, "DELETE", "/reservations/"+id, nil, nil)
		}
		if err != nil {
			return err
		}
	}
}

// excluded waits until so many engines are excluded, and returns for how long it has waited.
func (f *fleet) excluded(t *testing.T, want int) time.Duration {
	t.Helper()
	begin := time.Now()
	e2e.Eventually(t, fmt.Sprintf("%d engines are excluded", want), func() error {
		got, err := f.Sum(t.Context(), "select_service_engines_excluded")
		if err == nil && int(got) != want {
			err = fmt.Errorf("%v are", got)
		}
		return err
	})
	return time.Since(begin)
}

// more waits until the count has grown by n, and returns for how long it has waited.
func more(t *testing.T, what string, count *atomic.Int64, n int64) time.Duration {
	t.Helper()
	begin, before := time.Now(), count.Load()
	e2e.Eventually(t, what, func() error {
		if got := count.Load() - before; got < n && !t.Failed() {
			return fmt.Errorf("%d of %d", got, n)
		}
		return nil
	})
	return time.Since(begin)
}

func (f *fleet) signal(t *testing.T, s syscall.Signal, engines ...*e2e.Process) {
	t.Helper()
	for _, p := range engines {
		if err := p.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFrozenEngine: an engine that freezes under load soon gets no new requests but trials, so that
// the others are served meanwhile; it takes part again at once when it goes on, and ends what it
// had. Where all engines freeze, requests are not refused.
func TestFrozenEngine(t *testing.T) {
	if testing.Short() {
		t.Skip("freezes engines for half a minute, and is about seconds")
	}
	t.Parallel()
	f := startFleet(t, 3)
	stop := make(chan struct{})
	var loading sync.WaitGroup
	loading.Go(func() { f.load(t, stop) })
	f.excluded(t, 0)
	for i := range f.placed {
		more(t, "the engine gets requests", &f.placed[i], 10)
	}

	f.signal(t, syscall.SIGSTOP, f.engines[1])
	stalled := f.excluded(t, 1)
	begin, before := time.Now(), f.placed[1].Load()
	more(t, "requests are served", &f.completed, 200)
	if got, most := f.placed[1].Load()-before, 2+int64(time.Since(begin)/trialTime); got > most { // one may have been chosen before
		t.Errorf("the frozen engine got %d requests, want at most %d", got, most)
	}
	f.signal(t, syscall.SIGCONT, f.engines[1])
	thawed := more(t, "the engine gets requests again", &f.placed[1], 3)
	f.excluded(t, 0)
	t.Logf("excluded %v after the freeze, chosen again %v after its end", stalled, thawed)
	if e2e.Alone() && (stalled > stallTime || thawed > thawTime) {
		t.Errorf("excluded after %v, want %v; chosen again after %v, want %v", stalled, stallTime, thawed, thawTime)
	}

	f.signal(t, syscall.SIGSTOP, f.engines...)
	e2e.Eventually(t, "choices among excluded engines only", func() error {
		n, err := f.Sum(t.Context(), "select_service_engines_all_excluded_total")
		if err == nil && n < 20 {
			err = fmt.Errorf("%v of 20", n)
		}
		return err
	})
	close(stop)
	loading.Wait()
	f.Must(t, http.StatusOK, "POST", "/select", object{"model_name": "simulated", "token_ids": []int{1, 2, 3}}, nil)
	f.signal(t, syscall.SIGCONT, f.engines...)
	f.running.Wait() // each request has its whole answer
	f.excluded(t, 0)
}
