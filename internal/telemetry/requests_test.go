package telemetry

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/selection/counts"
	"github.com/select-service/select-service/internal/telemetry/metrics"
)

// TestRequests: known requests give exactly these series.
func TestRequests(t *testing.T) {
	r := NewRequests()
	s, c := r.Listener("selection"), r.Listener("conductor")
	if r.Listener("selection") != s {
		t.Fatal("a listener has two sets of counters")
	}
	end := func(l *Listener, method, route string, status int, took time.Duration) {
		l.Begin()
		l.End(method, route, status, took, metrics.Example{})
	}
	end(s, "POST", "/select", 200, 100*time.Microsecond)
	end(s, "POST", "/select", 200, time.Minute)
	end(s, "POST", "/select", 503, 300*time.Microsecond)
	end(s, "", "", 404, 0)
	end(s, "", "", 405, 0)
	end(s, "GET", "/x", 99, 0)
	end(s, "GET", "/x", 600, 0)
	end(s, "POST", "/conductor/query", 200, 0)
	end(s, "GET", "/conductor", 200, 0) // no route of the API
	end(c, "POST", "/query", 400, 0)
	end(c, "GET", "/services", 200, 250*time.Millisecond)
	end(c, "", "", 404, 0)
	s.Begin()
	body := scrape(t, Handler("", false, r, DynamoIndexerRequests{r}))
	for _, want := range []string{
		`select_service_http_requests_in_flight{listener="selection"} 1`,
		`select_service_http_requests_in_flight{listener="conductor"} 0`,
		`select_service_http_requests_total{code="200",listener="selection",method="POST",route="/select"} 2`,
		`select_service_http_requests_total{code="503",listener="selection",method="POST",route="/select"} 1`,
		`select_service_http_requests_total{code="404",listener="selection",method="",route=""} 1`,
		`select_service_http_requests_total{code="405",listener="selection",method="",route=""} 1`,
		`select_service_http_requests_total{code="other",listener="selection",method="GET",route="/x"} 2`,
		`select_service_http_requests_total{code="400",listener="conductor",method="POST",route="/query"} 1`,
		`select_service_http_request_duration_seconds_bucket{listener="selection",method="POST",route="/select",le="0.0001"} 1`,
		`select_service_http_request_duration_seconds_bucket{listener="selection",method="POST",route="/select",le="0.0004"} 2`,
		`select_service_http_request_duration_seconds_bucket{listener="selection",method="POST",route="/select",le="52.4288"} 2`,
		`select_service_http_request_duration_seconds_count{listener="selection",method="POST",route="/select"} 3`,
		`select_service_http_request_duration_seconds_sum{listener="conductor",method="GET",route="/services"} 0.25`,
		`dynamo_kvindexer_requests_total{endpoint="/query",method="POST"} 2`,
		`dynamo_kvindexer_requests_total{endpoint="/services",method="GET"} 1`,
		`dynamo_kvindexer_errors_total{endpoint="/query",status_class="4xx"} 1`,
		`dynamo_kvindexer_request_duration_seconds_count{endpoint="/query"} 2`,
	} {
		if !strings.Contains(body, want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	if n := strings.Count(body, "\ndynamo_kvindexer_requests_total"); n != 2 {
		t.Errorf("%d endpoints of the indexer's API, want 2", n)
	}
}

// TestEndpointsAreBounded: whatever routes there are, a listener has only so
// many series, and no request goes uncounted.
func TestEndpointsAreBounded(t *testing.T) {
	r := NewRequests()
	l := r.Listener("x")
	const n = 2 * maxEndpoints
	for i := range n {
		l.End("GET", fmt.Sprint("/", i), 200, 0, metrics.Example{})
	}
	total := uint64(0)
	for _, a := range *l.routes.Load() {
		total += a.took.Count()
	}
	if got := len(*l.routes.Load()); got > maxEndpoints+1 || total != n {
		t.Errorf("%d endpoints with %d requests", got, total)
	}
}

// TestRequestsInParallel: requests are counted while metrics are scraped.
func TestRequestsInParallel(t *testing.T) {
	r := NewRequests()
	m := Handler("", false, r, DynamoIndexerRequests{r})
	const clients, each = 4, 300
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			l := r.Listener(fmt.Sprint("l", i%2))
			for n := range each {
				l.Begin()
				l.End("GET", fmt.Sprint("/", n%30), 200, time.Microsecond, metrics.Example{})
			}
		})
	}
	for range 10 {
		scrape(t, m)
	}
	wg.Wait()
	total := 0
	for _, found := range regexp.MustCompile(`http_requests_total{.*} (\d+)`).FindAllStringSubmatch(scrape(t, m), -1) {
		n := 0
		_, _ = fmt.Sscan(found[1], &n)
		total += n
	}
	if total != clients*each {
		t.Errorf("%d requests, want %d", total, clients*each)
	}
}

// TestAliases holds the aliases against a scrape of dynamo.indexer 1.6.1, after
// some requests and events: names, types, help texts, labels, bounds of
// histograms. The record leaves out durations of most endpoints, and a metrics.Family
// about a filter that there is none of here.
func TestAliases(t *testing.T) {
	record, err := os.ReadFile("testdata/dynamo_indexer.txt")
	if err != nil {
		t.Fatal(err)
	}
	theirs := shapes(string(record))
	r := NewRequests()
	r.Listener("conductor").End(http.MethodPost, "/query", 404, 3*time.Millisecond, metrics.Example{})
	aliases := oneOfEach(indexerFamilies.All)
	ours := shapes(scrape(t, Handler("", false, oneOfEach(counts.Families.All), aliases, DynamoIndexerRequests{r})))
	off := shapes(scrape(t, Handler("", false, oneOfEach(counts.Families.All))))
	for name, want := range theirs {
		if got := ours[name]; !slices.Equal(got, want) {
			t.Errorf("%s is\n%q, want\n%q", name, got, want)
		}
		if off[name] != nil {
			t.Errorf("%s is there without being asked for", name)
		}
	}
	if len(theirs) != 8 {
		t.Errorf("%d families are recorded", len(theirs))
	}
}

var sampleLine = regexp.MustCompile(`^([a-z_]+?)(?:_bucket|_sum|_count)?(\{.*\})? `)

// shapes returns for each family the help and type lines, the names of labels,
// and the bounds of buckets, in order and each once.
func shapes(body string) map[string][]string {
	all := make(map[string][]string)
	add := func(name, what string) {
		if !slices.Contains(all[name], what) {
			all[name] = append(all[name], what)
		}
	}
	for line := range strings.Lines(body) {
		if !strings.Contains(line, "dynamo_kv") {
			continue
		}
		if f := strings.Fields(line); f[0] == "#" {
			add(f[2], line)
			continue
		}
		m := sampleLine.FindStringSubmatch(line)
		for _, l := range regexp.MustCompile(`(\w+)="([^"]*)"`).FindAllStringSubmatch(m[2], -1) {
			if l[1] == "le" {
				l[1] += l[2]
			}
			add(m[1], l[1])
		}
	}
	for _, found := range all {
		slices.Sort(found)
	}
	return all
}

// TestEndAllocatesNothing, after the first request of an endpoint.
func TestEndAllocatesNothing(t *testing.T) {
	l := NewRequests().Listener("selection")
	if n := testing.AllocsPerRun(100, func() {
		l.Begin()
		l.End(http.MethodPost, "/select", 200, time.Millisecond, metrics.Example{})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkRequestsEnd is what a request costs to count.
func BenchmarkRequestsEnd(b *testing.B) {
	l := NewRequests().Listener("selection")
	for i := range 40 {
		l.End(http.MethodGet, fmt.Sprint("/", i), 200, 0, metrics.Example{})
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			l.Begin()
			l.End(http.MethodPost, "/select_and_reserve", 200, time.Millisecond, metrics.Example{})
		}
	})
	_, _ = fmt.Fprint(io.Discard, l.inFlight.Load())
}

// TestExemplars: a bucket shows the trace of its latest value that has one, in OpenMetrics only, and
// only where it is asked for.
func TestExemplars(t *testing.T) {
	r := NewRequests()
	l := r.Listener("selection")
	for _, trace := range []string{"a", "b", ""} {
		of := metrics.Example{}
		if trace != "" {
			of = metrics.Example{TraceID: trace, SpanID: "s"}
		}
		l.Begin()
		l.End(http.MethodPost, "/select", 200, time.Millisecond, of)
	}
	for _, c := range []struct{ exemplars, openMetrics, want bool }{{true, true, true}, {true, false, false}, {false, true, false}} {
		req := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		if c.openMetrics {
			req.Header.Set("Accept", "application/openmetrics-text;version=1.0.0")
		}
		rec := httptest.NewRecorder()
		Handler("", c.exemplars, r).ServeHTTP(rec, req)
		body := rec.Body.String()
		if got := strings.Contains(body, `trace_id="b"`); got != c.want {
			t.Errorf("%+v: %v in\n%s", c, got, body)
		}
		if strings.Contains(body, `trace_id="a"`) {
			t.Error("an older exemplar is shown")
		}
	}
}
