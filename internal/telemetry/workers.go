package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/selection/counts"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/internal/selection/rankstate"
	"github.com/select-service/select-service/internal/telemetry/metrics"
	"github.com/select-service/select-service/internal/workers/workersfile"
	"github.com/select-service/select-service/pkg/catalog"
)

var (
	workerFamilies metrics.Families

	serviceReady    = workerFamilies.Gauge("ready", "1 if the service can serve requests, as its readiness check says, else 0.")
	workerCount     = workerFamilies.Gauge("workers", "Registered workers by lifecycle; without a model_name those of models that are too many to have one.", "model_name", "lifecycle")
	workersBySource = workerFamilies.Gauge("workers_by_source", "Registered workers by where their records come from.", "source")
	busyThreshold   = workerFamilies.Gauge("busy_threshold", "Thresholds above which a rank is busy, where they are set.", "model_name", "threshold")
	workersUnjudged = workerFamilies.Gauge("workers_unjudged", "Workers of which a threshold that is set says nothing, as their record has no total_kv_blocks or no max_num_batched_tokens.", "model_name", "threshold")
)

// Workers collects the number of workers of each model, and its busy thresholds.
type Workers struct {
	// Ready reports whether the service can serve requests, and lists all workers
	// by model.
	Ready      func() (ready bool, schedulable int, workers []*catalog.Worker)
	Selections *counts.Selections // models with counters of their own have series here too
	Thresholds *overload.Table
}

// Describe implements prometheus.Collector.
func (Workers) Describe(ch chan<- *prometheus.Desc) { workerFamilies.Describe(ch) }

// Collect implements prometheus.Collector.
func (wo Workers) Collect(ch chan<- prometheus.Metric) {
	ready, _, all := wo.Ready()
	workers := all
	metrics.Send(ch, serviceReady, metrics.OneIf(ready))
	own := wo.Selections.Models()
	var others lifecycles
	for models := 0; len(workers) > 0; models++ {
		var of []*catalog.Worker
		of, workers = cutModel(workers)
		model := of[0].Scope.Model
		if own[model] != nil {
			var count lifecycles
			count.add(of)
			count.send(ch, model)
		} else {
			others.add(of)
		}
		if models < overload.MaxModels {
			sendThresholds(ch, model, wo.Thresholds.Of(model), of)
		}
	}
	sendSources(ch, all)
	others.send(ch, "") // also if there are none, so that the sum over models always has a value
}

// cutModel splits off the workers of the first model. There must be at least one worker.
func cutModel(workers []*catalog.Worker) (of, rest []*catalog.Worker) {
	n := 1
	for n < len(workers) && workers[n].Scope.Model == workers[0].Scope.Model {
		n++
	}
	return workers[:n], workers[n:]
}

// lifecycles counts workers by state. Workers of the slot tracker, which are always
// complete, count separately.
type lifecycles struct{ schedulable, draining, incomplete, tracked int }

func (l *lifecycles) add(workers []*catalog.Worker) {
	for _, w := range workers {
		switch {
		case w.Tracked:
			l.tracked++
		case w.Lifecycle == catalog.Schedulable:
			l.schedulable++
		case w.Lifecycle == catalog.Draining:
			l.draining++
		default:
			l.incomplete++
		}
	}
}

func (l *lifecycles) send(ch chan<- prometheus.Metric, model string) {
	metrics.Send(ch, workerCount, l.schedulable, model, catalog.Schedulable)
	metrics.Send(ch, workerCount, l.draining, model, catalog.Draining)
	metrics.Send(ch, workerCount, l.incomplete, model, catalog.Incomplete)
	metrics.Send(ch, workerCount, l.tracked, model, "tracked")
}

// sendSources sends the number of workers of each source.
func sendSources(ch chan<- prometheus.Metric, workers []*catalog.Worker) {
	count := make(map[catalog.SourceKind]int)
	for _, w := range workers {
		count[w.Source.KindOrAPI()]++
	}
	for _, kind := range catalog.SourceKinds {
		metrics.Send(ch, workersBySource, count[kind], string(kind))
	}
}

// sendThresholds sends the thresholds of a model that are set, and the number of workers without
// the limit that a threshold is a share of: such a worker is never busy by that threshold.
func sendThresholds(ch chan<- prometheus.Metric, model string, t *overload.Thresholds, workers []*catalog.Worker) {
	if v := t.DecodeBlocks; v != nil {
		metrics.Send(ch, busyThreshold, *v, model, overload.DecodeBlocks.String())
		unjudged := without(workers, func(c overload.Capacity) uint64 { return c.KVBlocks })
		metrics.Send(ch, workersUnjudged, unjudged, model, overload.DecodeBlocks.String())
	}
	if v := t.PrefillTokens; v != nil {
		metrics.Send(ch, busyThreshold, *v, model, overload.PrefillTokens.String())
	}
	if v := t.PrefillFraction; v != nil {
		metrics.Send(ch, busyThreshold, *v, model, overload.PrefillFraction.String())
		unjudged := without(workers, func(c overload.Capacity) uint64 { return c.BatchedTokens })
		metrics.Send(ch, workersUnjudged, unjudged, model, overload.PrefillFraction.String())
	}
}

// without counts the selectable workers whose limit is unknown.
func without(workers []*catalog.Worker, limit func(overload.Capacity) uint64) (n int) {
	for _, w := range workers {
		if w.Lifecycle == catalog.Schedulable && limit(rankstate.CapacityOf(w)) == 0 {
			n++
		}
	}
	return n
}

var (
	workersFileFamilies metrics.Families

	workersFileChanges = workersFileFamilies.Counter("workers_file_changes_total", "Changes of the workers file, by outcome: applied or failed.", "outcome")
	workersFileStale   = workersFileFamilies.Gauge("workers_file_stale", "1 if the last content of the workers file is not in force, because it is faulty or gone, else 0; what other calls have changed since is not looked at.")
)

// WorkersFile collects metrics of the workers file; a nil Watcher: there is none.
type WorkersFile struct{ Watcher *workersfile.Watcher }

// Describe implements prometheus.Collector.
func (WorkersFile) Describe(ch chan<- *prometheus.Desc) { workersFileFamilies.Describe(ch) }

// Collect implements prometheus.Collector.
func (w WorkersFile) Collect(ch chan<- prometheus.Metric) {
	if w.Watcher == nil {
		return
	}
	st := w.Watcher.Stats()
	metrics.Send(ch, workersFileChanges, st.Applied, "applied")
	metrics.Send(ch, workersFileChanges, st.Failed, "failed")
	metrics.Send(ch, workersFileStale, metrics.OneIf(st.Stale))
}
