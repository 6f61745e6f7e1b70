package telemetry

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/internal/telemetry/metrics"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
)

// The families of dynamo.indexer 1.6.1: names, types, help texts and labels are
// its own, so that dashboards made for it work. These points differ a little here:
//
//   - models are scopes of selection with workers and indexes of the Conductor
//     API; workers are those of selection and publishers of the Conductor API;
//   - a listener is pending while its publisher is not connected and else active;
//     nothing pauses one, and none fails for good;
//   - the index keeps a store whose parent is unknown, and takes a removal of
//     unknown blocks for what it is, so both are ok. Blocks that wait for a
//     parent, and unknown ones, are in select_service_kv_event_blocks_total;
//   - duplicate_store counts blocks and not events: those that an engine
//     announced although it had them;
//   - requests are those of the Conductor API.
var (
	indexerFamilies        metrics.Families
	indexerRequestFamilies metrics.Families

	indexerModels    = indexerFamilies.Gauge("dynamo_kvindexer_models", "Number of active model+routing-group indexers")
	indexerWorkers   = indexerFamilies.Gauge("dynamo_kvindexer_workers", "Number of registered worker instances")
	indexerListeners = indexerFamilies.Gauge("dynamo_kvindexer_listeners", "Number of ZMQ listeners by status", "status")
	indexerEvents    = indexerFamilies.Counter("dynamo_kvrouter_kv_cache_events_applied", "Total number of KV cache events applied to index", "event_type", "status")
	indexerWarnings  = indexerFamilies.Counter("dynamo_kvrouter_kv_cache_event_warnings", "Total number of suspicious KV cache events seen by the router indexer", "warning_kind")
	indexerRequests  = indexerRequestFamilies.Counter("dynamo_kvindexer_requests_total", "Total HTTP requests", "endpoint", "method")
	indexerDuration  = indexerRequestFamilies.Histogram("dynamo_kvindexer_request_duration_seconds", "HTTP request latency", "endpoint")
	indexerErrors    = indexerRequestFamilies.Counter("dynamo_kvindexer_errors_total", "HTTP error responses (4xx/5xx)", "endpoint", "status_class")
)

// DynamoIndexer collects numbers of this service a second time, under the names of
// dynamo.indexer 1.6.1.
type DynamoIndexer struct {
	Catalog   *catalog.Catalog
	Scopes    *scopes.Registry
	Conductor *conductor.Registry
	Streams   Streams
}

// Describe implements prometheus.Collector.
func (DynamoIndexer) Describe(ch chan<- *prometheus.Desc) { indexerFamilies.Describe(ch) }

// Collect implements prometheus.Collector.
func (d DynamoIndexer) Collect(ch chan<- prometheus.Metric) {
	counts := d.Conductor.Counts()
	metrics.Send(ch, indexerModels, len(d.Scopes.All())+counts.Spaces)
	workers := counts.Publishers
	for _, w := range d.Catalog.List(nil, nil) {
		workers += metrics.OneIf(!w.Tracked)
	}
	metrics.Send(ch, indexerWorkers, workers)
	d.sendListeners(ch)
	d.sendEvents(ch)
}

func (d DynamoIndexer) sendListeners(ch chan<- prometheus.Metric) {
	streams := d.Streams.states()
	all := 0
	for _, n := range streams {
		all += n
	}
	pending := streams[kvevents.Connecting]
	metrics.Send(ch, indexerListeners, all-pending, "active")
	metrics.Send(ch, indexerListeners, 0, "failed")
	metrics.Send(ch, indexerListeners, 0, "paused")
	metrics.Send(ch, indexerListeners, pending, "pending")
}

// indexerStatuses are those of dynamo.indexer 1.6.1 for an event.
var indexerStatuses = [...]string{
	"ok", "parent_block_not_found", "block_not_found", "invalid_block", "capacity_exhausted",
	"unsupported_residency_domain", "allocation_failed", "indexer_invariant_violation", "ownership_degree_overflow",
}

// indexerStatus returns the status closest to a reason. counts is false for events that are not
// meant for the index.
func indexerStatus(r kvevents.Reason) (status string, counts bool) {
	switch {
	case r == kvevents.Applied:
		return "ok", true
	case r.Ordinary(), r == kvevents.UnknownRank, r == kvevents.EnvelopeEvent:
		return "", false
	case r == kvevents.UnknownMedium:
		return "unsupported_residency_domain", true
	case r == kvevents.TooMany, r == kvevents.TooManyMedia:
		return "capacity_exhausted", true
	}
	return "invalid_block", true
}

// sendEvents sends the events by dynamo.indexer's way of counting.
func (d DynamoIndexer) sendEvents(ch chan<- prometheus.Metric) {
	tally := d.Streams.tally()
	for _, kind := range []kvevents.Kind{kvevents.Stored, kvevents.Removed, kvevents.Cleared} {
		byStatus := make(map[string]uint64)
		for tier := range tally.Events[kind] {
			for reason, n := range tally.Events[kind][tier] {
				if status, counts := indexerStatus(kvevents.Reason(reason)); counts {
					byStatus[status] += n
				}
			}
		}
		for _, status := range indexerStatuses {
			metrics.Send(ch, indexerEvents, byStatus[status], kind.String(), status)
		}
	}
	var again uint64
	for tier := range tally.Blocks {
		again += tally.Blocks[tier][kvevents.BlocksKnown] + tally.Blocks[tier][kvevents.BlocksCopied]
	}
	metrics.Send(ch, indexerWarnings, again, "duplicate_store")
}

// DynamoIndexerRequests collects the requests of the Conductor API a second time, under the
// names of dynamo.indexer 1.6.1.
type DynamoIndexerRequests struct{ Requests *Requests }

// Describe implements prometheus.Collector.
func (DynamoIndexerRequests) Describe(ch chan<- *prometheus.Desc) {
	indexerRequestFamilies.Describe(ch)
}

// Collect implements prometheus.Collector.
func (d DynamoIndexerRequests) Collect(ch chan<- prometheus.Metric) {
	routes := make(map[string]*indexerAnswers)
	for _, l := range d.Requests.all() {
		for e, a := range *l.routes.Load() {
			if route, ok := indexerRoute(l.name, e.route); ok {
				if routes[route] == nil {
					routes[route] = newIndexerAnswers()
				}
				routes[route].add(e.method, a)
			}
		}
	}
	for route, a := range routes {
		a.send(ch, route)
	}
}

// indexerRoute returns dynamo.indexer's name for a route of the Conductor API; ok is
// false for other routes.
func indexerRoute(listener, route string) (name string, ok bool) {
	if listener == "conductor" {
		return route, route != ""
	}
	name, ok = strings.CutPrefix(route, "/conductor/")
	return "/" + name, ok
}

// indexerAnswers sums the answers of one route of the Conductor API over all listeners.
type indexerAnswers struct {
	byMethod map[string]uint64
	byClass  map[string]uint64 // of errors
	took     *metrics.Histogram
}

func newIndexerAnswers() *indexerAnswers {
	return &indexerAnswers{
		byMethod: make(map[string]uint64), byClass: make(map[string]uint64),
		took: metrics.NewHistogram(metrics.RequestBounds),
	}
}

func (i *indexerAnswers) add(method string, a *answers) {
	for code, n := range a.codes() {
		i.byMethod[method] += n
		if class := code[:1]; class == "4" || class == "5" {
			i.byClass[class+"xx"] += n
		}
	}
	i.took.Add(a.took)
}

func (i *indexerAnswers) send(ch chan<- prometheus.Metric, route string) {
	metrics.SendHistogram(ch, indexerDuration, i.took, route)
	for method, n := range i.byMethod {
		metrics.Send(ch, indexerRequests, n, route, method)
	}
	for class, n := range i.byClass {
		metrics.Send(ch, indexerErrors, n, route, class)
	}
}
