package telemetry

import (
	"maps"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/telemetry/metrics"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/selector/ttft"
)

var (
	predictionFamilies metrics.Families
	scopeLabels        = []string{"model_name", "tenant_id"}
	railLabels         = []string{"model_name", "tenant_id", "rail"}

	ttftSamples     = predictionFamilies.Counter("ttft_samples_total", "Completed prefills that the predictions of predicted-ttft were learned from.", scopeLabels...)
	ttftBase        = predictionFamilies.Gauge("ttft_base_seconds", "Predicted time of a prefill whatever its size.", scopeLabels...)
	ttftToken       = predictionFamilies.Gauge("ttft_token_seconds", "Predicted time of a prefill for each token to compute.", scopeLabels...)
	ttftContext     = predictionFamilies.Gauge("ttft_context_seconds", "Predicted time of a prefill for each token to compute and token that it attends to.", scopeLabels...)
	ttftSpeed       = predictionFamilies.Gauge("ttft_rank_time_ratio", "Learned time of a rank's prefills by that of its scope.", rankLabels...)
	ttftRails       = predictionFamilies.Gauge("ttft_guard_rail_engaged", "Guard rails of predicted-ttft that are engaged: 1 for a scope, or the number of its ranks.", railLabels...)
	ttftEngagements = predictionFamilies.Counter("ttft_guard_rail_engagements_total", "How often guard rails of predicted-ttft have engaged.", railLabels...)
)

// Predictions collects the learned model of prefill times.
type Predictions struct {
	Catalog *catalog.Catalog
	// Learners returns the learners of all scopes that predict.
	Learners func() map[catalog.Scope]*ttft.Learner
}

// Describe implements prometheus.Collector.
func (Predictions) Describe(ch chan<- *prometheus.Desc) { predictionFamilies.Describe(ch) }

// Collect implements prometheus.Collector.
func (p Predictions) Collect(ch chan<- prometheus.Metric) {
	listed := 0
	learners := p.Learners()
	for _, sc := range slices.SortedFunc(maps.Keys(learners), catalog.Scope.Compare) {
		l := learners[sc]
		m := l.Model()
		metrics.Send(ch, ttftSamples, l.Samples(), sc.Model, sc.Tenant)
		metrics.Send(ch, ttftBase, m.Base, sc.Model, sc.Tenant)
		metrics.Send(ch, ttftToken, m.PerToken, sc.Model, sc.Tenant)
		metrics.Send(ch, ttftContext, m.PerContext, sc.Model, sc.Tenant)
		for _, r := range l.States() {
			metrics.Send(ch, ttftRails, engaged(&r), sc.Model, sc.Tenant, r.Rail.String())
			metrics.Send(ch, ttftEngagements, r.Engagements, sc.Model, sc.Tenant, r.Rail.String())
		}
		snap := p.Catalog.Snapshot(sc)
		for _, r := range l.Speeds() {
			if snap == nil || listed == maxListedRanks {
				break
			}
			if _, here := snap.Entry(r.Rank); !here {
				continue
			}
			listed++
			metrics.Send(ch, ttftSpeed, r.Speed, sc.Model, sc.Tenant, strconv.FormatUint(r.Rank.Worker, 10), strconv.FormatUint(uint64(r.Rank.DP), 10))
		}
	}
}

// engaged returns for how many ranks a guard rail is engaged; for a rail of the whole scope, 1
// or 0.
func engaged(r *ttft.RailState) int {
	switch {
	case r.Rail.OfRank():
		return len(r.Ranks)
	case r.Engaged:
		return 1
	}
	return 0
}
