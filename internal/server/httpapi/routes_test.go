package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/selection/contract"
)

// call sends one request straight to the handler. A nil header is JSON.
func call(t testing.TB, h http.Handler, method, target, body string, header http.Header) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	if header == nil {
		header = http.Header{"Content-Type": {"application/json"}}
	}
	r.Header = header
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func newHandler(f *fake) http.Handler {
	return New(f, f.conductor(), Options{Log: zerolog.Nop(), Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "# metrics\n")
	})})
}

// errorText returns an error answer's text and fails the test if the answer is
// not exactly {"error": text}.
func errorText(t testing.TB, w *httptest.ResponseRecorder) string {
	t.Helper()
	var e struct {
		Error *string `json:"error"`
	}
	d := json.NewDecoder(bytes.NewReader(w.Body.Bytes()))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil || e.Error == nil {
		t.Fatalf("answer %q is no error object: %v", w.Body, err)
	}
	if got := w.Header().Get("Content-Type"); got != "application/json" {
		t.Errorf("Content-Type = %q", got)
	}
	return *e.Error
}

// TestEdges pins the HTTP layer: routes, methods, content types, bodies, ids.
func TestEdges(t *testing.T) {
	const (
		notFound   = "route not found"
		notAllowed = "method not allowed"
		noJSON     = "Expected request with `Content-Type: application/json`"
		syntax     = syntaxPrefix + "*"
		shape      = shapePrefix + "*"
	)
	text := func(typ ...string) http.Header { return http.Header{"Content-Type": typ} }
	tests := []struct {
		method, target, body string
		header               http.Header
		status               int
		text                 string // of the error; a final * stands for any tail
		allow                string
	}{
		{"GET", "/nope", "", nil, 404, notFound, ""},
		{"GET", "/", "", nil, 404, notFound, ""},
		{"GET", "/health/", "", nil, 404, notFound, ""},
		{"GET", "//health", "", nil, 404, notFound, ""},
		{"GET", "/Health", "", nil, 404, notFound, ""},
		{"POST", "/workers/", "{}", nil, 404, notFound, ""},
		{"DELETE", "/workers/", "", nil, 404, notFound, ""},
		{"DELETE", "/reservations/", "", nil, 404, notFound, ""},
		{"POST", "/reservations//prefill_complete", "", nil, 404, notFound, ""},
		{"POST", "/reservations//output_block", "{}", nil, 404, notFound, ""},
		{"DELETE", "/reservations/a/b", "", nil, 404, notFound, ""},

		{"GET", "/select", "", nil, 405, notAllowed, "POST"},
		{"HEAD", "/select", "", nil, 405, notAllowed, "POST"},
		{"OPTIONS", "/select", "", nil, 405, notAllowed, "POST"},
		{"DELETE", "/workers", "{}", nil, 405, notAllowed, "POST, PUT, GET, HEAD"},
		{"PUT", "/workers", "", nil, 405, notAllowed, "POST, GET, HEAD"},
		{"PUT", "/v1.6/workers", "", nil, 405, notAllowed, "POST, GET, HEAD"},
		{"GET", "/v1.6/conductor/services", "", nil, 404, notFound, ""},
		{"GET", "/v1.3/metrics", "", nil, 404, notFound, ""},
		{"GET", "/v1.6", "", nil, 404, notFound, ""},
		{"GET", "/v1.5/health", "", nil, 404, notFound, ""},
		{"GET", "/v1.6/select", "", nil, 405, notAllowed, "POST"},
		{"GET", "/workers/1", "", nil, 405, notAllowed, "PATCH, DELETE"},
		{"POST", "/health", "{}", nil, 405, notAllowed, "GET, HEAD"},
		{"PATCH", "/reservations/x", "{}", nil, 405, notAllowed, "DELETE"},
		{"GET", "/reservations", "", nil, 405, notAllowed, "POST"},
		{"GET", "/reservations/x/prefill_complete", "", nil, 405, notAllowed, "POST"},
		{"PUT", "/replica_sync/peers", "", nil, 405, notAllowed, "GET, HEAD"},
		{"OPTIONS", "/replica_sync/register_peer", "", nil, 405, notAllowed, "POST"},
		{"DELETE", "/metrics", "", nil, 405, notAllowed, "GET, HEAD"},

		{"POST", "/select", "{}", text("text/plain"), 415, noJSON, ""},
		{"POST", "/select", "{}", http.Header{}, 415, noJSON, ""},
		{"POST", "/select", "{}", text(""), 415, noJSON, ""},
		{"POST", "/select", "{}", text("json"), 415, noJSON, ""},
		{"POST", "/select", "{}", text("text/json"), 415, noJSON, ""},
		{"POST", "/select", "{}", text("application/jsonp"), 415, noJSON, ""},
		{"POST", "/select", "{}", text("application/json, text/plain"), 415, noJSON, ""},
		{"POST", "/select", "{}", text("application/+json"), 415, noJSON, ""},
		{"POST", "/select", "nonsense", text("text/plain"), 415, noJSON, ""},
		{"POST", "/select", strings.Repeat(" ", maxBody+1), text("text/plain"), 415, noJSON, ""},
		{"POST", "/select", "{}", text("application/json; charset=utf-8"), 200, "", ""},
		{"POST", "/select", "{}", text("Application/JSON ;x"), 200, "", ""},
		{"POST", "/select", "{}", text("application/vnd.x+json"), 200, "", ""},

		{"POST", "/select", "", nil, 400, syntax, ""},
		{"POST", "/select", "nonsense", nil, 400, syntax, ""},
		{"POST", "/select", `{"token_ids":[1`, nil, 400, syntax, ""},
		{"POST", "/select", `{} x`, nil, 400, syntax, ""},
		{"POST", "/select", `{}{}`, nil, 400, syntax, ""},
		{"POST", "/select", " {} \n\t ", nil, 200, "", ""},
		{"POST", "/select", `[]`, nil, 422, shape, ""},
		{"POST", "/select", `"x"`, nil, 422, shape, ""},
		{"POST", "/select", `null`, nil, 422, shape, ""},
		{"POST", "/select", strings.Repeat(" ", maxBody-2) + "{}", nil, 200, "", ""},
		{"POST", "/select", strings.Repeat(" ", maxBody-1) + "{}", nil, 413, errBodyTooLarge.text, ""},

		{"PATCH", "/workers/abc", "{}", nil, 400, "Invalid URL: Cannot parse `abc` to a `u64`", ""},
		{"PATCH", "/workers/abc", "{}", text("text/plain"), 400, "Invalid URL: Cannot parse `abc` to a `u64`", ""},
		{"DELETE", "/workers/-9", "", nil, 400, "Invalid URL: Cannot parse `-9` to a `u64`", ""},
		{"DELETE", "/workers/1.0", "", nil, 400, "Invalid URL: Cannot parse `1.0` to a `u64`", ""},
		{"DELETE", "/workers/18446744073709551616", "", nil, 400, "Invalid URL: Cannot parse `18446744073709551616` to a `u64`", ""},
		{"DELETE", "/workers/%20", "", nil, 400, "Invalid URL: Cannot parse ` ` to a `u64`", ""},
		{"DELETE", "/reservations/%ff", "", nil, 400, "Invalid URL: Invalid UTF-8 in `reservation_id`", ""},
		{"POST", "/reservations/%ff/output_block", "", text("text/plain"), 400, "Invalid URL: Invalid UTF-8 in `reservation_id`", ""},

		{"GET", "/workers?model_name=a&model_name=b", "", nil, 400, "Failed to deserialize query string: duplicate field `model_name`", ""},
		{"GET", "/loads?tenant_id=a&x=1&tenant%5fid=", "", nil, 400, "Failed to deserialize query string: duplicate field `tenant_id`", ""},
		{"GET", "/workers?other=a&other=b", "", nil, 200, "", ""},

		{"POST", "/reservations/x/prefill_complete", "any body", text("text/plain"), 200, "", ""},
		{"POST", "/reservations/x/output_block", "", http.Header{}, 415, noJSON, ""},
		{"POST", "/reservations/x/output_block", "", nil, 400, syntax, ""},
		{"POST", "/reservations/x/output_block", `{"decay_fraction":"x"}`, nil, 422, shape, ""},
		{"POST", "/reservations//output_block", `{"decay_fraction":2}`, nil, 404, notFound, ""},
		{"POST", "/reservations/x/output_block", `{"decay_fraction":null}`, nil, 200, "", ""},
		{"POST", "/reservations/x/output_block", `{"decay_fraction":0}`, nil, 200, "", ""},
		{"POST", "/reservations/x/output_block", `{"decay_fraction":1}`, nil, 200, "", ""},

		{"POST", "/replica_sync/register_peer", `{}`, nil, 422, shapePrefix + "missing field `endpoint` at line 1 column 3", ""},
		{"POST", "/replica_sync/deregister_peer", `{"endpoint":null}`, nil, 422, shape, ""},
	}
	h := newHandler(&fake{})
	for _, tc := range tests {
		name := tc.method + " " + tc.target + " " + tc.body[:min(len(tc.body), 30)]
		w := call(t, h, tc.method, tc.target, tc.body, tc.header)
		if w.Code != tc.status {
			t.Errorf("%s: status %d, want %d: %s", name, w.Code, tc.status, w.Body)
			continue
		}
		if got := w.Header().Get("Allow"); got != tc.allow {
			t.Errorf("%s: Allow = %q, want %q", name, got, tc.allow)
		}
		if tc.status < 300 {
			continue
		}
		got := errorText(t, w)
		if prefix, open := strings.CutSuffix(tc.text, "*"); got != tc.text && (!open || !strings.HasPrefix(got, prefix)) {
			t.Errorf("%s: error %q, want %q", name, got, tc.text)
		}
	}
}

// TestErrorKinds: one place maps kinds to statuses, and nothing internal leaks.
func TestErrorKinds(t *testing.T) {
	var log bytes.Buffer
	f := &fake{}
	h := New(f, f.conductor(), Options{Log: zerolog.New(&log)})
	for _, tc := range []struct {
		err    error
		status int
		body   string
	}{
		{&contract.Error{Kind: contract.BadRequest, Text: "bad"}, 400, `{"error":"bad"}`},
		{&contract.Error{Kind: contract.NotFound, Text: `no "x"`}, 404, `{"error":"no \"x\""}`},
		{&contract.Error{Kind: contract.Conflict, Text: "taken"}, 409, `{"error":"taken"}`},
		{&contract.Error{Kind: contract.TooMany, Text: "later"}, 429, `{"error":"later"}`},
		{
			&contract.Error{Kind: contract.Unavailable, Text: "full", Details: map[string]any{"current": 0, "limit": 1}}, 503,
			`{"error":"full","details":{"current":0,"limit":1}}`,
		},
		{
			&contract.Error{Kind: contract.Internal, Text: "selected worker 1 is no longer schedulable", Err: errors.New("secret")}, 500,
			`{"error":"selected worker 1 is no longer schedulable"}`,
		},
		{errors.New("secret"), 500, `{"error":"internal error"}`},
	} {
		f.err = tc.err
		for _, r := range [][3]string{
			{"POST", "/select", "{}"},
			{"POST", "/potential_loads", "{}"},
			{"DELETE", "/reservations/x", ""},
			{"POST", "/workers", `{"worker_id":1}`},
			{"GET", "/dump", ""},
		} {
			w := call(t, h, r[0], r[1], r[2], nil)
			if w.Code != tc.status || w.Body.String() != tc.body {
				t.Errorf("%s with %v: %d %s, want %d %s", r[1], tc.err, w.Code, w.Body, tc.status, tc.body)
			}
		}
	}
	if n := strings.Count(log.String(), `"secret"`); n < 10 {
		t.Errorf("the causes of 500 answers are in the log %d times, want 10:\n%s", n, log.String())
	}
}

// TestPanic: a panic in the service becomes a 500 and a line in the log.
func TestPanic(t *testing.T) {
	var log bytes.Buffer
	h := New(&fake{call: func() { panic("boom") }}, nil, Options{Log: zerolog.New(&log)})
	for range 2 { // the second request finds pools in order
		w := call(t, h, "POST", "/select", "{}", nil)
		if w.Code != 500 || w.Body.String() != `{"error":"internal error"}` {
			t.Errorf("answer %d %s", w.Code, w.Body)
		}
	}
	if !strings.Contains(log.String(), `"panic":"boom"`) || !strings.Contains(log.String(), "fake_test.go") {
		t.Errorf("log lacks the panic or its stack: %s", log.String())
	}
}

// TestIDs: reservation ids are percent-decoded once, whatever they contain.
func TestIDs(t *testing.T) {
	f := &fake{}
	h := newHandler(f)
	for path, want := range map[string]string{
		"r1": "r1", "r%202%2F%C3%BC": "r 2/ü", "a+b%2F": "a+b/", "%2541": "%41", "a%3Fb": "a?b", "%00": "\x00", "..": "..", "a:b*c": "a:b*c",
		"a/../b": "",
	} {
		f.id = ""
		call(t, h, "DELETE", "/reservations/"+path, "", nil)
		if f.id != want {
			t.Errorf("DELETE /reservations/%s frees %q, want %q", path, f.id, want)
		}
		for _, tail := range []string{"/prefill_complete", "/output_block"} {
			f.id = ""
			call(t, h, "POST", "/reservations/"+path+tail, "{}", nil)
			if f.id != want {
				t.Errorf("POST /reservations/%s%s is for %q, want %q", path, tail, f.id, want)
			}
		}
	}
}

// TestFilters: an empty query value is a value, an absent one none.
func TestFilters(t *testing.T) {
	f := &fake{}
	h := newHandler(f)
	show := func(s *string) string {
		if s == nil {
			return "none"
		}
		return `"` + *s + `"`
	}
	for query, want := range map[string]string{
		"": "none none", "?": "none none", "?model_name=": `"" none`, "?tenant_id": `none ""`,
		"?model_name=a%20b+c&tenant_id=%C3%BC": `"a b c" "ü"`, "?x=1&&tenant_id=t;u&": `none "t;u"`,
		"?model_name=%zz": `"%zz" none`, "?model_name=%ff": `"` + "\ufffd" + `" none`,
	} {
		for _, path := range []string{"/workers", "/loads"} {
			r := httptest.NewRequest("GET", path, nil)
			r.URL.RawQuery = strings.TrimPrefix(query, "?")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if got := show(f.model) + " " + show(f.tenant); w.Code != 200 || got != want {
				t.Errorf("%s%s: %d %s, want %s", path, query, w.Code, got, want)
			}
		}
	}
}

// golden compares an answer with a file in testdata; UPDATE=1 writes it.
func golden(t *testing.T, name string, w *httptest.ResponseRecorder) {
	t.Helper()
	var got bytes.Buffer
	if err := json.Indent(&got, w.Body.Bytes(), "", "  "); err != nil {
		t.Fatalf("%s: answer is not JSON: %v: %s", name, err, w.Body)
	}
	got.WriteByte('\n')
	file := filepath.Join("testdata", name+".json")
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(file, got.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%s:\n%s\nwant\n%s", name, got.Bytes(), want)
	}
}
