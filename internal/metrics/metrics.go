package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// namespace starts the name of every family of the service.
const namespace = "select_service"

// Sample is one value of a family. Labels are the values of the family's labels
// in their order; no two samples of a family have the same.
type Sample struct {
	Labels []string
	Value  float64
}

// Source returns the samples of a family as they are now. It is called at every
// scrape, from any goroutine.
type Source func() []Sample

// Value is a source of a single sample without labels.
func Value(read func() float64) Source {
	return func() []Sample { return []Sample{{Value: read()}} }
}

// Metrics is a set of collectors on a registry of its own.
type Metrics struct{ registry *prometheus.Registry }

// New returns the service's families fed by s, with those of the Go runtime,
// the process and the build.
func New(version string, s Sources) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info", Help: "Always 1; the label tells the version of the service.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
		build,
	)
	for _, f := range families {
		if source := f.source(&s); source != nil {
			m.registry.MustRegister(newCollector(f, source))
		}
	}
	return m
}

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// collector asks one source.
type collector struct {
	desc   *prometheus.Desc
	kind   prometheus.ValueType
	source Source
}

func newCollector(f family, s Source) collector {
	return collector{
		desc:   prometheus.NewDesc(prometheus.BuildFQName(namespace, "", f.name), f.help, f.labels, nil),
		kind:   f.kind,
		source: s,
	}
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements prometheus.Collector. A sample whose labels do not fit
// fails the scrape.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	for _, s := range c.source() {
		m, err := prometheus.NewConstMetric(c.desc, c.kind, s.Value, s.Labels...)
		if err != nil {
			m = prometheus.NewInvalidMetric(c.desc, err)
		}
		ch <- m
	}
}
