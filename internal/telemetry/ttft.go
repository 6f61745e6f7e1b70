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
	ttftAttended    = predictionFamilies.Gauge("ttft_attended_seconds", "Learned time by which each output token comes later for each token of the prompts that its rank's answers attend to; 0 until it is learned.", scopeLabels...)
	ttftAnswer      = predictionFamilies.Gauge("ttft_answer_tokens", "Learned mean length of an answer in tokens; 0 until one is known.", scopeLabels...)
	ttftSpeed       = predictionFamilies.Gauge("ttft_rank_time_ratio", "Learned time of a rank's prefills by that of its scope.", rankLabels...)
	ttftOutput      = predictionFamilies.Gauge("ttft_rank_output_token_seconds", "Learned time of a rank for each token of an answer after the first: the median of its answers.", rankLabels...)
	ttftError       = predictionFamilies.Gauge("ttft_error_ratio", "Observed time to first token over the predicted one that this share of requests has at most, as learned.", append(scopeLabels[:2:2], "share")...)
	ttftRankError   = predictionFamilies.Gauge("ttft_rank_error_ratio", "The same of a rank.", append(rankLabels[:4:4], "share")...)
	ttftHeld        = predictionFamilies.Gauge("ttft_held_ratio", "Share of the latest 256 first tokens that came within the ninth decile of their prediction: 0.9 if it is right.", scopeLabels...)
	ttftPredicted   = predictionFamilies.Gauge("ttft_decile_predicted_seconds", "Mean predicted time to first token of the latest 256 predictions, by decile of the predicted time.", append(scopeLabels[:2:2], "decile")...)
	ttftObserved    = predictionFamilies.Gauge("ttft_decile_observed_seconds", "Mean observed time to first token of the same requests.", append(scopeLabels[:2:2], "decile")...)
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
		metrics.Send(ch, ttftAttended, m.PerAttended, sc.Model, sc.Tenant)
		metrics.Send(ch, ttftAnswer, m.Output, sc.Model, sc.Tenant)
		for _, r := range l.States() {
			metrics.Send(ch, ttftRails, engaged(&r), sc.Model, sc.Tenant, r.Rail.String())
			metrics.Send(ch, ttftEngagements, r.Engagements, sc.Model, sc.Tenant, r.Rail.String())
		}
		sendErrors(ch, ttftError, m.Calibration, sc.Model, sc.Tenant)
		if c := l.Compare(); c.Predictions > 0 {
			metrics.Send(ch, ttftHeld, c.Held, sc.Model, sc.Tenant)
			for i, d := range c.Deciles {
				metrics.Send(ch, ttftPredicted, d.Predicted, sc.Model, sc.Tenant, strconv.Itoa(i+1))
				metrics.Send(ch, ttftObserved, d.Observed, sc.Model, sc.Tenant, strconv.Itoa(i+1))
			}
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
			labels := []string{sc.Model, sc.Tenant, strconv.FormatUint(r.Rank.Worker, 10), strconv.FormatUint(uint64(r.Rank.DP), 10)}
			metrics.Send(ch, ttftSpeed, r.Speed, labels...)
			if r.PerOutput > 0 {
				metrics.Send(ch, ttftOutput, r.PerOutput, labels...)
			}
			sendErrors(ch, ttftRankError, r.Calibration, labels...)
		}
	}
}

// sendErrors sends quantiles of errors, if there are any.
func sendErrors(ch chan<- prometheus.Metric, of metrics.Family, c ttft.Calibration, labels ...string) {
	if c.Samples > 0 {
		metrics.Send(ch, of, c.Q50, append(labels[:len(labels):len(labels)], "0.5")...)
		metrics.Send(ch, of, c.Q90, append(labels[:len(labels):len(labels)], "0.9")...)
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
