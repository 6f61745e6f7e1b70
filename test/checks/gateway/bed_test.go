// Package gateway puts a real Envoy between clients and simulated engines, with the
// built service as its endpoint picker, and plays what goes right and wrong there. make
// test-gateway runs it: GATEWAY_ENVOY names the program, without it everything is
// skipped.
//
// The engines (demo/sim) run in this process, so that a test sees what reached them,
// and can hold or break them. Envoy's configuration is that of examples/gateway, with
// other ports and what a test changes in it.
package gateway

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

// Names of what the test needs from outside.
const (
	envoyEnv  = "GATEWAY_ENVOY"  // the program
	pythonEnv = "GATEWAY_PYTHON" // with the packages of requirements.txt
	dynamoEnv = "GATEWAY_DYNAMO" // a Python with ai-dynamo-runtime
)

func TestMain(m *testing.M) { e2e.Main(m) }

type object = map[string]any

const (
	model     = "m"
	blockSize = 16
)

// setup is what a scenario changes. The zero value is two engines of one rank, tokens
// from their /tokenize, and Envoy as in examples/gateway.
type setup struct {
	engines   int
	ranks     int // of each engine
	firstRank int // of each engine: its own frontend counts from 0 all the same
	adapters  []string
	ports     bool              // the engines are the ranks of one worker, each with a port of its own
	service   []string          // more flags of the service
	env       map[string]string // of the service
	tokenizer *renderer         // in place of the engines
	worker    func(int, object) // changes the registration of a worker, from 1
	envoy     []edit
	// tap shows the messages between Envoy and the picker.
	tap *tap
}

// throughProxy is the test that plays the scenarios without Envoy: clients send their requests to the service.
const throughProxy = "TestProxyScenarios"

// bed is Envoy, the picker and its engines.
type bed struct {
	t       *testing.T
	picker  *e2e.Service
	gateway int  // port of the picker
	proxied bool // envoy is the proxy: clients send their requests to the picker
	envoy   *envoy
	engines []*backend
	workers []object // their registrations, with ids from 1
}

// lay starts everything and waits until the picker hears of every cached block.
func lay(t *testing.T, s setup) *bed {
	t.Helper()
	proxied := strings.HasPrefix(t.Name(), throughProxy)
	switch {
	case proxied && (s.tap != nil || len(s.envoy) > 0):
		t.Skip("it is about Envoy")
	case os.Getenv(envoyEnv) == "":
		t.Skipf("needs Envoy: make test-gateway sets %s", envoyEnv)
	}
	b := &bed{t: t, proxied: proxied, gateway: e2e.FreePort(t)}
	for i := range max(s.engines, 2) {
		first := s.firstRank
		if s.ports {
			first = i
		}
		b.engines = append(b.engines, newBackend(t, string(rune('A'+i)), first, max(s.ranks, 1), s.adapters))
	}
	if s.engines == 1 {
		b.engines = b.engines[:1]
	}
	args := append([]string{"--gateway-port", strconv.Itoa(b.gateway), "--gateway-drain-delay", "10ms"}, s.service...)
	proxy := 0
	if proxied {
		proxy = e2e.FreePort(t)
		args = append(args, "--proxy-port", strconv.Itoa(proxy))
	}
	if s.tokenizer != nil {
		args = append(args, "--tokenizer-url", s.tokenizer.url)
	}
	b.picker = e2e.Serve(t, s.env, args...)
	b.workers = b.records(s)
	b.register(b.picker)
	if proxied {
		b.envoy = &envoy{url: fmt.Sprintf("http://127.0.0.1:%d", proxy)}
		return b
	}
	port := b.gateway
	if s.tap != nil {
		port = s.tap.listen(t, b.gateway)
	}
	b.envoy = startEnvoy(t, port, b.engines, s.envoy...)
	return b
}

// records makes the registrations of the engines.
func (b *bed) records(s setup) (all []object) {
	for i, e := range b.engines {
		record := e.record()
		record["worker_id"] = i + 1
		if s.worker != nil {
			s.worker(i+1, record)
		}
		all = append(all, record)
	}
	if !s.ports {
		return all
	}
	one := all[0]
	endpoints := object{}
	for i, record := range all {
		endpoints[strconv.Itoa(i)] = record["endpoint"]
		for _, field := range []string{"kv_events_endpoints", "replay_endpoints"} {
			maps.Copy(one[field].(object), record[field].(object))
		}
	}
	one["rank_endpoints"], one["data_parallel_size"] = endpoints, len(all)
	return []object{one}
}

// register tells a service of the workers, and waits until it follows their events.
func (b *bed) register(service *e2e.Service) {
	b.t.Helper()
	before := make([]int, len(b.engines))
	for i, e := range b.engines {
		before[i] = e.subscribers()
	}
	for _, record := range b.workers {
		var got struct {
			Lifecycle string   `json:"lifecycle"`
			Reasons   []string `json:"reasons"`
		}
		service.Must(b.t, http.StatusCreated, http.MethodPost, "/workers", record, &got)
		if got.Lifecycle != "schedulable" {
			b.t.Fatalf("worker %v is %s: %q", record["worker_id"], got.Lifecycle, got.Reasons)
		}
	}
	for i, e := range b.engines {
		e2e.Eventually(b.t, "the service follows engine "+e.name, func() error {
			if n := e.subscribers(); n < before[i]+len(e.ranks) {
				return fmt.Errorf("%d subscribers", n)
			}
			return nil
		})
	}
}

// loads returns the load of every rank, by worker and rank.
func (b *bed) loads(service *e2e.Service) (map[[2]int]e2e.Load, error) {
	scopes, err := service.Loads(b.t.Context())
	all := make(map[[2]int]e2e.Load)
	for _, scope := range scopes {
		for _, l := range scope.Loads {
			all[[2]int{int(l.WorkerID), int(l.DPRank)}] = l
		}
	}
	return all, err
}

// requests returns the number of requests that each worker carries, all ranks together.
func (b *bed) requests() map[int]int {
	b.t.Helper()
	loads, err := b.loads(b.picker)
	if err != nil {
		b.t.Fatal(err)
	}
	n := make(map[int]int)
	for at, l := range loads {
		n[at[0]] += int(l.Requests)
	}
	return n
}

// awaitLoad waits until a rank of worker 1, 2, … has a load that is as it should be.
func (b *bed) awaitLoad(worker, rank int, what string, ok func(e2e.Load) bool) {
	b.t.Helper()
	b.awaitLoadAt(b.picker, worker, rank, what, ok)
}

func (b *bed) awaitLoadAt(service *e2e.Service, worker, rank int, what string, ok func(e2e.Load) bool) {
	b.t.Helper()
	e2e.Eventually(b.t, fmt.Sprintf("worker %d, rank %d: %s", worker, rank, what), func() error {
		all, err := b.loads(service)
		if l := all[[2]int{worker, rank}]; err != nil || !ok(l) {
			return fmt.Errorf("%+v, %w", l, err)
		}
		return nil
	})
}

// placed is the number of requests that the picker has booked.
func (b *bed) placed() float64 {
	b.t.Helper()
	n, err := b.picker.Sum(b.t.Context(), `select_service_gateway_requests_total{outcome="booked"}`)
	if err != nil {
		b.t.Fatal(err)
	}
	return n
}

// awaitWaiting waits until so many requests wait for a worker.
func (b *bed) awaitWaiting(n int) {
	b.t.Helper()
	e2e.Eventually(b.t, fmt.Sprint(n, " requests wait"), func() error {
		scopes, err := b.picker.Loads(b.t.Context())
		if err != nil || len(scopes) != 1 || scopes[0].Pending != n {
			return fmt.Errorf("%+v, %w", scopes, err)
		}
		return nil
	})
}

// idle waits until no rank carries anything.
func (b *bed) idle() { b.t.Helper(); b.idleAt(b.picker) }

func (b *bed) idleAt(service *e2e.Service) {
	b.t.Helper()
	e2e.Eventually(b.t, "nothing is booked", func() error {
		all, err := b.loads(service)
		if err != nil {
			return err
		}
		for at, l := range all {
			if l.Carries() {
				return fmt.Errorf("worker and rank %v: %+v", at, l)
			}
		}
		return nil
	})
}

// awaitMetric waits until a metric, over all its labels, has a value.
func (b *bed) awaitMetric(name string, want float64) {
	b.t.Helper()
	e2e.Eventually(b.t, fmt.Sprint(name, " is ", want), func() error {
		if got, err := b.picker.Sum(b.t.Context(), name); err != nil || got != want {
			return fmt.Errorf("%v, %w", got, err)
		}
		return nil
	})
}

// warm makes one engine cache a prompt, and waits until the picker knows.
func (b *bed) warm(e *backend, path string, body object) {
	b.t.Helper()
	b.warmAt(http.DefaultClient, e, path, body)
}

// warmRank is warm for a rank of the engine, counted from 0.
func (b *bed) warmRank(e *backend, rank int, path string, body object) {
	b.t.Helper()
	b.warmAt(&http.Client{Transport: toRank(rank)}, e, path, body)
}

func (b *bed) warmAt(client *http.Client, e *backend, path string, body object) {
	b.t.Helper()
	a, err := e2e.Call(b.t.Context(), client, http.MethodPost, "http://"+e.address+path, body)
	if err != nil || a.Status != http.StatusOK {
		b.t.Fatalf("engine %s: %v, %v", e.name, a, err)
	}
	e.takeSeen()
	b.known()
}

// toRank sends requests to a rank behind an engine's port.
type toRank int

func (rank toRank) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(rankHeader, strconv.Itoa(int(rank)))
	return http.DefaultTransport.RoundTrip(r)
}

// known waits until the picker knows all that the engines have cached.
func (b *bed) known() {
	b.t.Helper()
	e2e.Eventually(b.t, "the picker knows what the engines have cached", func() error {
		cached := 0
		for _, e := range b.engines {
			for _, rank := range e.ranks {
				cached += rank.Stats().CachedBlocks
			}
		}
		known, err := b.picker.Sum(b.t.Context(), "select_service_index_blocks")
		if err != nil || int(known) != cached {
			return fmt.Errorf("%v of %d blocks, %w", known, cached, err)
		}
		return nil
	})
}

// each calls f beside itself n times and waits for all.
func each(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	errs := make(chan error, n)
	for i := range n {
		go func() { errs <- f(ctx, i) }()
	}
	var first error
	for range n {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}
