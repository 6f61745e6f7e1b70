package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/selection/policies"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/internal/telemetry/metrics"
)

var (
	decisionFamilies metrics.Families

	ttftErrors      = decisionFamilies.Histogram("ttft_predicted_error_ratio", "Time from a decision to its prefill_complete over what was predicted of it, of the decisions that are kept.")
	shadowDecisions = decisionFamilies.Counter("shadow_decisions_total", "Decisions beside which a shadow was evaluated, by whether it would have made the same.", "model_name", "policy", "shadow", "choice")
	shadowCost      = decisionFamilies.Gauge("shadow_cost_foregone", "What the decisions have cost the shadow beyond its own choices, in the unit of its cost.", "model_name", "policy", "shadow")
	shadowTTFT      = decisionFamilies.Gauge("shadow_ttft_foregone_seconds", "By how much the predicted time to first token of the decisions is longer than that of the shadow's choices; negative if it is shorter.", "model_name", "policy", "shadow")
)

// Decisions collects the comparison of shadow policies with the deciding ones, and the
// accuracy of predictions.
type Decisions struct {
	Registry *scopes.Registry
	Errors   *metrics.Histogram
}

// Describe implements prometheus.Collector.
func (Decisions) Describe(ch chan<- *prometheus.Desc) { decisionFamilies.Describe(ch) }

// Collect implements prometheus.Collector.
func (d Decisions) Collect(ch chan<- prometheus.Metric) {
	metrics.SendHistogram(ch, ttftErrors, d.Errors)
	type key struct{ model, policy, shadow string }
	sums := map[key]policies.ShadowStats{}
	for sc, state := range d.Registry.All() {
		p := state.Rules().Policies
		if p == nil {
			continue
		}
		for _, s := range p.Shadows() {
			k, st := key{sc.Model, p.Name, s.Name}, s.Stats()
			sum := sums[k]
			sum.Decisions += st.Decisions
			sum.Same += st.Same
			sum.CostForegone += st.CostForegone
			sum.TTFTForegone += st.TTFTForegone
			sums[k] = sum
		}
	}
	for k, st := range sums {
		metrics.Send(ch, shadowDecisions, st.Same, k.model, k.policy, k.shadow, "same")
		metrics.Send(ch, shadowDecisions, st.Decisions-st.Same, k.model, k.policy, k.shadow, "other")
		metrics.Send(ch, shadowCost, st.CostForegone, k.model, k.policy, k.shadow)
		metrics.Send(ch, shadowTTFT, st.TTFTForegone, k.model, k.policy, k.shadow)
	}
}
