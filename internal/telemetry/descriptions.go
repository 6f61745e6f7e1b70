package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/telemetry/metrics"
)

var (
	descriptionFamilies metrics.Families

	engineQuestions = descriptionFamilies.Counter("engine_questions_total", "Engines that were asked to describe themselves, by outcome.", "outcome")
)

// Descriptions collects the questions to engines that describe themselves.
type Descriptions struct {
	// Asked counts them by outcome: answered, away or refused.
	Asked func() map[string]uint64
}

// Describe implements prometheus.Collector.
func (Descriptions) Describe(ch chan<- *prometheus.Desc) { descriptionFamilies.Describe(ch) }

// Collect implements prometheus.Collector.
func (d Descriptions) Collect(ch chan<- prometheus.Metric) {
	sendByName(ch, engineQuestions, d.Asked())
}
