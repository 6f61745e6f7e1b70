// Package overload puts the built service and simulated engines under more load
// than the engines can take, and proves what docs/figures/benchmarks.md shows of goodput,
// delays and memory. That is judged only where nothing else runs (make
// test-overload); that thresholds are exact is shown in the service's own tests.
package overload_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/select-service/select-service/test/checks/e2e"
)

type (
	object = e2e.Object
	load   = e2e.Load
)

// service is a running service.
type service struct{ *e2e.Service }

func start(t *testing.T, args ...string) *service {
	t.Helper()
	return &service{e2e.Serve(t, nil, args...)}
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// loads returns the loads of all models.
func (s *service) loads(ctx context.Context) (all []load, err error) {
	scopes, err := s.Loads(ctx)
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
		if l.Carries() {
			t.Errorf("everything was freed, and a rank carries %+v", l)
		}
	}
}

// refusal is the whole answer to a request whose eligible workers are all
// overloaded.
const refusal = `{"error":"all eligible workers are overloaded",` +
	`"message":"Service temporarily unavailable: All workers are busy, please retry later",` +
	`"type":"service_unavailable","code":503}`

// isRefusal reports whether the answer is a refusal and not a choice; any other answer is an error.
func isRefusal(a e2e.Answer) (bool, error) {
	switch {
	case a.Status == http.StatusOK:
		return false, nil
	case a.Status == http.StatusServiceUnavailable && string(a.Body) == refusal:
		return true, nil
	}
	return false, fmt.Errorf("neither accepted nor refused for load: %v", a)
}

var errNotYet = errors.New("not yet")
