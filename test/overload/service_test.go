// Package overload puts the built service and simulated engines under more load
// than the engines can take, and proves what docs/overload.md promises.
package overload_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/test/procs"
)

const (
	// patience is how long a test waits for what has to happen in the end.
	patience = 30 * time.Second
	// answerIn bounds every request to the service.
	answerIn = 20 * time.Second
)

// object is a JSON object that is sent.
type object = map[string]any

// service is a running service and a client of it.
type service struct {
	*procs.Process
	http *http.Client
}

// start starts a service on a free port and waits until it answers.
func start(t *testing.T, args ...string) *service {
	t.Helper()
	port := procs.FreePort(t)
	s := &service{
		Process: procs.Start(t, procs.Options{
			Command: append([]string{procs.Binary(t), "--port", strconv.Itoa(port)}, args...),
			Address: fmt.Sprintf("127.0.0.1:%d", port),
		}),
		http: &http.Client{Timeout: answerIn, Transport: &http.Transport{MaxIdleConnsPerHost: 1024}},
	}
	t.Cleanup(s.http.CloseIdleConnections)
	s.Answers(t, patience, s.http)
	return s
}

// call sends a request, see procs.Call.
func (s *service) call(ctx context.Context, method, path string, body any) (procs.Answer, error) {
	return procs.Call(ctx, s.http, method, "http://"+s.Address()+path, body)
}

// do sends a request that has to be answered with 2xx, and decodes the answer
// into v unless that is nil.
func (s *service) do(ctx context.Context, method, path string, body []byte, v any) error {
	a, err := s.call(ctx, method, path, body)
	switch {
	case err != nil:
		return err
	case a.Status/100 != 2:
		return fmt.Errorf("%s %s: %v", method, path, a)
	case v == nil:
		return nil
	}
	if err := json.Unmarshal(a.Body, v); err != nil {
		return fmt.Errorf("%s %s: %w: %v", method, path, err, a)
	}
	return nil
}

// must is do for a step without which the test makes no sense.
func (s *service) must(t *testing.T, method, path string, body, v any) {
	t.Helper()
	var text []byte
	if body != nil {
		text = encode(t, body)
	}
	if err := s.do(t.Context(), method, path, text, v); err != nil {
		t.Fatal(err)
	}
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// load is what a rank carries, as /loads shows it.
type load struct {
	WorkerID int    `json:"worker_id"`
	Tokens   uint64 `json:"potential_prefill_tokens"`
	Blocks   uint64 `json:"potential_decode_blocks"`
	Requests uint64 `json:"active_requests"`
}

// loads returns the loads of all models.
func (s *service) loads(ctx context.Context) (all []load, err error) {
	var scopes []struct {
		Loads []load `json:"loads"`
	}
	err = s.do(ctx, "GET", "/loads", nil, &scopes)
	for _, scope := range scopes {
		all = append(all, scope.Loads...)
	}
	return all, err
}

// loadsUntil is loads for a watcher: ok is false once ctx has ended, or if they
// could not be read, which fails the test.
func (s *service) loadsUntil(ctx context.Context, t *testing.T) (all []load, ok bool) {
	all, err := s.loads(ctx)
	if err != nil && ctx.Err() == nil {
		t.Error(err)
	}
	return all, err == nil && ctx.Err() == nil
}

// isIdle fails the test if a rank out of n carries anything.
func (s *service) isIdle(t *testing.T, n int) {
	t.Helper()
	all, err := s.loads(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != n {
		t.Errorf("/loads has %d ranks, want %d", len(all), n)
	}
	for _, l := range all {
		if l != (load{WorkerID: l.WorkerID}) {
			t.Errorf("everything was freed, and a rank carries %+v", l)
		}
	}
}

// goroutines is the gauge of that name in /metrics.
func (s *service) goroutines(t *testing.T) int {
	t.Helper()
	a, err := s.call(t.Context(), "GET", "/metrics", nil)
	if err != nil || a.Status != http.StatusOK {
		t.Fatalf("GET /metrics: %v %v", a, err)
	}
	for line := range strings.Lines(string(a.Body)) {
		if text, ok := strings.CutPrefix(line, "go_goroutines "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(text))
			if err != nil {
				t.Fatalf("go_goroutines: %v", err)
			}
			return n
		}
	}
	t.Fatal("/metrics has no go_goroutines")
	return 0
}

// refusal is the whole answer to a request whose eligible workers are all
// overloaded.
const refusal = `{"error":"all eligible workers are overloaded",` +
	`"message":"Service temporarily unavailable: All workers are busy, please retry later",` +
	`"type":"service_unavailable","code":503}`

// isRefusal tells a refusal from a choice; any other answer is an error.
func isRefusal(a procs.Answer) (bool, error) {
	switch {
	case a.Status == http.StatusOK:
		return false, nil
	case a.Status == http.StatusServiceUnavailable && string(a.Body) == refusal:
		return true, nil
	}
	return false, fmt.Errorf("neither accepted nor refused for load: %v", a)
}

var errNotYet = errors.New("not yet")

// eventually polls until ok returns nil.
func eventually(t *testing.T, what string, ok func() error) {
	t.Helper()
	procs.Eventually(t, patience, what, ok)
}
