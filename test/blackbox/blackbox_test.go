// Package blackbox drives the built service from outside: its command line,
// HTTP, ZMQ and signals, with what goes wrong around a service in production.
package blackbox_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/test/procs"
)

// patience is how long a test waits for what has to happen in the end.
const patience = 20 * time.Second

// answerIn bounds every request that does not wait in the queue.
const answerIn = 10 * time.Second

// object is a JSON object that is sent.
type object = map[string]any

// service is a running service and a client of it. A connection lasts for one
// request, so that it counts for no descriptor afterwards.
type service struct {
	*procs.Process
	http    *http.Client
	address string // empty: that of the process
}

// Address is where the requests go, host:port.
func (s *service) Address() string {
	if s.address != "" {
		return s.address
	}
	return s.Process.Address()
}

func program(t *testing.T) string {
	t.Helper()
	return procs.Binary(t)
}

// start starts a service on a free port and waits until it answers.
func start(t *testing.T, env map[string]string, args ...string) *service {
	t.Helper()
	return startOn(t, procs.FreePort(t), env, args...)
}

func startOn(t *testing.T, port int, env map[string]string, args ...string) *service {
	t.Helper()
	return launch(t, port, env, append([]string{"--port", strconv.Itoa(port)}, args...)...)
}

// launch starts the program with exactly these arguments and waits until it
// answers at the port.
func launch(t *testing.T, port int, env map[string]string, args ...string) *service {
	t.Helper()
	s := &service{
		Process: procs.Start(t, procs.Options{
			Command: append([]string{program(t)}, args...), Env: env, Address: fmt.Sprintf("127.0.0.1:%d", port),
		}),
		http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	}
	s.Answers(t, patience, s.http)
	return s
}

// call sends a request, see procs.Call.
func (s *service) call(ctx context.Context, method, path string, body any) (procs.Answer, error) {
	return procs.Call(ctx, s.http, method, "http://"+s.Address()+path, body)
}

// must sends a request that has to be answered with a status, and decodes the
// answer into v unless that is nil.
func (s *service) must(t *testing.T, status int, method, path string, body, v any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answerIn)
	defer cancel()
	a, err := s.call(ctx, method, path, body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	if a.Status != status {
		t.Fatalf("%s %s: want status %d, got %v", method, path, status, a)
	}
	if v == nil {
		return
	}
	if err := json.Unmarshal(a.Body, v); err != nil {
		t.Fatalf("%s %s: %v: %v", method, path, err, a)
	}
}

// eventually polls until ok returns nil.
func eventually(t *testing.T, what string, ok func() error) {
	t.Helper()
	procs.Eventually(t, patience, what, ok)
}

// register puts n equal workers, ids from 1, that listen to no events.
func (s *service) register(t *testing.T, n int) {
	t.Helper()
	for id := 1; id <= n; id++ {
		s.must(t, http.StatusCreated, "POST", "/workers", object{
			"worker_id": id, "endpoint": fmt.Sprintf("http://w%d:8000", id), "block_size": 4, "max_num_batched_tokens": 1024,
		}, nil)
	}
}

// load is a rank's part of /loads.
type load struct {
	WorkerID uint64 `json:"worker_id"`
	DPRank   uint32 `json:"dp_rank"`
	Prefill  uint64 `json:"potential_prefill_tokens"`
	Decode   uint64 `json:"potential_decode_blocks"`
	Requests uint64 `json:"active_requests"`
}

// scopeLoads is one entry of /loads.
type scopeLoads struct {
	Loads   []load `json:"loads"`
	Pending int    `json:"pending_count"`
}

func (s *service) loads(t *testing.T) scopeLoads {
	t.Helper()
	var scopes []scopeLoads
	s.must(t, http.StatusOK, "GET", "/loads?model_name=default&tenant_id=default", nil, &scopes)
	if len(scopes) != 1 {
		t.Fatalf("/loads: %d scopes, want 1", len(scopes))
	}
	return scopes[0]
}

// goroutines is the gauge of that name in /metrics.
func (s *service) goroutines(t *testing.T) int {
	t.Helper()
	a, err := s.call(t.Context(), "GET", "/metrics", nil)
	if err != nil || a.Status != http.StatusOK {
		t.Fatalf("GET /metrics: %v %v", a, err)
	}
	for sc := bufio.NewScanner(bytes.NewReader(a.Body)); sc.Scan(); {
		if text, ok := strings.CutPrefix(sc.Text(), "go_goroutines "); ok {
			n, err := strconv.Atoi(text)
			if err != nil {
				t.Fatalf("go_goroutines: %v", err)
			}
			return n
		}
	}
	t.Fatal("/metrics has no go_goroutines")
	return 0
}

// use is what a process holds.
type use struct{ goroutines, threads, descriptors int }

func (s *service) use(t *testing.T) use {
	t.Helper()
	u := use{goroutines: s.goroutines(t)}
	var err error
	if u.threads, err = s.Status("Threads"); err != nil {
		t.Fatal(err)
	}
	if u.descriptors, err = s.Descriptors(); err != nil {
		t.Fatal(err)
	}
	return u
}

// settles waits until the process holds no more than before. The slack is for
// what the Go runtime keeps for itself: threads that were blocked once stay.
func (s *service) settles(t *testing.T, before use) {
	t.Helper()
	slack := use{goroutines: 2, threads: 12, descriptors: 4}
	eventually(t, "goroutines, threads and descriptors are back", func() error {
		now := s.use(t)
		if now.goroutines > before.goroutines+slack.goroutines || now.threads > before.threads+slack.threads ||
			now.descriptors > before.descriptors+slack.descriptors {
			return fmt.Errorf("%+v, before %+v", now, before)
		}
		return nil
	})
}

// eventsOff is the environment of a service without KV events.
func eventsOff(more ...string) map[string]string {
	env := map[string]string{"DYN_USE_KV_EVENTS": "false"}
	for i := 0; i+1 < len(more); i += 2 {
		env[more[i]] = more[i+1]
	}
	return env
}
