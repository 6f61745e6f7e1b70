package load

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/engines"
	"github.com/select-service/select-service/internal/transport/certs"
	"github.com/select-service/select-service/pkg/catalog"
)

const goodPage = "vllm:num_requests_running{engine=\"0\"} 3\n"

// answering answers the requests of a Scraper.
type answering func(*http.Request) (*http.Response, error)

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) { return a(r) }

func answer(status int, text string) (*http.Response, error) {
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(text)), Header: make(http.Header)}, nil
}

// scraping runs a Scraper in a bubble of fake time.
func scraping(t *testing.T, e answering, play func(s *Scraper, to *sink)) {
	synctest.Test(t, func(t *testing.T) {
		to := new(sink)
		s := NewScraper(engines.NewClientOver(e), to, NewCounters())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		play(s, to)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func pageOf(url string, interval time.Duration) []catalog.LoadPage {
	return []catalog.LoadPage{{URL: url, Interval: interval, Ranks: 1}}
}

// TestScrapeInterval: a page is read once in its interval, and reports nothing once its worker has
// it no longer.
func TestScrapeInterval(t *testing.T) {
	scraping(t, func(*http.Request) (*http.Response, error) { return answer(200, goodPage) }, func(s *Scraper, to *sink) {
		s.Set(1, pageOf("http://h/metrics", 2*time.Second))
		time.Sleep(20 * time.Second)
		s.Set(1, pageOf("http://h/metrics", 2*time.Second)) // the same
		synctest.Wait()
		if got := to.took(); len(got) != 10 || got[0] != "1/0 scrape: running 3" {
			t.Errorf("%q", got)
		}
		s.Set(1, nil)
		s.Set(2, nil)
		time.Sleep(20 * time.Second)
		if got := to.took(); !slices.Equal(got, []string{"1/0 scrape: removed"}) {
			t.Errorf("%q", got)
		}
		if good, failing := s.Pages(); good+failing > 0 {
			t.Errorf("%d and %d pages", good, failing)
		}
	})
}

// TestScrapeBackOff: a page that fails is read less and less often, down to once a minute, and at
// its interval again once it answers. The sink is told of each failure that is no lack of an answer
// (TestScrapeBounds).
func TestScrapeBackOff(t *testing.T) {
	var at []time.Time
	var down atomic.Bool
	down.Store(true)
	scraping(t, func(*http.Request) (*http.Response, error) {
		at = append(at, time.Now())
		if down.Load() {
			return answer(503, "")
		}
		return answer(200, goodPage)
	}, func(s *Scraper, to *sink) {
		s.Set(1, pageOf("http://h/metrics", 2*time.Second))
		time.Sleep(5 * time.Minute)
		if got := to.took(); len(got) < 8 || slices.ContainsFunc(got, func(line string) bool { return line != "1/0 scrape: paused" }) {
			t.Errorf("%q", got)
		}
		if good, failing := s.Pages(); good != 0 || failing != 1 {
			t.Errorf("%d and %d pages", good, failing)
		}
		down.Store(false)
		time.Sleep(70 * time.Second)
		synctest.Wait()
		gaps := make([]time.Duration, 0, len(at))
		for i := range at[1:] {
			gaps = append(gaps, at[i+1].Sub(at[i]))
		}
		if want := []time.Duration{4, 8, 16, 32, 60, 60, 60, 60}; len(gaps) < 12 || !slices.Equal(gaps[:8], seconds(want)) || gaps[len(gaps)-1] != 2*time.Second {
			t.Errorf("read after %v", gaps)
		}
		if good, failing := s.Pages(); good != 1 || failing != 0 {
			t.Errorf("%d and %d pages", good, failing)
		}
		if n := s.counters.scrapes[ScrapeStatus].Load(); n < 8 {
			t.Errorf("%d scrapes with a status", n)
		}
	})
}

func seconds(of []time.Duration) []time.Duration {
	for i := range of {
		of[i] *= time.Second
	}
	return of
}

// TestScrapeBounds: one page of a worker at a time, 64 over all, each given up after a second.
func TestScrapeBounds(t *testing.T) {
	var running, most atomic.Int64
	perWorker := make([]atomic.Int64, 200)
	scraping(t, func(r *http.Request) (*http.Response, error) {
		var worker int
		if _, err := fmt.Sscanf(r.URL.Host, "w%d", &worker); err != nil {
			t.Error(err)
		}
		if perWorker[worker].Add(1) > 1 {
			t.Errorf("two pages of worker %d at a time", worker)
		}
		n := running.Add(1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		begun := time.Now()
		<-r.Context().Done() // it hangs
		if took := time.Since(begun); took > time.Second {
			t.Errorf("given up after %v", took)
		}
		running.Add(-1)
		perWorker[worker].Add(-1)
		return nil, r.Context().Err()
	}, func(s *Scraper, to *sink) {
		for worker := range uint64(200) {
			s.Set(worker, []catalog.LoadPage{
				{URL: fmt.Sprintf("http://w%d/a", worker), Interval: 250 * time.Millisecond, Ranks: 1},
				{URL: fmt.Sprintf("http://w%d/b", worker), Interval: 250 * time.Millisecond, FirstRank: 1, Ranks: 1},
			})
		}
		time.Sleep(30 * time.Second)
		if n := most.Load(); n != 64 {
			t.Errorf("%d pages at a time, want 64", n)
		}
		if n := s.counters.scrapes[ScrapeTimeout].Load(); n < 400 {
			t.Errorf("%d timeouts, want one of each page at least", n)
		}
		if got := to.took(); len(got) > 0 {
			t.Errorf("%q", got)
		}
	})
}

// TestScrapeRemovedMeanwhile: what arrives of a page that is no longer the worker's is not told.
func TestScrapeRemovedMeanwhile(t *testing.T) {
	var begun, finish chan bool
	scraping(t, func(*http.Request) (*http.Response, error) {
		begun <- true
		<-finish
		return answer(200, goodPage)
	}, func(s *Scraper, to *sink) {
		begun, finish = make(chan bool), make(chan bool) // of the bubble
		s.Set(1, pageOf("http://h/metrics", time.Second))
		<-begun
		s.Set(1, pageOf("http://other/metrics", time.Hour))
		finish <- true
		synctest.Wait()
		if got := to.took(); !slices.Equal(got, []string{"1/0 scrape: removed"}) {
			t.Errorf("%q", got)
		}
	})
}

// one scrapes a page of a real server once.
func one(t *testing.T, access engines.Access, url string) (result ScrapeResult, told []string) {
	t.Helper()
	to := new(sink)
	s := NewScraper(engines.NewClient(access), to, NewCounters())
	t.Cleanup(s.client.Close)
	s.patience = time.Minute // the machine may be busy
	target := &target{worker: 1}
	target.ctx, target.cancel = context.WithCancel(t.Context())
	defer target.cancel()
	return s.scrape(t.Context(), &page{LoadPage: pageOf(url, time.Second)[0], of: target}), to.took()
}

// TestScrapeServers: what servers may do, and what they may not make the service do.
func TestScrapeServers(t *testing.T) {
	var asked atomic.Int64 // of another host
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(other.Close)
	mux := http.NewServeMux()
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" || r.Header.Get("Accept-Encoding") != "" {
			t.Errorf("header %v", r.Header)
		}
		_, _ = io.WriteString(w, goodPage)
	})
	mux.HandleFunc("/slash", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/metrics", http.StatusTemporaryRedirect)
	})
	mux.HandleFunc("/loop", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/loop", http.StatusFound) })
	mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, http.StatusFound) })
	mux.HandleFunc("/huge", func(w http.ResponseWriter, _ *http.Request) {
		for range 1 << 14 { // 1 GiB, unless the reader leaves
			if _, err := w.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
		t.Error("all of a gigabyte was read")
	})
	mux.HandleFunc("/error", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, goodPage, http.StatusInternalServerError) })
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	for path, want := range map[string]ScrapeResult{
		"/metrics": ScrapeOK, "/slash": ScrapeOK, "/loop": ScrapeUnreachable, "/away": ScrapeRedirect,
		"/huge": ScrapeTooLarge, "/error": ScrapeStatus, "/none": ScrapeStatus,
	} {
		got, told := one(t, engines.Access{}, s.URL+path)
		line := "1/0 scrape: paused"
		if want == ScrapeOK {
			line = "1/0 scrape: running 3"
		}
		if got != want || !slices.Equal(told, []string{line}) {
			t.Errorf("%s: %s, told %q; want %s", path, got, told, want)
		}
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("another host was asked %d times", n)
	}
	s.Close()
	if got, _ := one(t, engines.Access{}, s.URL+"/metrics"); got != ScrapeUnreachable {
		t.Errorf("a server that is away: %s", got)
	}
}

// TestScrapeAllowed: addresses are checked by the policy when they are connected to, whatever the
// name is.
func TestScrapeAllowed(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, goodPage) }))
	t.Cleanup(s.Close)
	named := strings.Replace(s.URL, "127.0.0.1", "localhost", 1)
	for _, tc := range []struct {
		url, rule string
		want      ScrapeResult
	}{
		{s.URL, "tcp://127.0.0.0/8:5557", ScrapeOK},
		{s.URL, "tcp://10.0.0.0/8", ScrapeRefused},
		{named, "tcp://10.0.0.0/8", ScrapeRefused},
		{named, "tcp://localhost:5557", ScrapeOK},
	} {
		rule, err := catalog.ParseEndpointRule(tc.rule)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := one(t, engines.Access{Dialer: engines.Dialer{Endpoints: catalog.EndpointPolicy{Allowed: []catalog.EndpointRule{rule}}}}, tc.url); got != tc.want {
			t.Errorf("%s with %s: %s, want %s", tc.url, tc.rule, got, tc.want)
		}
	}
}

// TestScrapeTLS: a page over https is read if the engine's certificate is trusted; the token is
// sent.
func TestScrapeTLS(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, goodPage)
	}))
	t.Cleanup(s.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	side, err := certs.Load("certificates for engines", certs.Files{CA: ca})
	if err != nil {
		t.Fatal(err)
	}
	token := func() string { return "secret" }
	if got, told := one(t, engines.Access{Dialer: engines.Dialer{Certificates: side}, Token: token}, s.URL); got != ScrapeOK || len(told) != 1 {
		t.Errorf("%s, told %q", got, told)
	}
	if got, _ := one(t, engines.Access{Dialer: engines.Dialer{Certificates: side}}, s.URL); got != ScrapeStatus {
		t.Errorf("without the token: %s", got)
	}
	if got, _ := one(t, engines.Access{Token: token}, s.URL); got != ScrapeUnreachable {
		t.Errorf("without the authority: %s", got)
	}
}

// BenchmarkScrape is one page of a real engine's size over a kept connection, server included.
func BenchmarkScrape(b *testing.B) {
	text := goodPage + strings.Repeat("vllm:request_prompt_tokens_bucket{engine=\"0\",le=\"1000.0\",model_name=\"meta-llama/Llama-3.1-8B-Instruct\"} 17.0\n", 600)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(text))) // as engines' servers do
		_, _ = io.WriteString(w, text)
	}))
	b.Cleanup(s.Close)
	scraper := NewScraper(engines.NewClient(engines.Access{}), new(sink), NewCounters())
	target := &target{worker: 1, ctx: b.Context(), cancel: func() {}}
	p := &page{LoadPage: pageOf(s.URL, time.Second)[0], of: target}
	b.ReportAllocs()
	for b.Loop() {
		if got := scraper.scrape(b.Context(), p); got != ScrapeOK {
			b.Fatal(got)
		}
	}
}
