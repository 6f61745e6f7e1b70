package overload_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/simulation/engine"
	"github.com/select-service/select-service/pkg/client"
)

// The burst: engines that compute 5,500 prompt tokens a second get, for six
// seconds, twice what they can compute, which takes them 12 s. Times are model
// times.
const (
	burst         = 6 * time.Second
	overCapacity  = 2                // times
	drain         = 20 * time.Second // the bound for the burst and all that follows
	fleetSize     = 4                // engines of each model
	meanPrompt    = 1536             // tokens; from half to one and a half of it
	largestPrompt = meanPrompt + meanPrompt/2
	answerSize    = 64 // tokens
	// leastGoodput is in relation to the same burst without thresholds.
	leastGoodput = 0.9
)

var slow = engine.Config{BlockSize: blockSize, CacheBlocks: 1800, PrefillRate: 5500, DecodeRate: 64}

// burstSpeedup is how many model seconds pass in a second. It is small because the time that this
// machine takes for an answer counts as model time, too.
const burstSpeedup = 2

const latencyProfile = "latency profile"

// stall is how late a timer of the client may be, in model time.
const stall = 200 * time.Millisecond

// TestRetryStrategyDrainsBurst proves that clients that retry as
// docs/start/callers.md says get through a burst of twice the engines' capacity: each
// request succeeds in the end, and the goodput is that of an unguarded model
// under the same burst at the same time, to 10 % (but for thresholds that are
// meant for latency). Meanwhile no worker of a guarded model is ever more than
// one request above its thresholds.
func TestRetryStrategyDrainsBurst(t *testing.T) {
	judged(t, burstRound)
}

func burstRound(t *testing.T) (late bool, faults []string) {
	s := start(t)
	profile := thresholds{decode: new(0.95), tokens: new(uint64(20_000))}
	waves := []*wave{
		newWave(t, s, "unguarded", 100, thresholds{}),
		newWave(t, s, "prefill", 200, thresholds{tokens: profile.tokens}),
		newWave(t, s, "decode", 300, thresholds{decode: profile.decode}),
		newWave(t, s, "throughput profile", 400, profile),
		newWave(t, s, latencyProfile, 500, thresholds{decode: new(0.7), tokens: new(uint64(5_000))}),
	}
	ctx, stop := context.WithCancel(t.Context())
	var watching, playing sync.WaitGroup
	watching.Go(func() { watch(ctx, t, s, waves) })
	for _, w := range waves {
		playing.Go(func() { w.play(t.Context()) })
	}
	playing.Wait()
	stop()
	watching.Wait()

	unguarded := waves[0]
	for _, w := range waves {
		t.Log(w)
		late = late || w.late > stall
		if len(w.failed) > 0 {
			t.Errorf("%s: %d requests failed: %v", w.model, len(w.failed), errors.Join(w.failed...))
		}
		if w.refused > 0 != (w != unguarded) {
			t.Errorf("%s: %d refusals", w.model, w.refused)
		}
		if w.took > drain && w.model != latencyProfile {
			faults = append(faults, fmt.Sprintf("%s: took %v of model time, want at most %v", w.model, w.took, drain))
		}
		w.checkFirstToken(t)
		// What waits in the engines of the latency profile is done before those who
		// were refused come back: its goodput is lower, and only shown.
		if share := w.goodput() / unguarded.goodput(); share < leastGoodput && w.model != latencyProfile {
			faults = append(faults, fmt.Sprintf("%s: goodput is %.3f of the unguarded, want at least %g", w.model, share, leastGoodput))
		}
	}
	s.isIdle(t, len(waves)*fleetSize)
	return late, faults
}

// thresholds of a model; nil is unset.
type thresholds struct {
	decode *float64
	tokens *uint64
}

// wave is one model under the burst.
type wave struct {
	*fleet
	thresholds
	speedup  float64
	requests []request
	at       []time.Duration // when each is sent first
	most     load            // that any worker has carried; written by watch

	mu       sync.Mutex // guards what follows
	failed   []error
	accepted []int         // by attempt
	refused  int           // attempts
	took     time.Duration // until the last request was done
	late     time.Duration // the most that a timer was
}

// newWave starts the engines of a model and sets its thresholds. The prompts'
// lengths and times are the same for every model.
func newWave(t *testing.T, s *service, model string, first int, set thresholds) *wave {
	t.Helper()
	w := &wave{thresholds: set, speedup: burstSpeedup, accepted: make([]int, client.DefaultRetry().Overload.Attempts)}
	w.fleet = newFleet(t, s, model, first, fleetSize, slow, w.speedup)
	s.Must(t, http.StatusOK, http.MethodPost, "/busy_threshold", object{
		"model": model, "active_decode_blocks_threshold": set.decode, "active_prefill_tokens_threshold": set.tokens,
	}, nil)
	rnd := rand.New(rand.NewPCG(1, 2))
	capacity := fleetSize * slow.PrefillRate / meanPrompt // requests per model second
	for i := range int(overCapacity * capacity * burst.Seconds()) {
		size := meanPrompt/2 + rnd.IntN(meanPrompt+1)
		w.requests = append(w.requests, newRequest(t, rnd, model, fmt.Sprintf("%d-%d", first, i), size, answerSize))
		w.at = append(w.at, time.Duration(rnd.Float64()*float64(burst)))
	}
	slices.Sort(w.at)
	return w
}

// goodput is in requests per model second until the last was done.
func (w *wave) goodput() float64 { return float64(len(w.requests)-len(w.failed)) / w.took.Seconds() }

func (w *wave) String() string {
	return fmt.Sprintf("%-18s %d requests in %.2f model s: %.2f a second. Accepted at attempt 1 to %d: %v, refused %d times. First token from an engine after at most %.2f s. On one worker at most %d blocks, %d prefill tokens, %d requests",
		w.model, len(w.requests), w.took.Seconds(), w.goodput(), len(w.accepted), w.accepted, w.refused, w.firstToken().Seconds(),
		w.most.Decode, w.most.Prefill, w.most.Requests)
}

// firstToken is the longest that an engine took for a first token, in model
// time.
func (w *wave) firstToken() (longest time.Duration) {
	for _, e := range w.engines {
		for _, ms := range e.Stats().TTFTMS {
			longest = max(longest, time.Duration(ms*float64(time.Millisecond)))
		}
	}
	return longest
}

// checkFirstToken proves that a threshold on prefill tokens is one on the time
// that they take: an engine computes them in order.
func (w *wave) checkFirstToken(t *testing.T) {
	t.Helper()
	if w.tokens == nil {
		return
	}
	most := time.Duration(float64(*w.tokens+largestPrompt) / slow.PrefillRate * float64(time.Second))
	if got := w.firstToken(); got > most {
		t.Errorf("%s: a first token took the engine %v, want at most %v", w.model, got, most)
	}
}

// play sends every request when its time has come, however many run.
func (w *wave) play(ctx context.Context) {
	begin := time.Now()
	var all sync.WaitGroup
	for i := range w.requests {
		if w.wait(ctx, w.at[i]-w.since(begin)) != nil {
			break
		}
		all.Go(func() {
			err := w.one(ctx, &w.requests[i], rand.New(rand.NewPCG(uint64(i), 3)))
			w.note(func() {
				w.took = max(w.took, w.since(begin))
				if err != nil {
					w.failed = append(w.failed, err)
				}
			})
		})
	}
	all.Wait()
}

// one sends a request as docs/start/callers.md asks of clients until it is accepted, and sees it through.
func (w *wave) one(ctx context.Context, r *request, rnd *rand.Rand) error {
	again := client.DefaultRetry().Overload
	for attempt := range again.Attempts {
		worker, refused, err := w.send(ctx, r)
		if err == nil && !refused {
			w.note(func() { w.accepted[attempt]++ })
			return w.serve(ctx, r, worker)
		}
		if err == nil {
			w.note(func() { w.refused++ })
			err = w.wait(ctx, min(again.Max, again.Base<<attempt+time.Duration(rnd.Int64N(int64(again.Jitter)))))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", r.id, err)
		}
	}
	return fmt.Errorf("%s: refused %d times", r.id, again.Attempts)
}

// send asks for a worker once.
func (w *wave) send(ctx context.Context, r *request) (worker int, refused bool, err error) {
	a, err := w.service.Call(ctx, http.MethodPost, "/select_and_reserve", r.body)
	if err != nil {
		return 0, false, err
	}
	if refused, err = isRefusal(a); err != nil || refused {
		return 0, refused, err
	}
	var placed struct {
		WorkerID int `json:"worker_id"`
	}
	err = json.Unmarshal(a.Body, &placed)
	return placed.WorkerID, false, err
}

func (w *wave) note(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// since is in model time.
func (w *wave) since(begin time.Time) time.Duration {
	return time.Duration(float64(time.Since(begin)) * w.speedup)
}

// wait lets model time pass.
func (w *wave) wait(ctx context.Context, d time.Duration) error {
	begin := time.Now()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Duration(float64(d) / w.speedup)):
	}
	w.note(func() { w.late = max(w.late, w.since(begin)-max(d, 0)) })
	return nil
}
