package telemetry

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/select-service/select-service/internal/telemetry/metrics"
)

// maxScrapes bounds the concurrent scrapes, each of which takes memory for every series.
// Further ones are answered 503.
const maxScrapes = 3

// Handler serves the metrics of the given collectors, of the Go runtime and the process, and
// the version of the build. Collectors are called at every scrape, from any goroutine. It
// panics if two of them have a family of the same name. With exemplars, scrapers that ask for
// OpenMetrics get it: only that format has them. There the bounds of buckets are written as 1.0
// instead of 1.
func Handler(version string, exemplars bool, subjects ...prometheus.Collector) http.Handler {
	return promhttp.HandlerFor(newRegistry(version, subjects), promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes, EnableOpenMetrics: exemplars})
}

func newRegistry(version string, subjects []prometheus.Collector) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
		build{version},
	)
	registry.MustRegister(subjects...)
	return registry
}

var (
	buildFamilies metrics.Families

	buildInfo = buildFamilies.Gauge("build_info", "Always 1; the label tells the version of the service.", "version")
)

// build collects the version of the service.
type build struct{ version string }

// Describe implements prometheus.Collector.
func (build) Describe(ch chan<- *prometheus.Desc) { buildFamilies.Describe(ch) }

// Collect implements prometheus.Collector.
func (b build) Collect(ch chan<- prometheus.Metric) { metrics.Send(ch, buildInfo, 1, b.version) }
