package replicas_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/select-service/select-service/test/procs"
)

// answerIn bounds every request.
const answerIn = 10 * time.Second

// object is a JSON object that is sent.
type object = map[string]any

func newClient(t *testing.T) *http.Client {
	c := &http.Client{Timeout: answerIn, Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// call sends a request, see procs.Call.
func (r *replica) call(ctx context.Context, method, path string, body any) (procs.Answer, error) {
	return procs.Call(ctx, r.http, method, "http://"+r.address+path, body)
}

// get reads a JSON answer.
func (r *replica) get(path string, v any) error {
	a, err := r.call(r.t.Context(), "GET", path, nil)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", r.name, err)
	case a.Status != http.StatusOK:
		return fmt.Errorf("%s: GET %s: %v", r.name, path, a)
	}
	if err := json.Unmarshal(a.Body, v); err != nil {
		return fmt.Errorf("%s: GET %s: %w: %v", r.name, path, err, a)
	}
	return nil
}

// must sends a request that has to be answered with a status.
func (r *replica) must(status int, method, path string, body any) {
	r.t.Helper()
	a, err := r.call(r.t.Context(), method, path, body)
	if err != nil {
		r.t.Fatalf("%s: %s %s: %v", r.name, method, path, err)
	}
	if a.Status != status {
		r.t.Fatalf("%s: %s %s: want status %d, got %v", r.name, method, path, status, a)
	}
}
