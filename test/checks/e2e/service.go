package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Object is a JSON object that is sent.
type Object = map[string]any

// Service is the program on one address, and a client of it: one process, or one
// after the other. Run may not be called beside other methods; these may be called
// from any goroutine.
type Service struct {
	*Process
	// HTTP sends the requests. It keeps connections.
	HTTP *http.Client

	tb      testing.TB
	opt     Options
	address string // where requests go
}

// New prepares a service that is not running yet; the command of the options has to
// make it listen at their address.
func New(tb testing.TB, opt Options) *Service {
	s := &Service{tb: tb, opt: opt, address: opt.Address}
	s.HTTP = &http.Client{Timeout: Patience, Transport: &http.Transport{MaxIdleConnsPerHost: 1024}}
	tb.Cleanup(s.HTTP.CloseIdleConnections)
	return s
}

// Serve runs the built program with --port and the arguments, on a free port.
func Serve(tb testing.TB, env map[string]string, args ...string) *Service {
	tb.Helper()
	port := strconv.Itoa(FreePort(tb))
	command := append([]string{Binary(tb), "--port", port}, args...)
	s := New(tb, Options{Command: command, Env: env, Address: "127.0.0.1:" + port})
	s.Run()
	return s
}

// Run starts a process, the first one or after Kill another one at the same
// address, and waits until it answers GET /health, in whatever way.
func (s *Service) Run() {
	s.tb.Helper()
	s.Process = Start(s.tb, s.opt)
	p := s.Process
	s.tb.Cleanup(func() {
		if s.tb.Failed() {
			out := p.Output()
			s.tb.Logf("the service at %s wrote: …%s", s.address, out[max(0, len(out)-2000):])
		}
	})
	Eventually(s.tb, "the service at "+s.address+" answers", func() error {
		if code, ended := p.Wait(0); ended {
			s.tb.Fatalf("the service ended with code %d: %s", code, p.Output())
		}
		_, err := s.Call(s.tb.Context(), http.MethodGet, "/health", nil)
		return err
	})
}

// At returns the client of another listener of the same process.
func (s *Service) At(port int) *Service {
	other := *s
	other.address = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	return &other
}

// InUse returns the bytes that the process holds after a collection: of its heap, its stacks and
// outside of both. Unlike resident memory it does not wait for the runtime to give memory back.
// It is asked of the listener of --debug-listen, see At.
func (s *Service) InUse(tb testing.TB) int {
	tb.Helper()
	var heap Answer
	for range 2 { // what pools hold survives one collection
		var err error
		if heap, err = s.Call(tb.Context(), http.MethodGet, "/debug/pprof/heap?gc=1&debug=1", nil); err != nil {
			tb.Fatal(err)
		}
	}
	of := func(name string) int {
		m := regexp.MustCompile(`(?m)^# ` + name + ` = (\d+)`).FindSubmatch(heap.Body)
		if m == nil {
			tb.Fatalf("no %s in %s", name, heap)
		}
		n, _ := strconv.Atoi(string(m[1]))
		return n
	}
	var vars struct {
		Outside int `json:"outside_heap_bytes"`
	}
	s.Must(tb, http.StatusOK, http.MethodGet, "/debug/vars", nil, &vars)
	return of("HeapAlloc") + of("Stack") + vars.Outside
}

// Address is where requests go, host:port.
func (s *Service) Address() string { return s.address }

// URL is its base URL.
func (s *Service) URL() string { return "http://" + s.address }

// Call sends a request, see Call.
func (s *Service) Call(ctx context.Context, method, path string, body any) (Answer, error) {
	return Call(ctx, s.HTTP, method, s.URL()+path, body)
}

// Do sends a request that has to be answered with 2xx, and decodes the answer into
// v unless that is nil.
func (s *Service) Do(ctx context.Context, method, path string, body, v any) error {
	a, err := s.Call(ctx, method, path, body)
	switch {
	case err != nil:
		return fmt.Errorf("%s %s: %w", method, path, err)
	case a.Status/100 != 2:
		return fmt.Errorf("%s %s: %v", method, path, a)
	}
	return a.decode(method, path, v)
}

// Must sends a request that has to be answered with a status, and decodes the
// answer into v unless that is nil. Anything else ends the test.
func (s *Service) Must(t testing.TB, status int, method, path string, body, v any) {
	t.Helper()
	a, err := s.Call(t.Context(), method, path, body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	if a.Status != status {
		t.Fatalf("%s %s: want status %d, got %v", method, path, status, a)
	}
	if err := a.decode(method, path, v); err != nil {
		t.Fatal(err)
	}
}

func (a Answer) decode(method, path string, v any) error {
	if v == nil {
		return nil
	}
	if err := json.Unmarshal(a.Body, v); err != nil {
		return fmt.Errorf("%s %s: %w: %v", method, path, err, a)
	}
	return nil
}

// Load is a rank's part of GET /loads.
type Load struct {
	WorkerID uint64 `json:"worker_id"`
	DPRank   uint32 `json:"dp_rank"`
	Prefill  uint64 `json:"potential_prefill_tokens"`
	Decode   uint64 `json:"potential_decode_blocks"`
	Requests uint64 `json:"active_requests"`
}

// Carries reports whether the rank carries anything.
func (l Load) Carries() bool { return l.Prefill != 0 || l.Decode != 0 || l.Requests != 0 }

// ScopeLoads is one entry of GET /loads.
type ScopeLoads struct {
	Model   string `json:"model_name"`
	Loads   []Load `json:"loads"`
	Pending int    `json:"pending_count"`
}

// Loads returns the loads of all scopes.
func (s *Service) Loads(ctx context.Context) (all []ScopeLoads, err error) {
	err = s.Do(ctx, http.MethodGet, "/loads", nil, &all)
	return all, err
}

// Sum adds up the samples of a metric, over all its labels; 0 if it has none. name
// may have the first labels of samples, in the order of the exposition: those with further ones count too.
func (s *Service) Sum(ctx context.Context, name string) (sum float64, err error) {
	samples, err := s.samples(ctx, name)
	for _, v := range samples {
		sum += v
	}
	return sum, err
}

// Metric is the value of a metric of whole numbers, which has to be there.
func (s *Service) Metric(t testing.TB, name string) int {
	t.Helper()
	samples, err := s.samples(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if len(samples) != 1 {
		t.Fatalf("metric %s: %d samples, want 1", name, len(samples))
	}
	return int(samples[0])
}

func (s *Service) samples(ctx context.Context, name string) (all []float64, err error) {
	a, err := s.Call(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return nil, err
	}
	if a.Status != http.StatusOK {
		return nil, fmt.Errorf("GET /metrics: %v", a)
	}
	for line := range strings.Lines(string(a.Body)) {
		rest, ok := strings.CutPrefix(line, strings.TrimSuffix(name, "}"))
		if !ok || strings.IndexByte(" {},", rest[0]) < 0 {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' ')+1:]), 64)
		if err != nil {
			return nil, fmt.Errorf("metric %s: %w", name, err)
		}
		all = append(all, v)
	}
	return all, nil
}
