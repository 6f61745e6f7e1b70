package service_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/telemetry"
)

// scraped has the series of a scrape by the name of their family, without the
// namespace.
type scraped map[string][]sample

// sample is a series of a counter or a gauge.
type sample struct {
	labels []string // values, in the order of the names
	value  float64
}

// Metrics returns the counters and gauges of a scrape, aliases included.
func (w *world) Metrics() scraped {
	w.t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(w.Collectors(true)...)
	gathered, err := registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	all := make(scraped)
	for _, family := range gathered {
		name := strings.TrimPrefix(family.GetName(), "select_service_")
		for _, m := range family.GetMetric() {
			s := sample{value: m.GetCounter().GetValue() + m.GetGauge().GetValue()} // one of them is nil
			for _, l := range m.GetLabel() {
				s.labels = append(s.labels, l.GetValue())
			}
			all[name] = append(all[name], s)
		}
	}
	return all
}

// sum adds up the samples of a metric family that have all of the labels.
func sum(family []sample, labels ...string) (total float64) {
	for _, s := range family {
		missing := func(l string) bool { return !slices.Contains(s.labels, l) }
		if !slices.ContainsFunc(labels, missing) {
			total += s.value
		}
	}
	return total
}

// scrape returns what Prometheus would get, without families of runtime and
// process.
func (w *world) scrape() string {
	w.t.Helper()
	rec := httptest.NewRecorder()
	telemetry.Handler("", w.Collectors(true)...).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if rec.Code != http.StatusOK {
		w.t.Fatalf("scrape: status %d: %s", rec.Code, rec.Body)
	}
	var own strings.Builder
	for line := range strings.Lines(rec.Body.String()) {
		if strings.HasPrefix(line, "select_service_") || strings.HasPrefix(line, "dynamo_") {
			own.WriteString(line)
		}
	}
	return own.String()
}

// wantSeries checks series of a scrape, each "name{labels} value" without the
// namespace; those of Dynamo have none.
func (w *world) wantSeries(want ...string) {
	w.t.Helper()
	got := strings.Split(w.scrape(), "\n")
	for _, line := range want {
		if !strings.HasPrefix(line, "dynamo_") {
			line = "select_service_" + line
		}
		if slices.Contains(got, line) {
			continue
		}
		name := line[:strings.IndexAny(line, "{ ")]
		other := slices.DeleteFunc(slices.Clone(got), func(l string) bool { return !strings.HasPrefix(l, name) })
		w.t.Errorf("no %s among\n%s", line, strings.Join(other, "\n"))
	}
}

// wantNoSeries checks that no series matches.
func (w *world) wantNoSeries(pattern string) {
	w.t.Helper()
	if found := regexp.MustCompile(`(?m)^.*`+pattern+`.*$`).FindAllString(w.scrape(), 3); found != nil {
		w.t.Errorf("%s is shown: %q", pattern, found)
	}
}

// TestIndexerLabels: the aliases of dynamo.indexer's families have the label
// values that a scrape of it shows, always all of them.
func TestIndexerLabels(t *testing.T) {
	record, err := os.ReadFile("../telemetry/testdata/dynamo_indexer.txt")
	if err != nil {
		t.Fatal(err)
	}
	series := func(body string) (names []string) {
		for _, found := range regexp.MustCompile(`(?m)^(dynamo_kv(?:router_kv|indexer_(?:listeners|models|workers)).*) \d+$`).FindAllStringSubmatch(body, -1) {
			names = append(names, found[1])
		}
		slices.Sort(names)
		return names
	}
	theirs, ours := series(string(record)), series(start(t).scrape())
	if len(theirs) != 34 || !slices.Equal(theirs, ours) {
		t.Errorf("series are %q,\nwant %q", ours, theirs)
	}
}

// TestIndexerEvents: events of each kind count once, under the status that comes
// closest.
func TestIndexerEvents(t *testing.T) {
	w := start(t)
	w.put(record(1, 2)) // nobody has heard of the second rank
	w.net.at(endpoint(1, 0)).connect()
	a := prompt(1, 16)
	e := w.engine(1, 0)
	e.publish(0, e.stored(a[:8], blockSize, nil), e.stored(a, blockSize, nil), e.stored(prompt(2, 8), blockSize, dict{"parent_block_hash": 5}))
	e.publish(0, e.removed(a, blockSize, 3, "GPU"), e.removed(prompt(3, 4), blockSize, 0, "GPU"), cleared())
	e.publish(0, e.stored(a, 5, nil), e.stored(a, blockSize, dict{"medium": "MOON"}), e.stored(a, blockSize, dict{"locality": "REMOTE"}))
	w.settle()
	w.wantSeries(
		`dynamo_kvrouter_kv_cache_events_applied{event_type="stored",status="ok"} 3`,
		`dynamo_kvrouter_kv_cache_events_applied{event_type="removed",status="ok"} 2`,
		`dynamo_kvrouter_kv_cache_events_applied{event_type="cleared",status="ok"} 1`,
		`dynamo_kvrouter_kv_cache_events_applied{event_type="stored",status="invalid_block"} 1`,
		`dynamo_kvrouter_kv_cache_events_applied{event_type="stored",status="unsupported_residency_domain"} 1`,
		`dynamo_kvrouter_kv_cache_event_warnings{warning_kind="duplicate_store"} 2`,
		`dynamo_kvindexer_models 1`,
		`dynamo_kvindexer_workers 1`,
		`dynamo_kvindexer_listeners{status="active"} 1`,
		`dynamo_kvindexer_listeners{status="pending"} 1`,
	)
}
