package overload_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/simulation/engine"
	"github.com/select-service/select-service/test/checks/e2e"
)

// The flood: engines that can take 25 prompts a second are offered 250 a second,
// in equal shares of /select and /select_and_reserve. Arrivals are independent of
// the answers. The engines run at 20 times real time. Prompts are long, so that
// the answers' own cost is what is compared and not the load on the machine.
const (
	floodPrompt  = 16384 // tokens
	floodSpeedup = 20
	floodEngines = 4
	floodPrefill = 5120                                                     // tokens that an engine computes in a model second
	capacity     = floodEngines * floodPrefill * floodSpeedup / floodPrompt // prompts a second
	offered      = 10 * capacity
	prompts      = 64 // different ones, but for the first token, which is new in each
)

var fast = engine.Config{BlockSize: blockSize, CacheBlocks: 65536, PrefillRate: floodPrefill, DecodeRate: 50}

const (
	window = time.Second
	// stalled is the lateness, in the 99th percentile, of a client that did not get
	// its share of the processors in a window.
	stalled = 5 * time.Millisecond
	// windows is how many there are.
	windows = 30
)

// TestTenTimesCapacity proves that a service whose engines are offered ten times
// what they can take is never slower to refuse than to choose, in the 99th
// percentile, at constant memory, and that nothing stays booked when it is over.
func TestTenTimesCapacity(t *testing.T) {
	judged(t, floodRound)
}

func floodRound(t *testing.T) (late bool, faults []string) {
	// The client's collections would show in the tails: there shall be few.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	s := start(t, "--active-prefill-tokens-threshold", strconv.Itoa(2*floodPrompt))
	f := &flood{fleet: newFleet(t, s, "m", 1, floodEngines, fast, floodSpeedup)}
	rnd := rand.New(rand.NewPCG(4, 4))
	for range prompts {
		f.prompts = append(f.prompts, newPrompt(t, rnd))
	}
	before := s.Metric(t, "go_goroutines")
	ctx, stop := context.WithCancel(t.Context())
	var memory []int
	var sampling sync.WaitGroup
	sampling.Go(func() { memory = s.memory(ctx, t) })
	f.run(t, rnd)
	stop()
	sampling.Wait()
	if len(f.failed) > 0 {
		t.Fatalf("%d requests failed, for example: %v", len(f.failed), errors.Join(f.failed[:min(5, len(f.failed))]...))
	}
	s.isIdle(t, floodEngines)
	s.HTTP.CloseIdleConnections()
	e2e.Eventually(t, "goroutines are back", func() error {
		if now := s.Metric(t, "go_goroutines"); now > before+2 {
			return fmt.Errorf("%d, before %d", now, before)
		}
		return nil
	})
	late, faults = f.compare(t)
	if fault := compareHalves(t, memory); fault != "" {
		faults = append(faults, fault)
	}
	return late, faults
}

// flood is what was offered and what came of it.
type flood struct {
	*fleet
	prompts []prompt

	sent    int
	windows []windowed

	mu     sync.Mutex // guards what follows, and windows while answers come
	failed []error
	booked int // accepted by /select_and_reserve
}

// windowed is what was measured of the requests that were due in a window.
type windowed struct {
	late     []time.Duration // of the client: how long after its time it was sent
	refused  []time.Duration // how long the answer took
	selected []time.Duration // the same of /select, accepted
}

// prompt is a prompt whose first token is still open.
type prompt struct {
	tokens []uint32
	rest   []byte // the JSON text after the first token
}

func newPrompt(t *testing.T, rnd *rand.Rand) prompt {
	t.Helper()
	p := prompt{tokens: tokens(rnd, floodPrompt)}
	p.rest = append([]byte(","), encode(t, p.tokens[1:])[1:]...)
	p.rest = append(p.rest, '}')
	return p
}

// run offers the flood and waits until all that was accepted is done.
func (f *flood) run(t *testing.T, rnd *rand.Rand) {
	f.windows = make([]windowed, windows)
	begin := time.Now()
	var all sync.WaitGroup
	for next := time.Duration(0); next < time.Duration(len(f.windows))*window; {
		o := offer{
			first: uint32(f.sent), window: &f.windows[next/window],
			reserve: rnd.IntN(2) == 0, prompt: &f.prompts[rnd.IntN(prompts)],
		}
		time.Sleep(next - time.Since(begin))
		f.sent++
		o.window.late = append(o.window.late, time.Since(begin)-next)
		all.Go(func() {
			if err := f.one(t.Context(), &o); err != nil {
				f.note(func() { f.failed = append(f.failed, err) })
			}
		})
		next += time.Duration(rnd.ExpFloat64() / offered * float64(time.Second))
	}
	all.Wait()
}

// offer is one request of the flood.
type offer struct {
	window  *windowed
	reserve bool
	prompt  *prompt
	first   uint32 // its first token
}

// one offers one request and, if it was booked, sees it through.
func (f *flood) one(ctx context.Context, o *offer) error {
	path := "/select"
	if o.reserve {
		path = "/select_and_reserve"
	}
	p := o.prompt
	body := append(fmt.Appendf(make([]byte, 0, len(p.rest)+64), `{"model_name":"m","token_ids":[%d`, o.first), p.rest...)
	sent := time.Now()
	a, err := f.service.Call(ctx, http.MethodPost, path, body)
	took := time.Since(sent)
	if err != nil {
		return err
	}
	refused, err := isRefusal(a)
	if err != nil {
		return err
	}
	f.note(func() {
		switch {
		case refused:
			o.window.refused = append(o.window.refused, took)
		case o.reserve:
			f.booked++
		default:
			o.window.selected = append(o.window.selected, took)
		}
	})
	if refused || !o.reserve {
		return nil
	}
	var placed struct {
		WorkerID      int    `json:"worker_id"`
		ReservationID string `json:"reservation_id"`
	}
	if err := json.Unmarshal(a.Body, &placed); err != nil {
		return err
	}
	r := request{id: placed.ReservationID, prompt: slices.Clone(p.tokens), output: p.tokens[:answerSize]}
	r.prompt[0] = o.first
	return f.serve(ctx, &r, placed.WorkerID)
}

func (f *flood) note(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// compare compares the 99th percentiles of what was sent in windows in which the
// client was on time. late says that there were too few of them.
func (f *flood) compare(t *testing.T) (late bool, faults []string) {
	t.Helper()
	var all windowed
	used := 0
	for _, w := range f.windows {
		if quantile(w.late, 0.99) > stalled {
			continue
		}
		used++
		all.late = append(all.late, w.late...)
		all.refused = append(all.refused, w.refused...)
		all.selected = append(all.selected, w.selected...)
	}
	t.Logf("%d requests offered, %d booked; %d of %d windows are compared", f.sent, f.booked, used, len(f.windows))
	show := func(what string, d []time.Duration) {
		t.Logf("%-16s %6d: p50 %v, p90 %v, p99 %v", what, len(d), quantile(d, 0.5), quantile(d, 0.9), quantile(d, 0.99))
	}
	show("client late", all.late)
	show("refused", all.refused)
	show("selected", all.selected)
	refused, selected := quantile(all.refused, 0.99), quantile(all.selected, 0.99)
	t.Logf("p99 of a refusal is %.2f of that of an accepted /select", float64(refused)/float64(selected))
	if refused > selected {
		faults = append(faults, fmt.Sprintf("p99 of a refusal is %v, of an accepted /select %v", refused, selected))
	}
	return used < len(f.windows)/2, faults
}

// memory samples the resident memory of the service, in KiB, until ctx ends.
func (s *service) memory(ctx context.Context, t *testing.T) (all []int) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return all
		case <-tick.C:
			kib, err := s.Status("VmRSS")
			if err != nil {
				t.Error(err)
				return all
			}
			all = append(all, kib)
		}
	}
}

// compareHalves compares the second half of a run with the first, without its
// warm-up. A client that stalls sends in bursts, which take memory.
func compareHalves(t *testing.T, memory []int) (fault string) {
	t.Helper()
	memory = memory[len(memory)/6:]
	first, second := quantile(memory[:len(memory)/2], 0.5), quantile(memory[len(memory)/2:], 0.5)
	t.Logf("memory: %d KiB, then %d KiB", first, second)
	if float64(second) > 1.2*float64(first) {
		return fmt.Sprintf("memory grows from %d to %d KiB", first, second)
	}
	return ""
}
