package telemetry

import "github.com/prometheus/client_golang/prometheus"

var (
	processFamilies families

	logLinesDropped = processFamilies.counter("log_lines_dropped_total", "Log lines that were lost because standard error did not take them in time.")
)

// Process collects what belongs to the process and no part of the service.
type Process struct {
	LogLinesDropped func() uint64
}

// Describe implements prometheus.Collector.
func (Process) Describe(ch chan<- *prometheus.Desc) { processFamilies.describe(ch) }

// Collect implements prometheus.Collector.
func (p Process) Collect(ch chan<- prometheus.Metric) {
	send(ch, logLinesDropped, p.LogLinesDropped())
}
