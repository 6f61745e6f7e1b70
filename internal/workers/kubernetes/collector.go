package kubernetes

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/telemetry/metrics"
	"github.com/select-service/select-service/pkg/catalog"
)

// Families are the families of Collector.
var Families metrics.Families

var (
	podsByState  = Families.Gauge("kube_pods", "Pods of a source in Kubernetes by what they are to the catalog.", "pool", "state")
	sourceSynced = Families.Gauge("kube_source_synced", "1 if a source in Kubernetes is synced, else 0.", "pool")
	sourceAge    = Families.Gauge("kube_source_age_seconds", "Time since the API server last said something of a source; bookmarks come about once a minute.", "pool")
	requests     = Families.Counter("kube_requests_total", "Requests to the API server.", "resource", "verb", "outcome")
	events       = Families.Counter("kube_events_total", "Events of watches.", "resource", "type")
	lists        = Families.Counter("kube_lists_total", "Full lists, by why they were needed.", "resource", "cause")
	unread       = Families.Counter("kube_unread_total", "Objects that could not be read, or are too large: their last good version stays.", "resource")
	applied      = Families.Histogram("kube_apply_seconds", "Time from the first of some events to their effect on the catalog.")
	unknownKeys  = Families.Counter("kube_unknown_annotations_total", "Annotations of pods with the prefix and without a meaning.")
	excludedPods = Families.Gauge("kube_excluded", "Pods without workers although a source has them.", "reason")
	peerCount    = Families.Gauge("kube_peers", "Other replicas that were found in Kubernetes.", "state")
	workerInfo   = Families.Gauge("worker_info", "1 for each discovered worker, with its pod.", "worker_id", "namespace", "pod", "pool")
)

// applyBounds are the upper bounds of kube_apply_seconds, in seconds.
var applyBounds = []float64{0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10}

// maxInfo bounds the workers with series of their own.
const maxInfo = 4096

type collector struct{ d *Discovery }

// Collector returns the collector of discovery's metrics.
func (d *Discovery) Collector() prometheus.Collector { return collector{d} }

// Describe implements prometheus.Collector.
func (collector) Describe(ch chan<- *prometheus.Desc) { Families.Describe(ch) }

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	now := time.Now()
	seen := make(map[string]bool)
	st := c.d.Status()
	if st.Peers != nil {
		serving := 0
		for _, p := range st.Peers.Replicas {
			serving += metrics.OneIf(p.Serving)
		}
		metrics.Send(ch, peerCount, serving, "serving")
		metrics.Send(ch, peerCount, len(st.Peers.Replicas)-serving, "not_serving")
	}
	for _, s := range st.Sources {
		pool := s.Name
		if seen[pool] { // of another namespace
			pool = s.Namespace + "/" + s.Name
		}
		if seen[pool] {
			continue
		}
		seen[pool] = true
		for state, n := range map[string]int{
			"schedulable": s.Schedulable, "draining": s.Draining, "incomplete": s.Incomplete, "waiting": s.Waiting, "excluded": s.Excluded,
		} {
			metrics.Send(ch, podsByState, n, pool, state)
		}
		metrics.Send(ch, sourceSynced, metrics.OneIf(s.State == Synced), pool)
		if !s.Message.IsZero() {
			metrics.Send(ch, sourceAge, now.Sub(s.Message).Seconds(), pool)
		}
	}
	counts := c.d.Counts()
	for l, n := range counts.Requests {
		metrics.Send(ch, requests, n, l[0], l[1], l[2])
	}
	for l, n := range counts.Events {
		metrics.Send(ch, events, n, l[0], l[1])
	}
	for l, n := range counts.Lists {
		metrics.Send(ch, lists, n, l[0], l[1])
	}
	for resource, n := range counts.Unread {
		metrics.Send(ch, unread, n, resource)
	}
	metrics.Send(ch, unknownKeys, counts.Unknown)
	metrics.SendHistogram(ch, applied, c.d.applied)
	for reason, n := range c.d.ExcludedBy() {
		metrics.Send(ch, excludedPods, n, reason)
	}
	shown := 0
	for _, w := range c.d.config.Catalog.List(nil, nil) {
		if w.Source.Kind != catalog.SourceKubernetes {
			continue
		}
		if shown++; shown > maxInfo {
			return
		}
		metrics.Send(ch, workerInfo, 1, strconv.FormatUint(w.ID, 10), w.Source.Namespace, w.Source.Pod, w.Source.Pool)
	}
}
