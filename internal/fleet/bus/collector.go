package bus

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/telemetry/metrics"
)

var (
	// Families has the metric families of Collector.
	Families metrics.Families

	fleetState      = Families.Gauge("fleet_state", "1 for the state of the connection to the fleet's NATS.", "state")
	fleetReplicas   = Families.Gauge("fleet_replicas", "Other replicas of the fleet that are heard.")
	fleetReconnects = Families.Counter("fleet_reconnects_total", "Connections to the fleet's NATS that were made again.")
	fleetLost       = Families.Counter("fleet_lost_total", "Messages between the replicas of the fleet that were lost here: unsent while NATS was away, dropped because this replica was too slow, or malformed.", "why")
)

// Collector collects the metrics of a connection; nil has none.
type Collector struct{ Conn *Conn }

// Describe implements prometheus.Collector.
func (Collector) Describe(ch chan<- *prometheus.Desc) { Families.Describe(ch) }

// Collect implements prometheus.Collector.
func (c Collector) Collect(ch chan<- prometheus.Metric) {
	if c.Conn == nil {
		return
	}
	st := c.Conn.Status()
	metrics.Send(ch, fleetState, 1, st.State.String())
	metrics.Send(ch, fleetReplicas, len(c.Conn.Live()))
	metrics.Send(ch, fleetReconnects, st.Reconnects)
	metrics.Send(ch, fleetLost, st.Unsent, "unsent")
	metrics.Send(ch, fleetLost, st.Dropped, "dropped")
	metrics.Send(ch, fleetLost, st.Malformed, "malformed")
}

// Live lists the names of the other replicas that are live.
func (c *Conn) Live() []string {
	names := []string{}
	for _, m := range c.Members() {
		if m.Live {
			names = append(names, m.Name)
		}
	}
	return names
}
