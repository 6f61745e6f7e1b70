package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/telemetry/metrics"
	"github.com/select-service/select-service/pkg/memory"
)

var (
	memoryFamilies metrics.Families

	memoryLimit   = memoryFamilies.Gauge("memory_limit_bytes", "Memory that is shared out to the accounts.")
	accountBytes  = memoryFamilies.Gauge("memory_account_bytes", "Memory that an account has in use.", "account")
	accountLimit  = memoryFamilies.Gauge("memory_account_limit_bytes", "Most memory that an account may use.", "account")
	memoryRefused = memoryFamilies.Counter("memory_refused_total", "Requests, frames, blocks or reservations that did not fit into an account.", "account")
)

// Memory collects the accounts of the memory budget.
type Memory struct{ Budget *memory.Budget }

// Describe implements prometheus.Collector.
func (Memory) Describe(ch chan<- *prometheus.Desc) { memoryFamilies.Describe(ch) }

// Collect implements prometheus.Collector.
func (m Memory) Collect(ch chan<- prometheus.Metric) {
	metrics.Send(ch, memoryLimit, m.Budget.Total())
	for _, a := range m.Budget.Accounts() {
		metrics.Send(ch, accountBytes, a.Used(), a.Name())
		metrics.Send(ch, accountLimit, a.Limit(), a.Name())
		metrics.Send(ch, memoryRefused, a.Refused(), a.Name())
	}
}
