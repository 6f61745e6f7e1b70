package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/service"
)

// seen is one request as Requests is told of it.
type seen struct {
	method, route string
	status        int
}

// recorder is a Requests that remembers.
type recorder struct {
	mu       sync.Mutex
	ended    []seen
	inFlight int
	negative bool          // a span below zero
	end      chan struct{} // gets one for each End, if there is room
}

func newRecorder() *recorder { return &recorder{end: make(chan struct{}, 1)} }

func (r *recorder) Begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inFlight++
}

func (r *recorder) End(method, route string, status int, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inFlight--
	r.negative = r.negative || took < 0
	r.ended = append(r.ended, seen{method, route, status})
	select {
	case r.end <- struct{}{}:
	default:
	}
}

// take returns what has ended since the last time, and fails the test if
// something is still in flight.
func (r *recorder) take(t *testing.T) []seen {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inFlight != 0 || r.negative {
		t.Errorf("%d requests in flight, negative span: %t", r.inFlight, r.negative)
	}
	ended := r.ended
	r.ended = nil
	return ended
}

// tryCall is call for handlers that drop the connection.
func tryCall(h http.Handler, r *http.Request) (w *httptest.ResponseRecorder, aborted bool) {
	w = httptest.NewRecorder()
	defer func() {
		if p := recover(); p != nil {
			err, ok := p.(error)
			if aborted = ok && errors.Is(err, http.ErrAbortHandler); !aborted {
				panic(p)
			}
		}
	}()
	h.ServeHTTP(w, r)
	return w, false
}

// TestRequestsAreCounted: each way for a request to end is told once, with the
// route's pattern and the status that was sent.
func TestRequestsAreCounted(t *testing.T) {
	rec := newRecorder()
	f := &fake{}
	options := Options{Log: zerolog.Nop(), Requests: rec, Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "# metrics\n")
	})}
	selection, slots, conductor := New(f, options), NewSlots(f, options), NewConductor(f, options)
	shed := &service.Error{Kind: service.Overloaded, Text: "busy", Message: "busy, please"}
	for _, tc := range []struct {
		h                    http.Handler
		method, target, body string
		err                  error
		panics               any
		want                 seen
	}{
		{h: selection, method: "GET", target: "/health", want: seen{"GET", "/health", 200}},
		{h: selection, method: "HEAD", target: "/health", want: seen{"HEAD", "/health", 200}},
		{h: selection, method: "GET", target: "/health?a=b", want: seen{"GET", "/health", 200}},
		{h: selection, method: "POST", target: "/select", body: "{}", want: seen{"POST", "/select", 200}},
		{h: selection, method: "POST", target: "/select", body: "{}", err: shed, want: seen{"POST", "/select", 503}},
		{h: selection, method: "POST", target: "/select", body: "{", want: seen{"POST", "/select", 400}},
		{h: selection, method: "POST", target: "/select", body: "[]", want: seen{"POST", "/select", 422}},
		{h: selection, method: "POST", target: "/select", body: strings.Repeat(" ", maxBody+1), want: seen{"POST", "/select", 413}},
		{h: selection, method: "POST", target: "/select", body: "{}", err: errors.New("lost"), want: seen{"POST", "/select", 500}},
		{h: selection, method: "POST", target: "/select", body: "{}", panics: "boom", want: seen{"POST", "/select", 500}},
		{h: selection, method: "POST", target: "/select", body: "{}", err: context.Canceled, want: seen{"POST", "/select", 499}},
		{h: selection, method: "POST", target: "/reservations", body: `{"reservation_id":"r","worker_id":1}`, want: seen{"POST", "/reservations", 201}},
		{h: selection, method: "DELETE", target: "/reservations/a%2Fb", want: seen{"DELETE", "/reservations/:reservation_id", 200}},
		{h: selection, method: "DELETE", target: "/workers/x", want: seen{"DELETE", "/workers/:worker_id", 400}},
		{h: selection, method: "DELETE", target: "/busy_threshold", want: seen{"DELETE", "/busy_threshold", 400}},
		{h: selection, method: "GET", target: "/ready", want: seen{"GET", "/ready", 503}},
		{h: selection, method: "GET", target: "/metrics", want: seen{"GET", "/metrics", 200}},
		{h: selection, method: "GET", target: "/dump", want: seen{"GET", "/dump", 200}},
		{h: selection, method: "GET", target: "/dump", err: errors.New("lost"), want: seen{"GET", "/dump", 500}},
		{h: selection, method: "GET", target: "/nope", want: seen{"", "", 404}},
		{h: selection, method: "BREW", target: "/select", want: seen{"", "", 405}},
		{h: selection, method: "PUT", target: "/workers/1", want: seen{"", "", 405}},
		{h: selection, method: "GET", target: "/slots/health", want: seen{"GET", "/slots/health", 200}},
		{h: selection, method: "GET", target: "/conductor/health", want: seen{"GET", "/conductor/health", 200}},
		{h: selection, method: "GET", target: "/conductor/nope", want: seen{"", "", 404}},
		{h: selection, method: "POST", target: "/conductor/query", body: "{", want: seen{"POST", "/conductor/query", 400}},
		{h: slots, method: "GET", target: "/loads", want: seen{"GET", "/loads", 200}},
		{h: slots, method: "GET", target: "/loads", panics: 7, want: seen{"GET", "/loads", 500}},
		{h: slots, method: "GET", target: "/select", want: seen{"", "", 404}},
		{h: conductor, method: "GET", target: "/services", want: seen{"GET", "/services", 200}},
		{h: conductor, method: "GET", target: "/query", want: seen{"", "", 405}},
	} {
		f.err, f.call = tc.err, nil
		if tc.panics != nil {
			f.call = func() { panic(tc.panics) }
		}
		call(t, tc.h, tc.method, tc.target, tc.body, nil)
		equal(t, tc.method+" "+tc.target, rec.take(t), []seen{tc.want}, exportAll)
	}
	call(t, selection, "POST", "/select", "{}", http.Header{})
	equal(t, "no content type", rec.take(t), []seen{{"POST", "/select", 415}}, exportAll)
}

// TestBrokenAnswersAreCounted: an answer that ends in the middle is told apart
// from a whole one, and says whose fault it was.
func TestBrokenAnswersAreCounted(t *testing.T) {
	rec := newRecorder()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		f      *fake
		ctx    context.Context
		status int
	}{
		"the source fails":        {&fake{dump: "{", err: errors.New("lost")}, t.Context(), 500},
		"the client goes":         {&fake{dump: "{", err: errors.New("broken pipe")}, gone, statusClientGone},
		"a panic after the start": {&fake{dump: "{", call: func() { panic("boom") }}, t.Context(), 500},
		"a handler that aborts":   {&fake{call: func() { panic(http.ErrAbortHandler) }}, t.Context(), 500},
	} {
		h := New(tc.f, Options{Log: zerolog.Nop(), Requests: rec})
		if _, aborted := tryCall(h, httptest.NewRequestWithContext(tc.ctx, "GET", "/dump", nil)); !aborted {
			t.Errorf("%s: the answer looks whole", name)
		}
		equal(t, name, rec.take(t), []seen{{"GET", "/dump", tc.status}}, exportAll)
	}
}

// TestClientGoneIsCounted: over a real connection, a selection whose client has
// gone ends, with its own status.
func TestClientGoneIsCounted(t *testing.T) {
	rec := newRecorder()
	s := &stuck{arrived: make(chan struct{}), gone: make(chan struct{})}
	base := start(t, s, func(o *Options) { o.Requests = rec })
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-s.arrived
		cancel()
	}()
	req, err := http.NewRequestWithContext(ctx, "POST", base+"/select", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if resp, err := http.DefaultClient.Do(req); err == nil {
		resp.Body.Close()
		t.Error("the request was answered")
	}
	select {
	case <-rec.end:
	case <-t.Context().Done():
	}
	equal(t, "ended", rec.take(t), []seen{{"POST", "/select", statusClientGone}}, exportAll)
}

// TestLabelsAreBounded: whatever clients ask for, method and route are those of
// the router, or empty.
func TestLabelsAreBounded(t *testing.T) {
	rec := newRecorder()
	e := newEngine(&fake{}, Options{Log: zerolog.Nop(), Requests: rec, Metrics: http.NotFoundHandler()})
	known := map[seen]bool{{}: true}
	routes := e.Routes()
	for _, r := range routes {
		known[seen{method: r.Method, route: r.Path}] = true
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	pick := func(of []string) string { return of[rnd.IntN(len(of))] }
	methods := []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "X", ""}
	pieces := []string{"/", "//", "..", "%2F", "%ff", ":worker_id", "*", "7", "x", "\x00", "ü", "/slots", "/conductor", "?", "a b"}
	matched := 0
	for range 20_000 {
		route := routes[rnd.IntN(len(routes))]
		method, path := route.Method, route.Path
		if rnd.IntN(2) == 0 {
			method = pick(methods)
		}
		for range rnd.IntN(4) {
			at := rnd.IntN(len(path) + 1)
			path = path[:at] + pick(pieces) + path[at:]
		}
		if rnd.IntN(8) == 0 {
			method += string(rune('A' + rnd.IntN(26)))
		}
		r := &http.Request{Method: method, URL: &url.URL{Path: path}, Header: http.Header{}, Body: http.NoBody, Host: "h"}
		if decoded, err := url.PathUnescape(path); err == nil {
			r.URL.Path, r.URL.RawPath = decoded, path
		}
		tryCall(e, r.WithContext(t.Context()))
		for _, s := range rec.take(t) {
			if s.status = 0; !known[s] {
				t.Fatalf("%q %q is told as %q %q", method, path, s.method, s.route)
			}
			if s.route != "" {
				matched++
			}
		}
	}
	if matched < 1000 {
		t.Errorf("only %d requests met a route", matched)
	}
}

// TestRequestID: the id of a request is on its answer, whatever the answer is,
// and an id that could do harm in a log or a header is nowhere.
func TestRequestID(t *testing.T) {
	long := strings.Repeat("x", maxRequestID)
	f := &fake{}
	options := Options{Log: zerolog.Nop(), Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "# metrics\n")
	})}
	handlers := map[string]http.Handler{"selection": New(f, options), "slots": NewSlots(f, options), "conductor": NewConductor(f, options)}
	requests := []struct {
		on, method, target, body string
		panics                   bool
		status                   int
	}{
		{"selection", "GET", "/health", "", false, 200},
		{"selection", "POST", "/select", "{}", false, 200},
		{"selection", "POST", "/select", "[]", false, 422},
		{"selection", "POST", "/select", strings.Repeat(" ", maxBody+1), false, 413},
		{"selection", "POST", "/select", "{}", true, 500},
		{"selection", "GET", "/nope", "", false, 404},
		{"selection", "GET", "/select", "", false, 405},
		{"selection", "GET", "/metrics", "", false, 200},
		{"selection", "GET", "/dump", "", false, 200},
		{"selection", "GET", "/conductor/health", "", false, 200},
		{"selection", "GET", "/conductor/nope", "", false, 404},
		{"slots", "GET", "/health", "", false, 200},
		{"slots", "GET", "/loads", "", true, 500},
		{"slots", "GET", "/nope", "", false, 404},
		{"conductor", "GET", "/health", "", false, 200},
		{"conductor", "POST", "/query", "{", false, 400},
		{"conductor", "GET", "/nope", "", false, 404},
	}
	for _, id := range []struct {
		sent []string
		want []string
	}{
		{nil, nil},
		{[]string{"a"}, []string{"a"}},
		{[]string{`3f9c!"\#~{}`}, []string{`3f9c!"\#~{}`}},
		{[]string{long}, []string{long}},
		{[]string{"first", "second"}, []string{"first"}},
		{[]string{""}, nil},
		{[]string{long + "x"}, nil},
		{[]string{"a b"}, nil},
		{[]string{" a"}, nil},
		{[]string{"a\tb"}, nil},
		{[]string{"a\r\nX-Evil: 1"}, nil},
		{[]string{"a\x00"}, nil},
		{[]string{"a\x7f"}, nil},
		{[]string{"é"}, nil},
		{[]string{"", "second"}, nil},
	} {
		for _, r := range requests {
			f.call = nil
			if r.panics {
				f.call = func() { panic("boom") }
			}
			header := http.Header{"Content-Type": {"application/json"}}
			if id.sent != nil {
				header[requestIDHeader] = id.sent
			}
			w := call(t, handlers[r.on], r.method, r.target, r.body, header)
			if w.Code != r.status {
				t.Errorf("%s %s on %s: %d, want %d", r.method, r.target, r.on, w.Code, r.status)
			}
			if got := w.Header()[requestIDHeader]; !slices.Equal(got, id.want) {
				t.Errorf("%s %s on %s, sent %q: %q, want %q", r.method, r.target, r.on, id.sent, got, id.want)
			}
		}
	}
}

// logLine is what lines about requests have in common.
type logLine struct {
	Level, Message, Method, Route, Path, Remote string

	RequestID *string  `json:"request_id"`
	Status    int      `json:"status"`
	Bytes     *int     `json:"bytes"`
	Sent      *int     `json:"request_bytes"`
	Took      *float64 `json:"took"`
}

// TestLogLines: every line about a request says which one, at debug level there
// is one more for its end, and none has anything of the body.
func TestLogLines(t *testing.T) {
	var log bytes.Buffer
	f := &fake{}
	h := New(f, Options{Log: zerolog.New(&log).Level(zerolog.DebugLevel)})
	const secret = "424242"
	prompt := `{"token_ids":[` + secret + `]}`
	run := func(method, target, body, id string) []logLine {
		t.Helper()
		log.Reset()
		r := httptest.NewRequest(method, target, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		if id != "" {
			r.Header.Set("x-request-id", id)
		}
		tryCall(h, r)
		if strings.Contains(log.String(), secret) {
			t.Errorf("a prompt is in the log: %s", log.String())
		}
		var lines []logLine
		for text := range strings.Lines(log.String()) {
			var l logLine
			if err := json.Unmarshal([]byte(text), &l); err != nil {
				t.Fatalf("%v: %s", err, text)
			}
			if got := l.RequestID; (got == nil) != (id == "") || got != nil && *got != id {
				t.Errorf("request %q: %s", id, text)
			}
			if l.Message == "request" && (l.Level != "debug" || l.Bytes == nil || *l.Bytes < 0 || l.Sent == nil || l.Took == nil || *l.Took < 0 || l.Remote == "" || l.Path == "") {
				t.Errorf("access log lacks something: %s", text)
			}
			lines = append(lines, l)
		}
		return lines
	}
	show := func(lines []logLine) (out []string) {
		for _, l := range lines {
			out = append(out, strings.TrimSpace(l.Message+" "+l.Method+" "+l.Route))
		}
		return out
	}
	for _, id := range []string{"", `r-"1"`} {
		f.err, f.call, f.dump = nil, nil, ""
		lines := run("POST", "/select", prompt, id)
		equal(t, "served", show(lines), []string{"request POST /select"})
		if lines[0].Status != 200 || *lines[0].Sent != len(prompt) || *lines[0].Bytes == 0 {
			t.Errorf("access log: %+v", lines[0])
		}
		equal(t, "wrong shape", show(run("POST", "/select", `{"lora_name":`+secret+`}`, id)), []string{"request POST /select"})
		equal(t, "not found", show(run("BREW", "/nope", prompt, id)), []string{"request BREW"})
		equal(t, "pattern", show(run("DELETE", "/reservations/r", "", id)), []string{"request DELETE /reservations/:reservation_id"})
		f.err = errors.New("lost")
		equal(t, "failed", show(run("POST", "/select", prompt, id)), []string{"request failed POST /select", "request POST /select"})
		f.dump = "{"
		lines = run("GET", "/dump", "", id)
		equal(t, "broken off", show(lines), []string{"answer broken off GET /dump", "request GET /dump"})
		if lines[1].Status != 500 {
			t.Errorf("broken off: %+v", lines[1])
		}
		f.err, f.call = nil, func() { panic("boom") }
		equal(t, "panic", show(run("POST", "/select", prompt, id)), []string{"handler panicked POST /select", "request POST /select"})
	}
	h = New(f, Options{Log: zerolog.New(&log).Level(zerolog.InfoLevel)})
	f.call = nil
	equal(t, "above debug level", show(run("POST", "/select", prompt, "r")), []string(nil))
}

// TestObservingAllocatesNothing: counting a request and echoing its id costs no
// memory. (Of the whole handler that could not be said under the race detector,
// which empties pools.)
func TestObservingAllocatesNothing(t *testing.T) {
	c, _ := gin.CreateTestContext(&discard{header: http.Header{}})
	c.Request = httptest.NewRequest("GET", "/health", nil)
	c.Request.Header.Set(requestIDHeader, "3f9c")
	a := api{log: zerolog.New(io.Discard).Level(zerolog.InfoLevel), requests: ignorer{}}
	observe := gin.HandlerFunc(a.observe)
	if n := testing.AllocsPerRun(100, func() { observe(c) }); n != 0 {
		t.Errorf("%v allocations per request", n)
	}
	if got := c.Writer.Header().Get(requestIDHeader); got != "3f9c" {
		t.Errorf("the id is not echoed: %q", got)
	}
}
