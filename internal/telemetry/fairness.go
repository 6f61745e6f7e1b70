package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/internal/telemetry/metrics"
)

var (
	fairnessFamilies metrics.Families

	fairEvenness = fairnessFamilies.Gauge("fairness_jain_index", "How evenly the tenants, and the programs, that were active within a half-life share the engines in a policy class that is fair: Jain's index of the engine seconds over the fair share, 1 if all have theirs, 1/n if one of n has everything.", "model_name", "tenant_id", "policy_class", "of")
	fairActive   = fairnessFamilies.Gauge("fairness_active", "Tenants and programs that were active within a half-life.", "model_name", "tenant_id", "policy_class", "of")
	fairAccounts = fairnessFamilies.Gauge("fairness_accounts", "Tenants and programs whose engine seconds are kept.", "model_name", "tenant_id", "policy_class")
)

// Fairness collects how evenly the engines are shared.
type Fairness struct{ Registry *scopes.Registry }

// Describe implements prometheus.Collector.
func (Fairness) Describe(ch chan<- *prometheus.Desc) { fairnessFamilies.Describe(ch) }

// Collect implements prometheus.Collector.
func (f Fairness) Collect(ch chan<- prometheus.Metric) {
	now := f.Registry.Seconds()
	for sc, state := range f.Registry.All() {
		for _, class := range state.Rules().Queue.FairClasses(false) {
			even := class.Accounts.Evenness(now)
			metrics.Send(ch, fairEvenness, even.OfTenants, sc.Model, sc.Tenant, class.Name, "tenants")
			metrics.Send(ch, fairEvenness, even.OfPrograms, sc.Model, sc.Tenant, class.Name, "programs")
			metrics.Send(ch, fairActive, even.Tenants, sc.Model, sc.Tenant, class.Name, "tenants")
			metrics.Send(ch, fairActive, even.Programs, sc.Model, sc.Tenant, class.Name, "programs")
			metrics.Send(ch, fairAccounts, class.Accounts.Accounts(), sc.Model, sc.Tenant, class.Name)
		}
	}
}
