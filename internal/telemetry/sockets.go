package telemetry

import "github.com/prometheus/client_golang/prometheus"

var (
	socketFamilies families

	streamRefused = socketFamilies.counter("stream_refused_total", "ZMQ connections of engines and replicas that were refused or given up for what the other side did, by reason.", "reason")
	replicaBehind = socketFamilies.counter("replica_behind_total", "Messages that a subscriber of this replica did not get because it was too far behind.")
)

// Sockets collects metrics of ZMQ sockets.
type Sockets struct {
	Refused func() map[string]uint64 // connections refused so far, by reason
	Behind  func() uint64            // messages that slow replicas missed; nil: nothing is published
}

// Describe implements prometheus.Collector.
func (Sockets) Describe(ch chan<- *prometheus.Desc) { socketFamilies.describe(ch) }

// Collect implements prometheus.Collector.
func (c Sockets) Collect(ch chan<- prometheus.Metric) {
	for reason, n := range c.Refused() {
		send(ch, streamRefused, n, reason)
	}
	if c.Behind != nil {
		send(ch, replicaBehind, c.Behind())
	}
}
