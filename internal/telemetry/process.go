package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/telemetry/metrics"
	"github.com/select-service/select-service/internal/transport/certs"
)

var (
	processFamilies metrics.Families

	logLinesDropped    = processFamilies.Counter("log_lines_dropped_total", "Log lines that were lost because standard error did not take them in time.")
	certificateExpires = processFamilies.Gauge("certificate_expires_timestamp_seconds", "When the certificate expires that the listeners show, or reads from other replicas; only with TLS.", "use")
)

// Process collects metrics of the process that belong to no part of the service.
type Process struct {
	LogLinesDropped func() uint64
	// Certificate and PeerCertificate are the certificates of the listeners and of reads from
	// other replicas; nil: none.
	Certificate, PeerCertificate *certs.Side
}

// Describe implements prometheus.Collector.
func (Process) Describe(ch chan<- *prometheus.Desc) { processFamilies.Describe(ch) }

// Collect implements prometheus.Collector.
func (p Process) Collect(ch chan<- prometheus.Metric) {
	metrics.Send(ch, logLinesDropped, p.LogLinesDropped())
	for use, expires := range map[string]time.Time{"listeners": p.Certificate.NotAfter(), "peers": p.PeerCertificate.NotAfter()} {
		if !expires.IsZero() {
			metrics.Send(ch, certificateExpires, expires.Unix(), use)
		}
	}
}
