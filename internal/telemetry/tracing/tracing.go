package tracing

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	grpctls "google.golang.org/grpc/credentials"
	plaintext "google.golang.org/grpc/credentials/insecure"
)

// Options are the settings of a Tracer. Settings that are unset are read from the variables that
// OpenTelemetry defines for every program (OTEL_…).
type Options struct {
	// Endpoint is the base URL of the collector's OTLP receiver; "": that of the environment.
	Endpoint string
	Version  string // of this program
	Getenv   func(string) string
	Log      zerolog.Logger
}

// Variables of the environment.
const (
	tracesEndpoint = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	allEndpoint    = "OTEL_EXPORTER_OTLP_ENDPOINT"
	tracesProtocol = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
	allProtocol    = "OTEL_EXPORTER_OTLP_PROTOCOL"
	exporter       = "OTEL_TRACES_EXPORTER"
	disabled       = "OTEL_SDK_DISABLED"
	samplerName    = "OTEL_TRACES_SAMPLER"
	samplerArg     = "OTEL_TRACES_SAMPLER_ARG"
	propagators    = "OTEL_PROPAGATORS"
)

// Service is the name of this program in traces, unless OTEL_SERVICE_NAME or
// OTEL_RESOURCE_ATTRIBUTES has another.
const Service = "select-service"

// Tracer starts spans of work that is sampled, and sends them. A queue holds what is not sent yet;
// spans beyond its bound (OTEL_BSP_MAX_QUEUE_SIZE, 2,048) are dropped. Its methods are safe for
// concurrent use; a nil Tracer starts no spans.
type Tracer struct {
	tracer     trace.Tracer
	provider   *sdktrace.TracerProvider
	sampler    sampler
	propagates bool // callers' spans are heeded, and ours passed on
	counts     *counts
}

// New returns the tracer that the options and the environment ask for, nil if they ask for none. An
// error is of Options.Endpoint: the environment ends no start, see environment.
// Nothing is connected yet: a collector that is away costs spans and a line of the log at times.
// The caller must call Close.
func New(ctx context.Context, o Options) (*Tracer, error) {
	env := &environment{o.Getenv, o.Log}
	if o.Endpoint == "" && env.get(tracesEndpoint) == "" && env.get(allEndpoint) == "" {
		return nil, nil
	}
	if env.off() {
		return nil, nil
	}
	var to *target
	if o.Endpoint == "" {
		to = env.target()
	} else {
		u, err := url.Parse(o.Endpoint)
		if err != nil {
			return nil, fmt.Errorf("otlp exporter: %w", err)
		}
		to = &target{url: u.JoinPath(tracesPath), protocol: protocolOf(env.protocol(), u.Port())}
	}
	if to == nil {
		return nil, nil
	}
	// Until all is built, what the SDK says of the environment is said better by ourselves.
	otel.SetLogger(logr.Discard())
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {}))
	client, err := newExporter(ctx, to, env)
	switch {
	case err != nil && o.Endpoint == "":
		o.Log.Warn().Err(err).Stringer("endpoint", to).Msg("nothing is traced: OTEL_EXPORTER_OTLP_ENDPOINT cannot be used")
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("otlp exporter: %w", err)
	}
	about, err := resource.New(ctx,
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithProcessPID(),
		resource.WithAttributes(attribute.String("service.name", Service), attribute.String("service.version", o.Version)),
		resource.WithAttributes(env.attributes()...))
	if err != nil {
		o.Log.Warn().Err(err).Msg("the resource of spans is not complete")
	}
	t := &Tracer{sampler: env.sampler(), propagates: env.propagates(), counts: &counts{SpanExporter: client}}
	t.provider = sdktrace.NewTracerProvider(
		sdktrace.WithResource(about), sdktrace.WithRawSpanLimits(env.limits()), sdktrace.WithSampler(sdktrace.AlwaysSample()), sdktrace.WithIDGenerator(ids{}), // the sampler has decided
		sdktrace.WithSpanProcessor(ended{&t.counts.ended}), sdktrace.WithBatcher(t.counts, env.queue()...))
	otel.SetErrorHandler(&faults{log: o.Log, endpoint: to.String()})
	t.tracer = t.provider.Tracer("github.com/select-service/select-service", trace.WithInstrumentationVersion(o.Version))
	return t, nil
}

// newExporter returns the exporter to a target. All that it would read of the environment by itself is
// given.
func newExporter(ctx context.Context, to *target, env *environment) (sdktrace.SpanExporter, error) {
	insecure := to.insecure(env)
	var encrypted *tls.Config
	if !insecure {
		encrypted = env.tls()
	}
	headers, timeout := env.headers(to.protocol), env.timeout()
	if to.protocol == protocolGRPC {
		credentials, compressor, address := plaintext.NewCredentials(), "", to.address
		if !insecure {
			credentials = grpctls.NewTLS(encrypted)
		}
		if env.compresses() {
			compressor = "gzip"
		}
		if to.url != nil {
			address = to.url.Host
		}
		return otlptracegrpc.New(ctx, otlptracegrpc.WithEndpoint(address), otlptracegrpc.WithTLSCredentials(credentials),
			otlptracegrpc.WithHeaders(headers), otlptracegrpc.WithTimeout(timeout), otlptracegrpc.WithCompressor(compressor))
	}
	compression := otlptracehttp.NoCompression
	if env.compresses() {
		compression = otlptracehttp.GzipCompression
	}
	transport := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // it is one
	transport.TLSClientConfig = encrypted
	return otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(to.url.String()), otlptracehttp.WithTLSClientConfig(nil),
		otlptracehttp.WithHeaders(headers), otlptracehttp.WithTimeout(timeout), otlptracehttp.WithCompression(compression),
		otlptracehttp.WithEncoding(otlptracehttp.EncodingProtobuf),
		otlptracehttp.WithHTTPClient(&http.Client{
			Transport: transport, Timeout: timeout,
			// The headers, which may be credentials, are for this collector alone.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}))
}

// sampler says which work is traced. It decides as OpenTelemetry's SDK does: with SDKs that sample
// by the same ratio all agree on a trace.
type sampler struct {
	parentBased bool   // a caller's decision is followed
	bound       uint64 // a new trace is sampled if the last 63 bits of its id are below; 0: none is
}

// everything is the bound that samples every trace.
const everything = 1 << 63

// samples reports whether work is traced in a trace of the given id; parent is the caller's span,
// an invalid one for none.
func (s sampler) samples(id trace.TraceID, parent *trace.SpanContext) bool {
	if s.parentBased && parent.IsValid() {
		return parent.IsSampled()
	}
	return binary.BigEndian.Uint64(id[8:])>>1 < s.bound
}

// Close sends the spans that have ended, until ctx ends, and ends the tracer's goroutine.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	if err := t.provider.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("send the last spans: %w", err)
	}
	return nil
}

// Serve starts the span of a request that has come, if it is sampled; caller is the span that it
// belongs to.
func (t *Tracer) Serve(name string, caller Context) *Span {
	if t == nil {
		return nil
	}
	var parent trace.SpanContext
	if t.propagates && caller.Parent != "" {
		parent = caller.span()
	}
	return t.start(name, newTraceID(), parent, trace.SpanKindServer, time.Time{})
}

// Continue is Serve for a request that is traced only within the trace of its caller.
func (t *Tracer) Continue(name string, caller Context) *Span {
	if t == nil || caller.Parent == "" || !t.propagates {
		return nil
	}
	parent := caller.span()
	if !parent.IsValid() {
		return nil
	}
	return t.start(name, newTraceID(), parent, trace.SpanKindServer, time.Time{})
}

// Sample starts the span of work of this process's own that is frequent and began at the given
// time, if it is sampled.
func (t *Tracer) Sample(name string, began time.Time) *Span {
	if t == nil {
		return nil
	}
	return t.start(name, newTraceID(), trace.SpanContext{}, trace.SpanKindInternal, began)
}

// Trace starts the span of rare work of this process itself. It always starts one, unless sampling is off.
func (t *Tracer) Trace(name string) *Span {
	if t == nil {
		return nil
	}
	id := newTraceID()
	binary.BigEndian.PutUint64(id[8:], 0) // what a ratio is compared with
	return t.start(name, id, trace.SpanContext{}, trace.SpanKindInternal, time.Time{})
}

// start starts a span if it is sampled; a zero began is now. The SDK would allocate for each that is
// not sampled.
func (t *Tracer) start(name string, id trace.TraceID, parent trace.SpanContext, kind trace.SpanKind, began time.Time) *Span {
	if parent.IsValid() {
		id = parent.TraceID()
	}
	if !t.sampler.samples(id, &parent) {
		return nil
	}
	ctx := trace.ContextWithRemoteSpanContext(context.Background(), parent)
	options := []trace.SpanStartOption{trace.WithSpanKind(kind)}
	if !began.IsZero() {
		options = append(options, trace.WithTimestamp(began))
	}
	_, span := t.tracer.Start(context.WithValue(ctx, traceIDKey{}, id), name, options...)
	return &Span{t, span}
}

// newTraceID returns a random id.
func newTraceID() (id trace.TraceID) {
	binary.BigEndian.PutUint64(id[:8], max(rand.Uint64(), 1))
	binary.BigEndian.PutUint64(id[8:], rand.Uint64())
	return id
}

// traceIDKey is the context key of the id of a new trace.
type traceIDKey struct{}

// ids gives a new trace the id by which it was sampled.
type ids struct{}

// NewIDs implements sdktrace.IDGenerator.
func (ids) NewIDs(ctx context.Context) (id trace.TraceID, _ trace.SpanID) {
	id, ok := ctx.Value(traceIDKey{}).(trace.TraceID)
	if !ok {
		id = newTraceID()
	}
	return id, ids{}.NewSpanID(ctx, id)
}

// NewSpanID implements sdktrace.IDGenerator.
func (ids) NewSpanID(context.Context, trace.TraceID) (id trace.SpanID) {
	binary.BigEndian.PutUint64(id[:], max(rand.Uint64(), 1))
	return id
}

// faultsEvery is the least time between two lines of the log about the collector.
const faultsEvery = time.Minute

// faults logs what OpenTelemetry reports: failures to send, mostly.
type faults struct {
	log      zerolog.Logger
	endpoint string
	last     atomic.Int64 // when one was logged, in Unix ns
}

// Handle implements otel.ErrorHandler.
func (f *faults) Handle(err error) {
	now, last := time.Now().UnixNano(), f.last.Load()
	if now-last >= int64(faultsEvery) && f.last.CompareAndSwap(last, now) {
		f.log.Warn().Err(err).Str("endpoint", f.endpoint).Msg("spans not sent")
	}
}
