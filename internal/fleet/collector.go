package fleet

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/telemetry/metrics"
)

var (
	// Families has the metric families of Collector.
	Families metrics.Families

	catalogState     = Families.Gauge("fleet_catalog_state", "1 for the state of this replica's copy of the fleet's catalog.", "state")
	catalogVersion   = Families.Gauge("fleet_catalog_version", "Version of the fleet's catalog that this replica has; 0: none.")
	settingsVersion  = Families.Gauge("fleet_settings_version", "Version of the fleet's catalog that had the settings of this replica first; 0: they are its own.")
	catalogWrites    = Families.Counter("fleet_catalog_writes_total", "Versions of the fleet's catalog that this replica has written.")
	catalogConflicts = Families.Counter("fleet_catalog_conflicts_total", "Writes of the fleet's catalog that were made again because another replica was first.")
	catalogFailures  = Families.Counter("fleet_catalog_failures_total", "Writes of the fleet's catalog that NATS did not answer, or refused.")
)

// Collector collects the metrics of a catalog; nil has none.
type Collector struct{ Catalog *Catalog }

// Describe implements prometheus.Collector.
func (Collector) Describe(ch chan<- *prometheus.Desc) { Families.Describe(ch) }

// Collect implements prometheus.Collector.
func (c Collector) Collect(ch chan<- prometheus.Metric) {
	if c.Catalog == nil {
		return
	}
	st := c.Catalog.Status()
	metrics.Send(ch, catalogState, 1, string(st.State))
	metrics.Send(ch, catalogVersion, st.Version)
	metrics.Send(ch, settingsVersion, st.Settings)
	metrics.Send(ch, catalogWrites, c.Catalog.commits.Load())
	metrics.Send(ch, catalogConflicts, c.Catalog.conflicts.Load())
	metrics.Send(ch, catalogFailures, c.Catalog.failures.Load())
}
