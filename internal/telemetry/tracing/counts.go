package tracing

import (
	"context"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/select-service/select-service/internal/telemetry/metrics"
)

// Families has the families that a Tracer collects.
var Families metrics.Families

var (
	spansEnded  = Families.Counter("trace_spans_ended_total", "Spans of sampled work that have ended.")
	spansSent   = Families.Counter("trace_spans_sent_total", "Spans that the OpenTelemetry collector has taken.")
	spansFailed = Families.Counter("trace_spans_failed_total", "Spans that could not be sent. Spans that ended and were neither sent nor failed are queued, or dropped by a full queue.")
)

// counts counts the spans on their way through an exporter.
type counts struct {
	sdktrace.SpanExporter
	ended, sent, failed atomic.Uint64
}

// ExportSpans implements sdktrace.SpanExporter.
func (c *counts) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := c.SpanExporter.ExportSpans(ctx, spans)
	if err != nil {
		c.failed.Add(uint64(len(spans)))
	} else {
		c.sent.Add(uint64(len(spans)))
	}
	return err //nolint:wrapcheck // it is the exporter's
}

// ended counts spans when they end.
type ended struct{ n *atomic.Uint64 }

// OnStart implements sdktrace.SpanProcessor.
func (ended) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd implements sdktrace.SpanProcessor.
func (e ended) OnEnd(sdktrace.ReadOnlySpan) { e.n.Add(1) }

// Shutdown implements sdktrace.SpanProcessor.
func (ended) Shutdown(context.Context) error { return nil }

// ForceFlush implements sdktrace.SpanProcessor.
func (ended) ForceFlush(context.Context) error { return nil }

// Describe implements prometheus.Collector.
func (*Tracer) Describe(ch chan<- *prometheus.Desc) { Families.Describe(ch) }

// Collect implements prometheus.Collector. A nil Tracer has no series.
func (t *Tracer) Collect(ch chan<- prometheus.Metric) {
	if t == nil {
		return
	}
	metrics.Send(ch, spansSent, t.counts.sent.Load())
	metrics.Send(ch, spansFailed, t.counts.failed.Load())
	metrics.Send(ch, spansEnded, t.counts.ended.Load())
}
