package telemetry

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// namespace starts the names of the service's own families.
const namespace = "select_service"

// families has the families of one collector. Declaring a family adds it, so that the collector
// describes them all.
type families struct{ all []family }

// family is a metric family.
type family struct {
	desc *prometheus.Desc
	kind prometheus.ValueType // Untyped for a histogram

	// What desc says, for the tests:

	name, help string
	labels     []string
}

// gauge declares a family of gauges. The namespace is added to the name, unless it is one of
// Dynamo's.
func (fs *families) gauge(name, help string, labels ...string) family {
	return fs.add(prometheus.GaugeValue, name, help, labels)
}

// counter declares a family of counters; see gauge. A counter must never fall while its series
// is shown.
func (fs *families) counter(name, help string, labels ...string) family {
	return fs.add(prometheus.CounterValue, name, help, labels)
}

// histogram declares a family of histograms; see gauge.
func (fs *families) histogram(name, help string, labels ...string) family {
	return fs.add(prometheus.UntypedValue, name, help, labels)
}

func (fs *families) add(kind prometheus.ValueType, name, help string, labels []string) family {
	if !strings.HasPrefix(name, "dynamo_") {
		name = prometheus.BuildFQName(namespace, "", name)
	}
	f := family{prometheus.NewDesc(name, help, labels, nil), kind, name, help, labels}
	fs.all = append(fs.all, f)
	return f
}

// describe sends the descriptors; it implements a collector's Describe.
func (fs *families) describe(ch chan<- *prometheus.Desc) {
	for i := range fs.all {
		ch <- fs.all[i].desc
	}
}

// send sends a sample of a counter or gauge. Labels are in the order of the declaration; a
// sample with a wrong number of labels fails the scrape.
func send[N int | int64 | uint32 | uint64 | float64](ch chan<- prometheus.Metric, f family, v N, labels ...string) {
	m, err := prometheus.NewConstMetric(f.desc, f.kind, float64(v), labels...)
	if err != nil {
		m = prometheus.NewInvalidMetric(f.desc, err)
	}
	ch <- m
}

// sendHistogram sends a histogram; see send.
func sendHistogram(ch chan<- prometheus.Metric, f family, h *Histogram, labels ...string) {
	count, sum, upTo := h.read()
	m, err := prometheus.NewConstHistogram(f.desc, count, sum, upTo, labels...)
	if err != nil {
		m = prometheus.NewInvalidMetric(f.desc, err)
	}
	ch <- m
}

// oneIf is 1 for true, else 0.
func oneIf(b bool) int {
	if b {
		return 1
	}
	return 0
}
