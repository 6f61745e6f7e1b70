package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/select-service/select-service/demo/sim/simapi"
	"github.com/select-service/select-service/test/checks/e2e"
)

// pools is a bed of engines that prefill, engines that decode and one that encodes, each in a process of its own.
type pools struct {
	*bed
	prefill, decode []*poolEngine
	n               uint32
}

type poolEngine struct {
	*e2e.Process
	worker  int
	address string
	at      *e2e.Service // the engine's own routes
}

// taken is how many requests the engine has had.
func (e *poolEngine) taken(t *testing.T) int {
	t.Helper()
	var s simapi.Stats
	e.at.Must(t, http.StatusOK, http.MethodGet, simapi.PathStats, nil, &s)
	return s.Requests
}

// layPools starts two engines of either kind. The decode engines compute what is shorter than 100 tokens, or has fewer new ones.
func layPools(t *testing.T, proxied bool) *pools {
	t.Helper()
	gateway := e2e.FreePort(t)
	args := []string{"--gateway-port", strconv.Itoa(gateway), "--gateway-drain-delay", "10ms", "--gateway-conditional-max-uncached-tokens", "100"}
	p := &pools{bed: &bed{t: t, proxied: proxied, gateway: gateway}}
	if proxied {
		proxy := e2e.FreePort(t)
		args = append(args, "--proxy-port", strconv.Itoa(proxy))
		p.envoy = &envoy{url: fmt.Sprintf("http://127.0.0.1:%d", proxy)}
	}
	p.picker = e2e.Serve(t, nil, args...)
	for i, role := range []string{"prefill", "prefill", "decode", "decode"} {
		process, engines := e2e.Engines(t, 1, "--model", model, "--role", role, "--decode-rate", "1000")
		address := strings.TrimPrefix(engines[0].URL, "http://")
		e := &poolEngine{process, i + 1, address, e2e.New(t, e2e.Options{Address: address})}
		p.picker.Must(t, http.StatusCreated, http.MethodPost, "/workers", object{
			"worker_id": i + 1, "role": role, "model_name": model, "endpoint": engines[0].URL, "block_size": blockSize, "data_parallel_size": 1,
			"kv_events_endpoint": engines[0].Events, "replay_endpoint": engines[0].Replay, "max_num_batched_tokens": 8192, "load_metrics": object{},
		}, nil)
		if role == "prefill" {
			p.prefill = append(p.prefill, e)
		} else {
			p.decode = append(p.decode, e)
		}
		p.engines = append(p.engines, &backend{name: string(rune('A' + i)), address: address})
		e2e.Eventually(t, "the service follows the engine's events", func() error {
			var info simapi.Info
			if err := e.at.Do(t.Context(), http.MethodGet, simapi.PathInfo, nil, &info); err != nil || info.Subscribers == 0 {
				return errors.Join(err, errNotYet)
			}
			return nil
		})
	}
	// Nobody listens there: whoever was sent there would get no answer.
	p.picker.Must(t, http.StatusCreated, http.MethodPost, "/workers", object{
		"worker_id": 9, "role": "encode", "model_name": model, "endpoint": "http://127.0.0.1:9", "block_size": blockSize, "kv_events": false,
	}, nil)
	if !proxied {
		p.envoy = startEnvoy(t, gateway, p.engines)
	}
	return p
}

// prompt is a completion whose prompt of so many tokens nobody has.
func (p *pools) prompt(tokens int, fields ...object) object {
	p.n++
	ids := make([]uint32, tokens)
	for i := range ids {
		ids[i] = p.n<<14 + uint32(i)
	}
	body := object{"model": model, "prompt": ids, "max_tokens": 2}
	for _, f := range fields {
		for name, value := range f {
			body[name] = value
		}
	}
	return body
}

// paired checks for what reason a request gets a prefill worker or none.
func (p *pools) paired(reason string, body object, header ...string) {
	p.t.Helper()
	metric := `select_service_pairs_total{model_name="` + model + `",reason="` + reason + `"}`
	count := func() float64 {
		n, err := p.picker.Sum(p.t.Context(), metric)
		if err != nil {
			p.t.Fatal(err)
		}
		return n
	}
	before := count()
	p.post(http.StatusOK, completions, body, header...)
	if n := count() - before; n != 1 {
		p.t.Errorf("%v requests were %q, want 1", n, reason)
	}
}

// isExcluded returns no error if a worker is left out for one of some reasons, or without reasons, if it is not.
func (p *pools) isExcluded(e *poolEngine, reasons ...string) error {
	p.t.Helper()
	var all []struct {
		ID       int `json:"worker_id"`
		Excluded []struct {
			Reason string `json:"reason"`
		} `json:"excluded"`
	}
	p.picker.Must(p.t, http.StatusOK, http.MethodGet, "/workers", nil, &all)
	for _, w := range all {
		if w.ID == e.worker && (len(w.Excluded) == 0 && len(reasons) == 0 || len(w.Excluded) > 0 && slices.Contains(reasons, w.Excluded[0].Reason)) {
			return nil
		}
	}
	return fmt.Errorf("worker %d is not excluded as %v: %v", e.worker, reasons, all)
}

// TestPairs plays requests for pools of engines that prefill and decode, through Envoy and through the proxy: which of them get a pair,
// places that are reserved in advance, and prefill engines that freeze and that are killed.
func TestPairs(t *testing.T) {
	if testing.Short() {
		t.Skip("an engine is frozen for some seconds, and a reservation waits for ten")
	}
	for _, proxied := range []bool{false, true} {
		t.Run(map[bool]string{false: "gateway", true: "proxy"}[proxied], func(t *testing.T) {
			if !proxied && os.Getenv(envoyEnv) == "" {
				t.Skipf("needs Envoy: make test-gateway sets %s", envoyEnv)
			}
			t.Parallel()
			p := layPools(t, proxied)
			p.conditional()
			p.reserved()
			p.frozen()
			p.dead()
		})
	}
}

func (p *pools) conditional() {
	p.t.Helper()
	p.paired("short", p.prompt(50))
	long := p.prompt(320)
	p.paired("pair", long)
	p.idle()
	p.awaitBlocks()
	p.paired("cached", long)
	p.paired("pair", p.prompt(320, streamed), "X-Prefiller-Host-Port", "192.0.2.1:8000", "X-Encoder-Hosts-Ports", "192.0.2.1:8000")
	p.idle()
}

// awaitBlocks waits until the service knows what the engines have cached.
func (p *pools) awaitBlocks() {
	p.t.Helper()
	e2e.Eventually(p.t, "the service knows what the engines have cached", func() error {
		cached := 0
		for _, e := range slices.Concat(p.prefill, p.decode) {
			var s simapi.Stats
			e.at.Must(p.t, http.StatusOK, http.MethodGet, simapi.PathStats, nil, &s)
			cached += s.CachedBlocks
		}
		if known, err := p.picker.Sum(p.t.Context(), "select_service_index_blocks"); err != nil || int(known) != cached {
			return fmt.Errorf("%v of %d blocks, %w", known, cached, err)
		}
		return nil
	})
}

// reserved: a place that is reserved counts as load, and the request that names it goes there. Only one does. One that nobody
// follows is freed.
func (p *pools) reserved() {
	p.t.Helper()
	body := p.prompt(320, streamed)
	a := p.post(http.StatusNoContent, completions, body, "Prefer", "reserve-endpoint")
	at := func(all []*poolEngine, header string) *poolEngine {
		i := slices.IndexFunc(all, func(e *poolEngine) bool { return e.address == a.header.Get(header) })
		if i < 0 {
			p.t.Fatalf("%s is no engine of its pool: %v", header, a.header)
		}
		return all[i]
	}
	decode, prefill := at(p.decode, "X-Llm-D-Reserved-Host-Port"), at(p.prefill, "X-Prefiller-Host-Port")
	id := a.header.Get("X-Select-Reservation-Id")
	if id == "" || a.header.Get("Preference-Applied") != "reserve-endpoint" || a.body != "" {
		p.t.Errorf("%v, %v", a.header, a)
	}
	if n := p.requests(); n[decode.worker] != 1 || n[prefill.worker] != 1 {
		p.t.Errorf("the workers carry %v, reserved are %d and %d", n, prefill.worker, decode.worker)
	}
	before := [2]int{prefill.taken(p.t), decode.taken(p.t)}
	p.post(http.StatusOK, completions, body, "X-Select-Reservation-Id", id)
	if after := [2]int{prefill.taken(p.t), decode.taken(p.t)}; after[0] != before[0]+1 || after[1] != before[1]+1 {
		p.t.Errorf("the engines of the reservation had %v requests, and have %v", before, after)
	}
	p.idle()
	if code, _ := refusal(p.t, p.post(http.StatusServiceUnavailable, completions, body, "X-Select-Reservation-Id", id)); code != "reservation_gone" {
		p.t.Errorf("the second use: %s", code)
	}
	p.post(http.StatusNoContent, completions, p.prompt(320), "Prefer", "reserve-endpoint")
	p.idle() // ten seconds later
}

// frozen: of a prefill engine that is stopped, connections are still taken. Its load reports tell that it hangs, from then on it gets no
// requests, and the decode engines, which wait for it, do.
func (p *pools) frozen() {
	p.t.Helper()
	first, second := p.prefill[0], p.prefill[1]
	signal := func(s syscall.Signal) {
		if err := first.Signal(s); err != nil {
			p.t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	defer func() { _ = first.Signal(syscall.SIGCONT) }()
	hung := make(chan error, 64)
	ctx, leave := context.WithCancel(p.t.Context())
	defer leave()
	begun := 0
	ask := func(body object) {
		begun++
		go func() {
			a, err := p.send(ctx, http.MethodPost, completions, body)
			if err == nil && a.status != http.StatusOK {
				err = errors.New(a.String())
			}
			hung <- err
		}()
	}
	e2e.Eventually(p.t, "a request is booked on the frozen engine", func() error {
		if p.requests()[first.worker] == 0 {
			ask(p.prompt(320, streamed))
			return errNotYet
		}
		return nil
	})
	frozenAt := time.Now()
	e2e.Eventually(p.t, "the frozen engine is excluded", func() error { return p.isExcluded(first, "stalled", "silent") })
	p.t.Logf("excluded after %v", time.Since(frozenAt))
	for _, e := range p.decode {
		if err := p.isExcluded(e); err != nil {
			p.t.Errorf("one that only waits: %v", err)
		}
	}
	before := second.taken(p.t)
	for range 4 {
		p.post(http.StatusOK, completions, p.prompt(320, streamed))
	}
	if n := second.taken(p.t) - before; n != 4 {
		p.t.Errorf("the other prefill engine got %d of 4 requests", n)
	}
	signal(syscall.SIGCONT)
	for range begun {
		if err := <-hung; err != nil {
			p.t.Errorf("a request that was under way: %v", err)
		}
	}
	e2e.Eventually(p.t, "the engine is back", func() error { return p.isExcluded(first) })
	p.idle()
}

// dead: a prefill engine that is killed gets no further requests, and the proxy's clients notice nothing. Without any
// the decode engines compute the prompts.
func (p *pools) dead() {
	p.t.Helper()
	for i, e := range p.prefill {
		e.Kill()
		e2e.Eventually(p.t, "the engine gets no requests", func() error {
			a, err := p.send(p.t.Context(), http.MethodPost, completions, p.prompt(320, streamed))
			if err != nil || p.proxied && a.status != http.StatusOK {
				p.t.Fatalf("%v, %v", a, err)
			}
			return p.isExcluded(e, "silent")
		})
		for range 4 {
			p.paired([]string{"pair", "no_prefill_worker"}[i], p.prompt(320, streamed))
		}
	}
	p.idle()
}
