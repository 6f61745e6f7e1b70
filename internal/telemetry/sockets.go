package telemetry

import "github.com/prometheus/client_golang/prometheus"

var (
	socketFamilies families

	streamRefused = socketFamilies.counter("stream_refused_total", "ZMQ connections of engines and replicas that were refused or given up for what the other side did, by reason.", "reason")
)

// Sockets collects what is known of ZMQ sockets.
type Sockets struct {
	Refused func() map[string]uint64 // connections refused so far, by reason
}

// Describe implements prometheus.Collector.
func (Sockets) Describe(ch chan<- *prometheus.Desc) { socketFamilies.describe(ch) }

// Collect implements prometheus.Collector.
func (c Sockets) Collect(ch chan<- prometheus.Metric) {
	for reason, n := range c.Refused() {
		send(ch, streamRefused, n, reason)
	}
}
