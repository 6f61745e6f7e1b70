package replicas_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"
)

// answerIn bounds every request.
const answerIn = 10 * time.Second

// object is a JSON object that is sent.
type object = map[string]any

// answer is a response that was read to its end.
type answer struct {
	status int
	body   []byte
}

func (a answer) String() string { return fmt.Sprintf("%d %.300s", a.status, a.body) }

func newClient(t *testing.T) *http.Client {
	c := &http.Client{Timeout: answerIn, Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// call sends a request with a JSON body, or without one.
func (r *replica) call(ctx context.Context, method, path string, body any) (answer, error) {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return answer{}, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+r.address+path, bytes.NewReader(text))
	if err != nil {
		return answer{}, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := r.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	got, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, got}, err
}

// get reads a JSON answer.
func (r *replica) get(path string, v any) error {
	a, err := r.call(r.t.Context(), "GET", path, nil)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", r.name, err)
	case a.status != http.StatusOK:
		return fmt.Errorf("%s: GET %s: %v", r.name, path, a)
	}
	if err := json.Unmarshal(a.body, v); err != nil {
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
	if a.status != status {
		r.t.Fatalf("%s: %s %s: want status %d, got %v", r.name, method, path, status, a)
	}
}
