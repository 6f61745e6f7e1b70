package telemetry

import (
	"iter"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/telemetry/metrics"
	"github.com/select-service/select-service/pkg/catalog"
)

var (
	engineFamilies metrics.Families

	enginesReporting   = engineFamilies.Gauge("engine_reports_ranks", "Ranks whose engines say what load they have, by whether the last report is still used: fresh, stale.", "state")
	enginesExcluded    = engineFamilies.Gauge("engines_excluded", "Ranks that get no new requests because their engines give no sign of life: stalled have unfinished work, silent have a load source that is quiet.", "state")
	enginesExclusions  = engineFamilies.Counter("engine_exclusions_total", "How often ranks began to get no new requests because their engines gave no sign of life.", "state")
	enginesAllExcluded = engineFamilies.Counter("engines_all_excluded_total", "Choices in which no eligible rank gave a sign of life, so that none was excluded.")
	reportsUnused      = engineFamilies.Counter("engine_reports_unused_total", "Load reports for ranks that no schedulable worker has.")
)

// EngineCounts are the counts of what engines say of themselves.
type EngineCounts struct {
	Fresh, Stale                int // ranks that report
	Stalled, Silent             int // ranks that give no sign of life
	BecameStalled, BecameSilent uint64
	AllExcluded, Unused         uint64
}

// Engines collects what engines say of themselves.
type Engines struct{ Counts func() EngineCounts }

// Describe implements prometheus.Collector.
func (Engines) Describe(ch chan<- *prometheus.Desc) { engineFamilies.Describe(ch) }

// Collect implements prometheus.Collector.
func (e Engines) Collect(ch chan<- prometheus.Metric) {
	n := e.Counts()
	metrics.Send(ch, enginesReporting, n.Fresh, "fresh")
	metrics.Send(ch, enginesReporting, n.Stale, "stale")
	metrics.Send(ch, enginesExcluded, n.Stalled, "stalled")
	metrics.Send(ch, enginesExcluded, n.Silent, "silent")
	metrics.Send(ch, enginesExclusions, n.BecameStalled, "stalled")
	metrics.Send(ch, enginesExclusions, n.BecameSilent, "silent")
	metrics.Send(ch, enginesAllExcluded, n.AllExcluded)
	metrics.Send(ch, reportsUnused, n.Unused)
}

var (
	saturationFamilies metrics.Families

	scopeSaturation = saturationFamilies.Gauge("scope_saturation_ratio", "Mean over the schedulable ranks of the greatest share of KV blocks, running requests and busy thresholds that is taken; without such a rank 1 if requests came in the last 30 s.", rankLabels[:2]...)
	scopeWait       = saturationFamilies.Gauge("scope_wait_seconds", "Predicted wait of a new request on the rank where it is shortest.", rankLabels[:2]...)
	// Of scopes with workers of one phase.
	roleSaturation = scopeSaturation.With("role")
	roleWait       = scopeWait.With("role")

	scopeRefused = saturationFamilies.Gauge("scope_refused_ratio", "Share of the selections of the last 30 s that were refused because there was no room or no worker.", rankLabels[:2]...)
)

// Saturation is how full a scope is, for autoscalers.
type Saturation struct {
	Scope   catalog.Scope
	Refused float64
	// Roles are how full its ranks are by their workers' role, in order. A scope whose workers all serve
	// both phases has one, without a name.
	Roles []RoleSaturation
}

// RoleSaturation is how full the ranks of a role are.
type RoleSaturation struct {
	Role        string // catalog.RolePrefill, catalog.RoleDecode or RoleBoth; "": no worker of the scope has a role
	Ratio, Wait float64
}

// RoleBoth is the role of workers that serve both phases, in a scope in which others serve one.
const RoleBoth = "both"

// Saturations collects how full the scopes are.
type Saturations struct{ All iter.Seq[Saturation] }

// Describe implements prometheus.Collector.
func (Saturations) Describe(ch chan<- *prometheus.Desc) { saturationFamilies.Describe(ch) }

// Collect implements prometheus.Collector.
func (s Saturations) Collect(ch chan<- prometheus.Metric) {
	for x := range s.All {
		for _, r := range x.Roles {
			if r.Role == "" {
				metrics.Send(ch, scopeSaturation, r.Ratio, x.Scope.Model, x.Scope.Tenant)
				metrics.Send(ch, scopeWait, r.Wait, x.Scope.Model, x.Scope.Tenant)
				continue
			}
			metrics.Send(ch, roleSaturation, r.Ratio, x.Scope.Model, x.Scope.Tenant, r.Role)
			metrics.Send(ch, roleWait, r.Wait, x.Scope.Model, x.Scope.Tenant, r.Role)
		}
		metrics.Send(ch, scopeRefused, x.Refused, x.Scope.Model, x.Scope.Tenant)
	}
}
