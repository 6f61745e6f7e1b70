package telemetry

import (
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/select-service/select-service/internal/engines/load"
	"github.com/select-service/select-service/internal/fleet"
	"github.com/select-service/select-service/internal/fleet/bus"
	"github.com/select-service/select-service/internal/selection/counts"
	"github.com/select-service/select-service/internal/server/connections"
	gateway "github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/internal/telemetry/metrics"
	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/internal/workers/kubernetes"
)

var rewrite = flag.Bool("rewrite", false, "write golden files")

// declared are the families of all collectors, by whether they are shown only
// with Dynamo's aliases.
func declared(aliases bool) []metrics.Family {
	lists := []*metrics.Families{
		&workerFamilies, &workersFileFamilies, &rankFamilies, &scopeFamilies, &reservationFamilies, &counts.Families, &decisionFamilies,
		&eventFamilies, &conductorFamilies, &replicaFamilies, &recoveryFamilies, &snapshotFamilies, &requestFamilies, &buildFamilies, &processFamilies, &memoryFamilies, &scannedFamilies, &socketFamilies, &predictionFamilies, &fairnessFamilies, &kubernetes.Families, &gateway.Families, &gateway.ProxyFamilies, &connections.Families, &engineFamilies, &saturationFamilies, &descriptionFamilies, &load.Families, &bus.Families, &fleet.Families, &tracing.Families,
	}
	if aliases {
		lists = []*metrics.Families{&indexerFamilies, &indexerRequestFamilies}
	}
	var all []metrics.Family
	for _, list := range lists {
		all = append(all, list.All...)
	}
	slices.SortFunc(all, func(a, b metrics.Family) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// typeOf is the family's type as Prometheus names it.
func typeOf(f metrics.Family) string {
	switch f.Kind {
	case prometheus.CounterValue:
		return "counter"
	case prometheus.GaugeValue:
		return "gauge"
	case prometheus.UntypedValue:
	}
	return "histogram"
}

// TestFamilies compares what is declared with golden files: names, types, help
// texts, labels.
func TestFamilies(t *testing.T) {
	for name, aliases := range map[string]bool{"families": false, "aliases": true} {
		var got strings.Builder
		for _, f := range declared(aliases) {
			labels := slices.Sorted(slices.Values(f.Labels))
			fmt.Fprintf(&got, "# HELP %s %s\n# TYPE %s %s\n%s{%s}\n", f.Name, f.Help, f.Name, typeOf(f), f.Name, strings.Join(labels, ","))
		}
		golden := "testdata/" + name + ".golden"
		if *rewrite {
			if err := os.WriteFile(golden, []byte(got.String()), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if got.String() != string(want) {
			t.Errorf("families changed (-rewrite writes %s):\n%s", golden, got.String())
		}
	}
}

// oneOfEach collects one sample of each family.
type oneOfEach []metrics.Family

func (e oneOfEach) Describe(ch chan<- *prometheus.Desc) { (&metrics.Families{All: e}).Describe(ch) }

func (e oneOfEach) Collect(ch chan<- prometheus.Metric) {
	for _, f := range e {
		if typeOf(f) == "histogram" {
			metrics.SendHistogram(ch, f, metrics.NewHistogram([]float64{1}), f.Labels...)
		} else {
			metrics.Send(ch, f, 1, f.Labels...)
		}
	}
}

// TestLint holds names and help texts against Prometheus' own rules. Dynamo's
// names break them.
func TestLint(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(oneOfEach(declared(false)))
	problems, err := testutil.GatherAndLint(registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if !strings.HasPrefix(p.Metric, "dynamo_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// TestNoSubjects: runtime, process and build are always there.
func TestNoSubjects(t *testing.T) {
	body := scrape(t, Handler("1.2.3", false))
	for _, name := range []string{"go_goroutines", "process_open_fds", "go_build_info", `select_service_build_info{version="1.2.3"} 1`} {
		if !strings.Contains(body, "\n"+name) {
			t.Errorf("%s is missing", name)
		}
	}
}

// collector sends what a function sends, of families of its own.
type collector struct {
	metrics.Families
	collect func(chan<- prometheus.Metric)
}

func (c *collector) Collect(ch chan<- prometheus.Metric) { c.collect(ch) }

// TestBadSample: labels that do not fit, and series that are there twice, fail
// the scrape and not the process.
func TestBadSample(t *testing.T) {
	var c collector
	g, h := c.Gauge("gauge", "Help.", "label"), c.Histogram("histogram", "Help.", "label")
	for name, collect := range map[string]func(chan<- prometheus.Metric){
		"labels":    func(ch chan<- prometheus.Metric) { metrics.Send(ch, g, 1, "a", "b") },
		"histogram": func(ch chan<- prometheus.Metric) { metrics.SendHistogram(ch, h, metrics.NewHistogram(nil), "a", "b") },
		"twice": func(ch chan<- prometheus.Metric) {
			metrics.Send(ch, g, 1, "a")
			metrics.Send(ch, g, 2, "a")
		},
		"no UTF-8": func(ch chan<- prometheus.Metric) { metrics.Send(ch, g, 1, "\xff") },
	} {
		c.collect = collect
		rec := httptest.NewRecorder()
		Handler("", false, &c).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		if rec.Code != http.StatusInternalServerError {
			t.Errorf("%s: status %d", name, rec.Code)
		}
	}
}

// TestCollectedOnceForEveryScrape: nothing is cached.
func TestCollectedOnceForEveryScrape(t *testing.T) {
	var c collector
	g, n := c.Gauge("gauge", "Help."), 0
	c.collect = func(ch chan<- prometheus.Metric) {
		n++
		metrics.Send(ch, g, n)
	}
	h := Handler("", false, &c)
	for i := range 3 {
		if n != i {
			t.Errorf("collected %d times before scrape %d", n, i)
		}
		if body := scrape(t, h); !strings.Contains(body, fmt.Sprintf("select_service_gauge %d\n", i+1)) {
			t.Errorf("scrape %d:\n%s", i, body)
		}
	}
}

// TestScrapesAtATime: three scrapes may be under way; a further one is answered
// with 503 and collects nothing, and there is room again when they are over.
func TestScrapesAtATime(t *testing.T) {
	collecting, release := make(chan bool, 10), make(chan struct{})
	h := Handler("", false, &collector{collect: func(chan<- prometheus.Metric) {
		collecting <- true
		<-release
	}, Families: metrics.Families{All: workerFamilies.All[:1]}})
	status := func() int {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		return rec.Code
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if code := status(); code != http.StatusOK {
				t.Errorf("status %d", code)
			}
		})
	}
	for range 3 {
		<-collecting
	}
	for range 5 {
		if code := status(); code != http.StatusServiceUnavailable {
			t.Errorf("status %d beyond three scrapes", code)
		}
	}
	close(release)
	wg.Wait()
	if code := status(); code != http.StatusOK {
		t.Errorf("status %d afterwards", code)
	}
	if n := len(collecting); n != 1 {
		t.Errorf("collected %d times more, want once", n)
	}
}

// TestEscaping: label values may be any text.
func TestEscaping(t *testing.T) {
	var c collector
	g := c.Gauge("gauge", "Help.", "model")
	c.collect = func(ch chan<- prometheus.Metric) {
		metrics.Send(ch, g, 1, "a\"b\\c\nd{},=é")
		metrics.Send(ch, g, 2, "")
		metrics.Send(ch, g, 3, "\x00\t")
	}
	body := scrape(t, Handler("", false, &c))
	for _, want := range []string{`{model="a\"b\\c\nd{},=é"} 1`, `{model=""} 2`, "{model=\"\x00\t\"} 3"} {
		if !strings.Contains(body, "select_service_gauge"+want+"\n") {
			t.Errorf("no %s in\n%s", want, body)
		}
	}
}

func scrape(t testing.TB, h http.Handler) string {
	t.Helper()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if rec.Code != http.StatusOK {
		t.Fatalf("status %d: %s", rec.Code, rec.Body)
	}
	return rec.Body.String()
}
