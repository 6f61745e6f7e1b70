package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/telemetry/metrics"
)

var (
	scannedFamilies metrics.Families

	scannedBytes = scannedFamilies.Counter("scanned_bytes_total", "Text of the token ids of long prompts: known from prompts before, or read.", "from")
)

// Scanned collects what the cache of token ids knew.
type Scanned struct{ Cache *bodyscan.Cache }

// Describe implements prometheus.Collector.
func (Scanned) Describe(ch chan<- *prometheus.Desc) { scannedFamilies.Describe(ch) }

// Collect implements prometheus.Collector.
func (s Scanned) Collect(ch chan<- prometheus.Metric) {
	known, read := s.Cache.Bytes()
	metrics.Send(ch, scannedBytes, known, "cache")
	metrics.Send(ch, scannedBytes, read, "text")
}
