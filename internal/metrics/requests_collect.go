package metrics

import (
	"iter"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	requestsDesc = describe("http_requests_total", "HTTP requests answered, by route; those that found none have no method.",
		"listener", "method", "route", "code")
	durationDesc = describe("http_request_duration_seconds", "Time from the arrival of an HTTP request to the end of its answer, time in the wait queue included.",
		"listener", "method", "route")
	inFlightDesc = describe("http_requests_in_flight", "HTTP requests that are not answered yet.", "listener")
)

// Aliases, see there. Help texts are dynamo.indexer's.
var (
	indexerRequestsDesc = describe("dynamo_kvindexer_requests_total", "Total HTTP requests", "endpoint", "method")
	indexerDurationDesc = describe("dynamo_kvindexer_request_duration_seconds", "HTTP request latency", "endpoint")
	indexerErrorsDesc   = describe("dynamo_kvindexer_errors_total", "HTTP error responses (4xx/5xx)", "endpoint", "status_class")
)

// requestCollector shows the HTTP requests, and those of the Conductor API a
// second time under the names of dynamo.indexer if asked to.
type requestCollector struct {
	requests *Requests
	aliases  bool
}

// Describe implements prometheus.Collector.
func (c requestCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- requestsDesc
	ch <- durationDesc
	ch <- inFlightDesc
	if c.aliases {
		ch <- indexerRequestsDesc
		ch <- indexerDurationDesc
		ch <- indexerErrorsDesc
	}
}

// Collect implements prometheus.Collector.
func (c requestCollector) Collect(ch chan<- prometheus.Metric) {
	indexer := make(map[string]*indexerAnswers)
	for _, l := range c.requests.all() {
		ch <- number(inFlightDesc, prometheus.GaugeValue, float64(l.inFlight.Load()), []string{l.name})
		for e, a := range *l.routes.Load() {
			labels := []string{l.name, e.method, e.route}
			ch <- distribution(durationDesc, a.took, labels)
			for code, n := range a.codes() {
				ch <- number(requestsDesc, prometheus.CounterValue, float64(n), append(labels[:3:3], code))
			}
			if !c.aliases {
				continue
			}
			if route, ok := indexerRoute(l.name, e.route); ok {
				if indexer[route] == nil {
					indexer[route] = newIndexerAnswers()
				}
				indexer[route].add(e.method, a)
			}
		}
	}
	for route, a := range indexer {
		a.collect(route, ch)
	}
}

// codes returns how often each status was answered that ever was.
func (a *answers) codes() iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		for i := range a.byCode {
			n := a.byCode[i].Load()
			if n == 0 {
				continue
			}
			code := "other"
			if i != noCode {
				code = strconv.Itoa(firstCode + i)
			}
			if !yield(code, n) {
				return
			}
		}
	}
}

// indexerRoute returns what dynamo.indexer would call a route of the Conductor
// API; ok is false for other routes.
func indexerRoute(listener, route string) (name string, ok bool) {
	if listener == "conductor" {
		return route, route != ""
	}
	name, ok = strings.CutPrefix(route, "/conductor/")
	return "/" + name, ok
}

// indexerAnswers adds up the answers of one route of the Conductor API, of all
// listeners.
type indexerAnswers struct {
	byMethod map[string]uint64
	byClass  map[string]uint64 // of errors
	took     *Histogram
}

func newIndexerAnswers() *indexerAnswers {
	return &indexerAnswers{
		byMethod: make(map[string]uint64), byClass: make(map[string]uint64),
		took: NewHistogram(requestBounds),
	}
}

func (sum *indexerAnswers) add(method string, a *answers) {
	for code, n := range a.codes() {
		sum.byMethod[method] += n
		if class := code[:1]; class == "4" || class == "5" {
			sum.byClass[class+"xx"] += n
		}
	}
	sum.took.add(a.took)
}

func (sum *indexerAnswers) collect(route string, ch chan<- prometheus.Metric) {
	ch <- distribution(indexerDurationDesc, sum.took, []string{route})
	for method, n := range sum.byMethod {
		ch <- number(indexerRequestsDesc, prometheus.CounterValue, float64(n), []string{route, method})
	}
	for class, n := range sum.byClass {
		ch <- number(indexerErrorsDesc, prometheus.CounterValue, float64(n), []string{route, class})
	}
}
