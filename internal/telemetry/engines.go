package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/telemetry/metrics"
)

var (
	engineFamilies metrics.Families

	engineQuestions = engineFamilies.Counter("engine_questions_total", "Engines that were asked to describe themselves, by outcome.", "outcome")
)

// Engines collects the questions to engines that describe themselves.
type Engines struct {
	// Asked counts them by outcome: answered, away or refused.
	Asked func() map[string]uint64
}

// Describe implements prometheus.Collector.
func (Engines) Describe(ch chan<- *prometheus.Desc) { engineFamilies.Describe(ch) }

// Collect implements prometheus.Collector.
func (c Engines) Collect(ch chan<- prometheus.Metric) { sendByName(ch, engineQuestions, c.Asked()) }
