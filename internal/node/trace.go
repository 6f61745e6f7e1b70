package node

import (
	"context"
	"io"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/pkg/replicasync"
)

// eventsEvery is the least time between two messages of engines that may be traced: there are
// tens of thousands a second.
const eventsEvery = 100 * time.Millisecond

// watchEvents returns the kvevents.Config.Watch that traces messages; nil without a tracer.
func watchEvents(t *tracing.Tracer) func(catalog.Rank, int64) func(kvevents.Watched) {
	if t == nil {
		return nil
	}
	var next atomic.Int64 // when the next message may be traced, in Unix ns
	return func(stream catalog.Rank, received int64) func(kvevents.Watched) {
		due := next.Load()
		if received < due || !next.CompareAndSwap(due, received+int64(eventsEvery)) {
			return nil
		}
		came := time.Unix(0, received)
		span := t.Sample("event batch", came)
		if span == nil {
			return nil
		}
		began := time.Now()
		return func(w kvevents.Watched) {
			span.Step("wait", came, began)
			span.Step("apply", began, time.Now())
			span.Set(
				attribute.Int64("select_service.worker_id", int64(stream.Worker)), attribute.Int64("select_service.dp_rank", int64(stream.DP)),
				attribute.Int64("select_service.events.sequence", int64(w.Sequence)), attribute.Int("select_service.events.count", w.Events),
				attribute.Int("select_service.events.bytes", w.Bytes), attribute.Float64("select_service.events.lag_seconds", w.Lag.Seconds()))
			if w.Err != nil {
				span.Fail(w.Err.Error())
			}
			span.End()
		}
	}
}

// tracedFetcher traces the reading of other replicas' reservations.
type tracedFetcher struct {
	replicasync.Fetcher
	tracer *tracing.Tracer
}

// GetAnnounced implements replicasync.Fetcher.
func (f tracedFetcher) GetAnnounced(ctx context.Context, url, host string) (io.ReadCloser, error) {
	span := f.tracer.Trace("read snapshot of a replica")
	span.Set(attribute.String("url.full", url))
	body, err := f.Fetcher.GetAnnounced(tracing.With(ctx, span), url, host)
	if err != nil {
		span.Fail(err.Error())
		span.End()
		return nil, err //nolint:wrapcheck // it is the fetcher's
	}
	if span == nil {
		return body, nil
	}
	return &tracedBody{body, span}, nil
}

// tracedBody ends a span when it is closed.
type tracedBody struct {
	io.ReadCloser
	span *tracing.Span
}

func (b *tracedBody) Close() error {
	b.span.End()
	return b.ReadCloser.Close()
}
