package service

import (
	"strings"

	"github.com/select-service/select-service/internal/metrics"
	"github.com/select-service/select-service/internal/overload"
)

// modelMetrics sets what is counted for each model. Models come from the catalog
// and not from requests, so that clients cannot make series.
func (s *Service) modelMetrics(m *metrics.Sources) {
	s.models.others.show(m, "")
	all := *s.models.byName.Load()
	for _, model := range s.catalog.Models() {
		if stats := all[model]; stats != nil {
			stats.show(m, model)
		}
	}
}

// show adds the series of a model. The histograms of the others are left out
// while they are empty, as they nearly always are: they have values only once
// there are too many models.
func (s *modelStats) show(m *metrics.Sources, model string) {
	for o := range s.outcomes { // before issued: each was issued, unless it was invalid
		m.Selections = append(m.Selections, sample(s.outcomes[o].Load(), model, Outcome(o).String()))
	}
	queued := int64(0)
	for r := range route(numRoutes) {
		endpoint := r.String()
		rejected := s.rejected[r].Load() // before issued: it must not be above it
		m.TasksRejected = append(m.TasksRejected, sample(rejected, model, endpoint))
		m.TasksIssued = append(m.TasksIssued, sample(s.issued[r].Load(), model, endpoint))
		waiting := s.queued[r].Load()
		m.TasksQueued = append(m.TasksQueued, sample(waiting, model, endpoint))
		queued += waiting
	}
	m.ModelQueued = append(m.ModelQueued, sample(queued, model))
	for c := range s.causes {
		m.Rejections = append(m.Rejections, sample(s.causes[c].Load(), model, causeLabel(c)))
	}
	add := func(to *[]metrics.Distribution, h *metrics.Histogram) {
		if model != "" || h.Count() > 0 {
			*to = append(*to, metrics.Distribution{Labels: []string{model}, Histogram: h})
		}
	}
	add(&m.OverlapRatio, s.ratio)
	add(&m.OverlapForegone, s.foregone)
	add(&m.CostSpread, s.spread)
	add(&m.QueueWait, s.wait)
}

// causeLabel names a cause of a rejection.
func causeLabel(cause int) string {
	if cause == queueLimit {
		return "queue_limit"
	}
	return strings.Replace(overload.Threshold(cause).String(), "_threshold", "", 1)
}
