package metrics

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// namespace starts the names of the service's own families.
const namespace = "select_service"

// Families has the families of one collector. Declaring a family adds it, so that the collector
// describes them all.
type Families struct{ All []Family }

// Family is a metric family.
type Family struct {
	desc *prometheus.Desc

	// What desc says, for the tests. Kind is Untyped for a histogram.

	Kind       prometheus.ValueType
	Name, Help string
	Labels     []string
}

// Gauge declares a family of gauges. The namespace is added to the name, unless it is one of
// Dynamo's.
func (fs *Families) Gauge(name, help string, labels ...string) Family {
	return fs.add(prometheus.GaugeValue, name, help, labels)
}

// Counter declares a family of counters; see Gauge. A counter must never fall while its series
// is shown.
func (fs *Families) Counter(name, help string, labels ...string) Family {
	return fs.add(prometheus.CounterValue, name, help, labels)
}

// Histogram declares a family of histograms; see Gauge.
func (fs *Families) Histogram(name, help string, labels ...string) Family {
	return fs.add(prometheus.UntypedValue, name, help, labels)
}

func (fs *Families) add(kind prometheus.ValueType, name, help string, labels []string) Family {
	if !strings.HasPrefix(name, "dynamo_") {
		name = prometheus.BuildFQName(namespace, "", name)
	}
	f := Family{prometheus.NewDesc(name, help, labels, nil), kind, name, help, labels}
	fs.All = append(fs.All, f)
	return f
}

// With returns the same family for samples that have further labels. Samples of a family may differ
// in their labels, but only one form of it can be declared.
func (f Family) With(labels ...string) Family {
	f.Labels = slices.Concat(f.Labels, labels)
	f.desc = prometheus.NewDesc(f.Name, f.Help, f.Labels, nil)
	return f
}

// Describe sends the descriptors; it implements a collector's Describe.
func (fs *Families) Describe(ch chan<- *prometheus.Desc) {
	for i := range fs.All {
		ch <- fs.All[i].desc
	}
}

// Send sends a sample of a counter or gauge. Labels are in the order of the declaration; a
// sample with a wrong number of labels fails the scrape.
func Send[N int | int64 | uint32 | uint64 | float64](ch chan<- prometheus.Metric, f Family, v N, labels ...string) {
	m, err := prometheus.NewConstMetric(f.desc, f.Kind, float64(v), labels...)
	if err != nil {
		m = prometheus.NewInvalidMetric(f.desc, err)
	}
	ch <- m
}

// SendHistogram sends a histogram; see Send.
func SendHistogram(ch chan<- prometheus.Metric, f Family, h *Histogram, labels ...string) {
	count, sum, upTo := h.read()
	m, err := prometheus.NewConstHistogram(f.desc, count, sum, upTo, labels...)
	if examples := h.exemplars(); err == nil && len(examples) > 0 {
		m, err = prometheus.NewMetricWithExemplars(m, examples...)
	}
	if err != nil {
		m = prometheus.NewInvalidMetric(f.desc, err)
	}
	ch <- m
}

// OneIf is 1 for true, else 0.
func OneIf(b bool) int {
	if b {
		return 1
	}
	return 0
}
