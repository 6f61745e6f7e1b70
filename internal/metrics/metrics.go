package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// namespace starts the names of the service's own families.
const namespace = "select_service"

// Metrics is a set of collectors on a registry of its own.
type Metrics struct{ registry *prometheus.Registry }

// Options say what is shown beside the service's own families.
type Options struct {
	// DynamoAliases shows numbers of this service a second time, under the names
	// that dynamo.indexer 1.6.1 has for them.
	DynamoAliases bool
}

// maxScrapes bounds the scrapes at a time, each of which takes memory for every
// series. Beyond, the answer is 503.
const maxScrapes = 3

// New returns the service's families, with those of the Go runtime, the process
// and the build. gather is called once for every scrape, from any goroutine, with
// opt: what that leaves out need not be gathered.
func New(version string, gather func(Options) Sources, requests *Requests, opt Options) *Metrics {
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
		newCollector(gather, opt),
		requestCollector{requests, opt.DynamoAliases},
	)
	return m
}

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes})
}

// collector shows what it gathers.
type collector struct {
	gather     func() Sources
	families   []family
	histograms []histogramFamily
	descs      []*prometheus.Desc // of families, then of histograms
}

func newCollector(gather func(Options) Sources, opt Options) *collector {
	c := &collector{gather: func() Sources { return gather(opt) }, families: families, histograms: histogramFamilies}
	if opt.DynamoAliases {
		c.families = append(c.families[:len(c.families):len(c.families)], aliases...)
	}
	for _, f := range c.families {
		c.descs = append(c.descs, describe(f.name, f.help, f.labels...))
	}
	for _, f := range c.histograms {
		c.descs = append(c.descs, describe(f.name, f.help, f.labels...))
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector. A sample whose labels do not fit
// fails the scrape.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := c.gather()
	for i, f := range c.families {
		desc := c.descs[i]
		for _, sample := range f.source(&s) {
			ch <- number(desc, f.kind, sample.Value, sample.Labels)
		}
	}
	for i, f := range c.histograms {
		desc := c.descs[len(c.families)+i]
		for _, d := range f.source(&s) {
			ch <- distribution(desc, d.Histogram, d.Labels)
		}
	}
}

func number(desc *prometheus.Desc, kind prometheus.ValueType, v float64, labels []string) prometheus.Metric {
	m, err := prometheus.NewConstMetric(desc, kind, v, labels...)
	if err != nil {
		return prometheus.NewInvalidMetric(desc, err)
	}
	return m
}

func distribution(desc *prometheus.Desc, h *Histogram, labels []string) prometheus.Metric {
	count, sum, upTo := h.read()
	m, err := prometheus.NewConstHistogram(desc, count, sum, upTo, labels...)
	if err != nil {
		return prometheus.NewInvalidMetric(desc, err)
	}
	return m
}
