package connections

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/telemetry/metrics"
)

// Families has the metric families of Collect.
var Families metrics.Families

var (
	openConnections = Families.Gauge("http_connections", "Connections of all HTTP listeners.")
	refused         = Families.Counter("http_connections_refused_total", "HTTP connections that were refused because of a limit.", "limit")
	closedIdle      = Families.Counter("http_connections_closed_idle_total", "Idle HTTP connections that were closed to make room for new ones.")
)

// Describe implements prometheus.Collector.
func (s *Set) Describe(ch chan<- *prometheus.Desc) { Families.Describe(ch) }

// Collect implements prometheus.Collector.
func (s *Set) Collect(ch chan<- prometheus.Metric) {
	st := s.Stats()
	metrics.Send(ch, openConnections, st.Open)
	metrics.Send(ch, refused, st.RefusedTotal, "max_connections")
	metrics.Send(ch, refused, st.RefusedAddress, "max_connections_per_address")
	metrics.Send(ch, closedIdle, st.ClosedIdle)
}
