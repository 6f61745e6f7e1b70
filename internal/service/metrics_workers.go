package service

import (
	"github.com/select-service/select-service/internal/metrics"
	"github.com/select-service/select-service/internal/overload"
	"github.com/select-service/select-service/pkg/catalog"
)

// workerMetrics sets how many workers each model has, and the thresholds by which
// they are judged. workers are all, by model.
func (s *Service) workerMetrics(m *metrics.Sources, workers []*catalog.Worker) {
	own := *s.models.byName.Load()
	var others lifecycles
	for models := 0; len(workers) > 0; models++ {
		var of []*catalog.Worker
		of, workers = cutModel(workers)
		model := of[0].Scope.Model
		if own[model] != nil {
			var count lifecycles
			count.add(of)
			count.show(m, model)
		} else {
			others.add(of)
		}
		if models < overload.MaxModels {
			addThresholds(m, model, s.busy.Of(model), of)
		}
	}
	others.show(m, "") // also while there is none: the sum over models is never without a value
}

// cutModel takes the workers of the first model off, of which there is at least
// one.
func cutModel(workers []*catalog.Worker) (of, rest []*catalog.Worker) {
	n := 1
	for n < len(workers) && workers[n].Scope.Model == workers[0].Scope.Model {
		n++
	}
	return workers[:n], workers[n:]
}

// lifecycles counts workers. Those of the slot tracker, which are complete as
// they are, count apart.
type lifecycles struct{ schedulable, incomplete, tracked int }

func (l *lifecycles) add(workers []*catalog.Worker) {
	for _, w := range workers {
		switch {
		case w.Tracked:
			l.tracked++
		case w.Lifecycle == catalog.Schedulable:
			l.schedulable++
		default:
			l.incomplete++
		}
	}
}

func (l *lifecycles) show(m *metrics.Sources, model string) {
	m.Workers = append(m.Workers,
		sample(l.schedulable, model, catalog.Schedulable),
		sample(l.incomplete, model, catalog.Incomplete),
		sample(l.tracked, model, "tracked"),
	)
}

// addThresholds adds the thresholds of a model that are set, and how many of its
// workers they say nothing of: a worker whose record does not tell the limit that
// the threshold is a share of is never busy by it.
func addThresholds(m *metrics.Sources, model string, t *overload.Thresholds, workers []*catalog.Worker) {
	add := func(to *metrics.Samples, which overload.Threshold, v float64) {
		*to = append(*to, metrics.Sample{Labels: []string{model, which.String()}, Value: v})
	}
	if v := t.DecodeBlocks; v != nil {
		add(&m.BusyThresholds, overload.DecodeBlocks, *v)
		add(&m.WorkersUnjudged, overload.DecodeBlocks, without(workers, func(c overload.Capacity) uint64 { return c.KVBlocks }))
	}
	if v := t.PrefillTokens; v != nil {
		add(&m.BusyThresholds, overload.PrefillTokens, float64(*v))
	}
	if v := t.PrefillFraction; v != nil {
		add(&m.BusyThresholds, overload.PrefillFraction, *v)
		add(&m.WorkersUnjudged, overload.PrefillFraction, without(workers, func(c overload.Capacity) uint64 { return c.BatchedTokens }))
	}
}

// without counts the workers that can be selected and whose limit is unknown.
func without(workers []*catalog.Worker, limit func(overload.Capacity) uint64) (n float64) {
	for _, w := range workers {
		if w.Lifecycle == catalog.Schedulable && limit(capacityOf(w)) == 0 {
			n++
		}
	}
	return n
}
