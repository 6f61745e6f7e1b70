package httpapi

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/selection"
)

// start serves f on a real listener.
func start(t testing.TB, f Service, change ...func(*Options)) (base string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Log: zerolog.Nop()}
	for _, f := range change {
		f(&o)
	}
	srv := NewServer(New(f, nil, o), zerolog.Nop())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	t.Cleanup(func() {
		_ = srv.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve: %v", err)
		}
	})
	return "http://" + ln.Addr().String()
}

func send(t testing.TB, method, url string, body io.Reader) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

// TestOverTheWire: what only shows with real connections.
func TestOverTheWire(t *testing.T) {
	loads := make([]selection.RankLoad, 1000)
	base := start(t, &fake{loads: loads, dump: `{"a:b":{}}`})

	resp, text := send(t, "GET", base+"/health", nil)
	if text != `{"status":"ok"}` || resp.ContentLength != 15 {
		t.Errorf("GET /health: %q, length %d", text, resp.ContentLength)
	}
	for _, path := range []string{"/health", "/workers", "/loads", "/replica_sync/peers", "/dump"} {
		if resp, text := send(t, "HEAD", base+path, nil); resp.StatusCode != 200 || text != "" {
			t.Errorf("HEAD %s: %d %q", path, resp.StatusCode, text)
		}
	}
	if resp, _ := send(t, "HEAD", base+"/ready", nil); resp.StatusCode != 503 {
		t.Errorf("HEAD /ready: %d", resp.StatusCode)
	}
	resp, text = send(t, "POST", base+"/potential_loads", strings.NewReader("{}"))
	if resp.ContentLength != int64(len(text)) || len(text) < 100_000 {
		t.Errorf("long answer: length %d, announced %d", len(text), resp.ContentLength)
	}
	// Without a Content-Length the limit counts what comes.
	chunked := func(n int) io.Reader {
		return io.MultiReader(strings.NewReader(strings.Repeat(" ", n-2)), strings.NewReader("{}"))
	}
	if resp, _ := send(t, "POST", base+"/select", chunked(maxBody)); resp.StatusCode != 200 {
		t.Errorf("chunked body of the limit: %d", resp.StatusCode)
	}
	if resp, _ := send(t, "POST", base+"/select", chunked(maxBody+1)); resp.StatusCode != 413 {
		t.Errorf("chunked body over the limit: %d", resp.StatusCode)
	}
}

// deadlines is an answer whose connection records its read deadlines.
type deadlines struct {
	*httptest.ResponseRecorder
	set []time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.set = append(d.set, t)
	return nil
}

// TestUnreadBodies: also a body that no route reads has to come within bodyTimeout:
// net/http waits for it before it answers.
func TestUnreadBodies(t *testing.T) {
	h := New(new(fake), fakeConductor{}, Options{})
	for _, r := range []*http.Request{
		httptest.NewRequest(http.MethodGet, "/health", strings.NewReader("x")),
		httptest.NewRequest(http.MethodDelete, "/reservations/r", strings.NewReader("x")),
		httptest.NewRequest(http.MethodPost, "/none", strings.NewReader("x")),
		httptest.NewRequest(http.MethodPost, "/select", io.MultiReader(strings.NewReader("x"))), // chunked
	} {
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		h.ServeHTTP(w, r)
		if len(w.set) != 1 || time.Until(w.set[0]) > bodyTimeout || w.set[0].IsZero() {
			t.Errorf("%s %s: read deadlines %v", r.Method, r.URL, w.set)
		}
	}
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/health", http.NoBody))
	if len(w.set) != 0 {
		t.Errorf("without a body: read deadlines %v", w.set)
	}
}

// TestOptionsStar: the server's general OPTIONS handler is off.
func TestOptionsStar(t *testing.T) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(start(t, &fake{}), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n")
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "404") {
		t.Errorf("OPTIONS *: %q, %v", line, err)
	}
}

// TestBrokenDump: a dump that fails in the middle must not look complete.
func TestBrokenDump(t *testing.T) {
	base := start(t, &fake{dump: strings.Repeat("x", 1<<20), err: errors.New("lost")})
	if _, err := fetchAll(t, base+"/dump"); err == nil {
		t.Error("a broken dump reads to its end")
	}
}

// fetchAll reads an answer to its end.
func fetchAll(t testing.TB, url string) ([]byte, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

// TestConcurrentRequests: pooled memory does not mix requests up.
func TestConcurrentRequests(t *testing.T) {
	base := start(t, echo{})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			id := strings.Repeat(string(rune('a'+i)), 1+i*700)
			for range 50 {
				_, text := send(t, "POST", base+"/select_and_reserve", strings.NewReader(`{"reservation_id":"`+id+`"}`))
				if !strings.Contains(text, `"reservation_id":"`+id+`"`) {
					t.Errorf("request %d got %.80s", i, text)
				}
			}
		})
	}
	wg.Wait()
}

// echo answers a selection with the request's own ids. It has no state.
type echo struct{ Service }

func (echo) Select(_ context.Context, req *selection.SelectRequest, _ bool) (selection.Selection, error) {
	return selection.Selection{SelectionID: req.SelectionID, ReservationID: req.ReservationID, Scope: req.Scope}, nil
}
