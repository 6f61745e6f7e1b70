package httpapi

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/internal/telemetry/metrics"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector"
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
	refused  []string
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

func (r *recorder) Refused(limit string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refused = append(r.refused, limit)
}

func (r *recorder) End(method, route string, status int, took time.Duration, _ metrics.Example) {
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
	selection, slots, conductor := New(f, f.conductor(), options), NewSlots(f, options), NewConductor(f.conductor(), options)
	shed := &contract.Error{Kind: contract.Overloaded, Text: "busy", Message: "busy, please"}
	gone := &contract.Error{Kind: contract.Cancelled, Text: "the client went away", Err: context.Canceled}
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
		{h: selection, method: "POST", target: "/select", body: "{}", err: gone, want: seen{"POST", "/select", 499}},
		{h: slots, method: "POST", target: "/free", body: `{"model_name":"m","request_id":"r"}`, err: gone, want: seen{"POST", "/free", 499}},
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
		h := New(tc.f, tc.f.conductor(), Options{Log: zerolog.Nop(), Requests: rec})
		if _, aborted := tryCall(h, httptest.NewRequestWithContext(tc.ctx, "GET", "/dump", nil)); !aborted {
			t.Errorf("%s: the answer looks whole", name)
		}
		equal(t, name, rec.take(t), []seen{{"GET", "/dump", tc.status}}, exportAll)
	}
}

// TestClientGone: over a real connection, a selection whose client goes away while
// it waits in the queue ends, with its own status, and leaves the queue.
func TestClientGone(t *testing.T) {
	svc := node.New(node.Config{
		Threads: 1, Selection: selection.Config{Weights: selector.DefaultWeights()}, Scopes: scopes.Settings{Admission: admission.Config{Threshold: ptr(0.0)}},
	}, nil, zerolog.Nop())
	_, err := svc.UseCases.PutWorker(catalog.Record{
		ID: 1, Scope: defaultScope, Endpoint: ptr("http://w"), BlockSize: ptr[uint32](4), MaxNumBatchedTokens: ptr[uint64](100),
	})
	if err != nil {
		t.Fatal(err)
	}
	rec := newRecorder()
	base := start(t, svc.UseCases, func(o *Options) { o.Requests = rec })
	ended := func() []seen {
		t.Helper()
		select {
		case <-rec.end:
		case <-time.After(2 * time.Minute):
			t.Fatal("the request does not end")
		}
		return rec.take(t)
	}
	const prompt = `{"token_ids":[1,2,3,4]}`
	if resp, text := send(t, "POST", base+"/select_and_reserve", strings.NewReader(prompt)); resp.StatusCode != 200 {
		t.Fatalf("%d %s", resp.StatusCode, text)
	}
	ended()
	waiting := func() int { return svc.UseCases.Loads(nil, nil)[0].PendingCount }
	for _, path := range []string{"/select", "/select_and_reserve"} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		var client sync.WaitGroup
		client.Go(func() {
			defer cancel()
			for waiting() == 0 && ctx.Err() == nil {
				runtime.Gosched()
			}
		})
		req, err := http.NewRequestWithContext(ctx, "POST", base+path, strings.NewReader(prompt))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
			t.Error("the request was answered")
		}
		cancel()
		client.Wait()
		equal(t, "ended", ended(), []seen{{"POST", path, statusClientGone}}, exportAll)
		if n := waiting(); n != 0 {
			t.Errorf("%d requests still wait", n)
		}
	}
}

// TestClientGoneInItsBody: over a real connection, a client that goes before its
// body is whole is no bad request.
func TestClientGoneInItsBody(t *testing.T) {
	rec := newRecorder()
	base := start(t, &fake{}, func(o *Options) { o.Requests = rec })
	for _, head := range []string{"Content-Length: 100", "Transfer-Encoding: chunked"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.WriteString(conn, "POST /select HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"+head+"\r\n\r\n1\r\n{\r\n")
		if err := errors.Join(err, conn.Close()); err != nil {
			t.Fatal(err)
		}
		select {
		case <-rec.end:
		case <-time.After(2 * time.Minute):
			t.Fatal("the request does not end")
		}
		equal(t, head, rec.take(t), []seen{{"POST", "/select", statusClientGone}}, exportAll)
	}
}

// TestLabelsAreBounded: whatever clients ask for, method and route are those of
// the router, or empty.
func TestLabelsAreBounded(t *testing.T) {
	rec := newRecorder()
	e := newEngine(&fake{}, (&fake{}).conductor(), Options{Log: zerolog.Nop(), Requests: rec, Metrics: http.NotFoundHandler()})
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
	handlers := map[string]http.Handler{"selection": New(f, f.conductor(), options), "slots": NewSlots(f, options), "conductor": NewConductor(f.conductor(), options)}
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

// TestObservingAllocatesNothing: counting a request and echoing its id costs no
// memory. (The whole handler allocates more under the race detector,
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
