package conformance

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestOptions proves that the prefix goes in front of all paths but that of the
// metrics, and that the check sees requests and answers as they were and can
// refuse them.
func TestOptions(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Path", r.URL.Path)
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, `{"a":1}`)
	}))
	defer srv.Close()
	refuse := errors.New("not what the document says")
	var seen []Exchange
	p := &player{
		client: client{strings.TrimPrefix(srv.URL, "http://")},
		options: Options{Prefix: "/v1.6", Check: func(e Exchange) error {
			seen = append(seen, e)
			if e.Method == http.MethodDelete {
				return refuse
			}
			return nil
		}},
	}
	for _, r := range []Request{
		{Method: "POST", Path: "/select?x=1", Body: []byte(`{"b":2}`)},
		{Method: "GET", Path: "/metrics"},
	} {
		got, err := p.request(&r)
		if err != nil || got.status != http.StatusTeapot || !got.isJSON {
			t.Fatalf("%s: %+v, %v", r.Path, got, err)
		}
	}
	if _, err := p.request(&Request{Method: "DELETE", Path: "/workers/1"}); !errors.Is(err, refuse) {
		t.Errorf("error %v, want that of the check", err)
	}
	if len(seen) != 3 {
		t.Fatalf("%d exchanges were seen", len(seen))
	}
	e := seen[0]
	if e.Method != "POST" || e.Target != "/v1.6/select?x=1" || e.RequestHeader.Get("Content-Type") != "application/json" || string(e.Request) != `{"b":2}` ||
		e.Status != http.StatusTeapot || e.Header.Get("X-Path") != "/v1.6/select" || string(e.Body) != `{"a":1}` {
		t.Errorf("exchange %+v", e)
	}
	if seen[1].Target != "/metrics" || seen[2].Target != "/v1.6/workers/1" {
		t.Errorf("targets %s, %s", seen[1].Target, seen[2].Target)
	}
}
