package servicetest

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/telemetry"
)

// Scraped has the series of a scrape by the name of their family, without the
// namespace.
type Scraped map[string][]Sample

// Sample is a series of a counter or a gauge.
type Sample struct {
	Labels []string // values, in the order of the names
	Value  float64
}

// Metrics returns the counters and gauges of a scrape, aliases included.
func (w *World) Metrics() Scraped {
	w.T.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(w.Collectors(true)...)
	gathered, err := registry.Gather()
	if err != nil {
		w.T.Fatal(err)
	}
	all := make(Scraped)
	for _, family := range gathered {
		name := strings.TrimPrefix(family.GetName(), "select_service_")
		for _, m := range family.GetMetric() {
			s := Sample{Value: m.GetCounter().GetValue() + m.GetGauge().GetValue()} // one of them is nil
			for _, l := range m.GetLabel() {
				s.Labels = append(s.Labels, l.GetValue())
			}
			all[name] = append(all[name], s)
		}
	}
	return all
}

// Sum adds up the samples of a metric family that have all of the labels.
func Sum(family []Sample, labels ...string) (total float64) {
	for _, s := range family {
		missing := func(l string) bool { return !slices.Contains(s.Labels, l) }
		if !slices.ContainsFunc(labels, missing) {
			total += s.Value
		}
	}
	return total
}

// Scrape returns what Prometheus would get, without families of runtime and
// process.
func (w *World) Scrape() string {
	w.T.Helper()
	rec := httptest.NewRecorder()
	telemetry.Handler("", false, w.Collectors(true)...).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if rec.Code != http.StatusOK {
		w.T.Fatalf("scrape: status %d: %s", rec.Code, rec.Body)
	}
	var own strings.Builder
	for line := range strings.Lines(rec.Body.String()) {
		if strings.HasPrefix(line, "select_service_") || strings.HasPrefix(line, "dynamo_") {
			own.WriteString(line)
		}
	}
	return own.String()
}

// WantSeries checks series of a scrape, each "name{labels} value" without the
// namespace; those of Dynamo have none.
func (w *World) WantSeries(want ...string) {
	w.T.Helper()
	got := strings.Split(w.Scrape(), "\n")
	for _, line := range want {
		if !strings.HasPrefix(line, "dynamo_") {
			line = "select_service_" + line
		}
		if slices.Contains(got, line) {
			continue
		}
		name := line[:strings.IndexAny(line, "{ ")]
		other := slices.DeleteFunc(slices.Clone(got), func(l string) bool { return !strings.HasPrefix(l, name) })
		w.T.Errorf("no %s among\n%s", line, strings.Join(other, "\n"))
	}
}

// WantNoSeries checks that no series matches.
func (w *World) WantNoSeries(pattern string) {
	w.T.Helper()
	if found := regexp.MustCompile(`(?m)^.*`+pattern+`.*$`).FindAllString(w.Scrape(), 3); found != nil {
		w.T.Errorf("%s is shown: %q", pattern, found)
	}
}
