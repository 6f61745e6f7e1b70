package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/server/connections"
	"github.com/select-service/select-service/internal/transport/certs"
)

var (
	processFamilies families

	logLinesDropped    = processFamilies.counter("log_lines_dropped_total", "Log lines that were lost because standard error did not take them in time.")
	connectionsOpen    = processFamilies.gauge("http_connections", "Connections of all HTTP listeners.")
	connectionsRefused = processFamilies.counter("http_connections_refused_total", "HTTP connections that were refused because of a limit.", "limit")
	connectionsClosed  = processFamilies.counter("http_connections_closed_idle_total", "Idle HTTP connections that were closed to make room for new ones.")
	certificateExpires = processFamilies.gauge("certificate_expires_timestamp_seconds", "When the certificate expires that the listeners show, or reads from other replicas; only with TLS.", "use")
)

// Process collects metrics of the process that belong to no part of the service.
type Process struct {
	LogLinesDropped func() uint64
	Connections     *connections.Set
	// Certificate and PeerCertificate are the certificates of the listeners and of reads from
	// other replicas; nil: none.
	Certificate, PeerCertificate *certs.Side
}

// Describe implements prometheus.Collector.
func (Process) Describe(ch chan<- *prometheus.Desc) { processFamilies.describe(ch) }

// Collect implements prometheus.Collector.
func (p Process) Collect(ch chan<- prometheus.Metric) {
	send(ch, logLinesDropped, p.LogLinesDropped())
	st := p.Connections.Stats()
	send(ch, connectionsOpen, st.Open)
	send(ch, connectionsRefused, st.RefusedTotal, "max_connections")
	send(ch, connectionsRefused, st.RefusedAddress, "max_connections_per_address")
	send(ch, connectionsClosed, st.ClosedIdle)
	for use, expires := range map[string]time.Time{"listeners": p.Certificate.NotAfter(), "peers": p.PeerCertificate.NotAfter()} {
		if !expires.IsZero() {
			send(ch, certificateExpires, expires.Unix(), use)
		}
	}
}
