package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/telemetry/metrics"
)

var (
	socketFamilies metrics.Families

	streamRefused = socketFamilies.Counter("stream_refused_total", "ZMQ connections of engines and replicas that were refused or given up for what the other side did, by reason.", "reason")
	replicaBehind = socketFamilies.Counter("replica_behind_total", "Messages that a subscriber of this replica did not get because it was too far behind.")
)

// Sockets collects metrics of ZMQ sockets.
type Sockets struct {
	Refused func() map[string]uint64 // connections refused so far, by reason
	Behind  func() uint64            // messages that slow replicas missed; nil: nothing is published
}

// Describe implements prometheus.Collector.
func (Sockets) Describe(ch chan<- *prometheus.Desc) { socketFamilies.Describe(ch) }

// Collect implements prometheus.Collector.
func (s Sockets) Collect(ch chan<- prometheus.Metric) {
	for reason, n := range s.Refused() {
		metrics.Send(ch, streamRefused, n, reason)
	}
	if s.Behind != nil {
		metrics.Send(ch, replicaBehind, s.Behind())
	}
}
