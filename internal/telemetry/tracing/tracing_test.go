package tracing_test

import (
	"context"
	"errors"
	"math"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/attribute"

	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/test/helpers/tracetest"
)

// caller is a span of a caller that is sampled, unsampled the same of one that is not.
const (
	traceID   = "0af7651916cd43dd8448eb211c80319c"
	callerID  = "b7ad6b7169203331"
	caller    = "00-" + traceID + "-" + callerID + "-01"
	unsampled = "00-" + traceID + "-" + callerID + "-00"
)

// newTracer returns a tracer with variables of the environment.
func newTracer(t testing.TB, endpoint string, variables ...string) *tracing.Tracer {
	t.Helper()
	env := make(map[string]string)
	for _, v := range variables {
		name, value, _ := strings.Cut(v, "=")
		env[name] = value
		if t, ok := t.(*testing.T); ok {
			t.Setenv(name, value) // what the exporters read themselves
		}
	}
	tracer, err := tracing.New(t.Context(), tracing.Options{
		Endpoint: endpoint, Version: "v1", Getenv: func(name string) string { return env[name] }, Log: zerolog.Nop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return tracer
}

func closeTracer(t testing.TB, tracer *tracing.Tracer) {
	t.Helper()
	if err := tracer.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

// TestOff: without an endpoint, and with the variables that turn OpenTelemetry off, there is no
// tracer; and nothing of a nil one panics.
func TestOff(t *testing.T) {
	for _, c := range []struct {
		endpoint  string
		variables []string
		on        bool
	}{
		{"", nil, false},
		{"http://127.0.0.1:1", nil, true},
		{"", []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"}, true},
		{"", []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://127.0.0.1:1/v1/traces"}, true},
		{"http://127.0.0.1:1", []string{"OTEL_SDK_DISABLED=true"}, false},
		{"http://127.0.0.1:1", []string{"OTEL_TRACES_EXPORTER=none"}, false},
	} {
		tracer := newTracer(t, c.endpoint, c.variables...)
		if (tracer != nil) != c.on {
			t.Errorf("%q %q: on is %v", c.endpoint, c.variables, tracer != nil)
		}
		closeTracer(t, tracer)
	}
	var off *tracing.Tracer
	span := off.Serve("a", tracing.Context{Parent: caller})
	if span != nil || off.Continue("a", tracing.Context{Parent: caller}) != nil || off.Sample("a", time.Now()) != nil || off.Trace("a") != nil {
		t.Error("a nil tracer starts spans")
	}
	span.Child("b").Step("c", time.Now(), time.Now())
	span.Set()
	span.Rename("d")
	span.Fail("e")
	span.End()
	if span.TraceID() != "" || span.Context() != (tracing.Context{}) || span.Example().TraceID != "" || tracing.Of(tracing.With(t.Context(), span)) != nil {
		t.Error("a nil span is somebody")
	}
}

// TestSampling: which spans each sampler samples, of callers that were and were not sampled, of none,
// and of one that cannot be read.
func TestSampling(t *testing.T) {
	for _, c := range []struct {
		sampler, arg                    string
		sampled, unsampled, root, trace float64 // shares of the spans
	}{
		{"", "", 1, 0, 1, 1},
		{"always_on", "", 1, 1, 1, 1},
		{"always_off", "", 0, 0, 0, 0},
		{"traceidratio", "0.25", .25, .25, .25, 1},
		{"parentbased_always_off", "", 1, 0, 0, 0},
		{"parentbased_traceidratio", "0.01", 1, 0, .01, 1},
		{"parentbased_traceidratio", "0", 1, 0, 0, 0},
	} {
		tracer := newTracer(t, "http://127.0.0.1:1", "OTEL_TRACES_SAMPLER="+c.sampler, "OTEL_TRACES_SAMPLER_ARG="+c.arg)
		const n = 2_000
		share := func(start func(i int) *tracing.Span) float64 {
			sampled := 0
			for i := range n {
				if start(i) != nil {
					sampled++
				}
			}
			return float64(sampled) / n
		}
		of := func(flag string) func(int) *tracing.Span {
			return func(i int) *tracing.Span {
				id := strings.Repeat("0", 16) + traceIDs[i%len(traceIDs)]
				return tracer.Serve("a", tracing.Context{Parent: "00-" + id + "-" + callerID + "-" + flag})
			}
		}
		for _, kind := range []struct {
			name  string
			start func(int) *tracing.Span
			want  float64
		}{
			{"sampled caller", of("01"), c.sampled},
			{"caller that is not sampled", of("00"), c.unsampled},
			{"no caller", func(int) *tracing.Span { return tracer.Serve("a", tracing.Context{}) }, c.root},
			{"malformed caller", func(int) *tracing.Span { return tracer.Serve("a", tracing.Context{Parent: "00-1-2-01"}) }, c.root},
			{"own frequent work", func(int) *tracing.Span { return tracer.Sample("a", time.Now()) }, c.root},
			{"own rare work", func(int) *tracing.Span { return tracer.Trace("a") }, c.trace},
		} {
			// Five standard deviations: a fair draw fails once in two million.
			if got, margin := share(kind.start), 5*math.Sqrt(kind.want*(1-kind.want)/n); math.Abs(got-kind.want) > margin {
				t.Errorf("%s %s, %s: %v sampled, want %v", c.sampler, c.arg, kind.name, got, kind.want)
			}
		}
		closeTracer(t, tracer)
	}
}

// traceIDs are the last halves of ids, spread evenly: ratios are compared with them.
var traceIDs = func() (all []string) {
	for i := range 1000 {
		all = append(all, hexOf(uint64(i)<<54|1))
	}
	return all
}()

func hexOf(n uint64) string {
	const digits = "0123456789abcdef"
	text := make([]byte, 16)
	for i := range text {
		text[i] = digits[n>>(60-4*i)&15]
	}
	return string(text)
}

// TestSpans: spans come to a collector, over both protocols, with names, parents, times, faults and
// the resource that variables name; and what is passed on names the span.
func TestSpans(t *testing.T) {
	for _, protocol := range []string{"grpc", "http/protobuf"} {
		t.Run(protocol, func(t *testing.T) {
			c := tracetest.Start(t)
			endpoint := c.GRPC
			if protocol != "grpc" {
				endpoint = c.HTTP
			}
			tracer := newTracer(t, endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL="+protocol, "OTEL_RESOURCE_ATTRIBUTES=team=a,service.name=mine")
			span := tracer.Serve("request", tracing.OfHeader(http.Header{"Traceparent": {caller}, "Tracestate": {"x=1", "y=2"}}))
			began := time.Now().Add(-time.Second)
			span.Step("step", began, began.Add(time.Millisecond))
			child := span.Child("child")
			child.Fail("why" + strings.Repeat(" ä", 1000))
			child.Set(attribute.String("long", strings.Repeat("x", 64<<10)))
			header := http.Header{}
			child.Context().AddTo(header)
			child.End()
			span.Rename("renamed")
			span.End()
			if continued := tracer.Continue("further", tracing.OfHeader(header)); continued == nil {
				t.Error("a sampled caller is not continued")
			} else {
				continued.End()
			}
			if tracer.Continue("further", tracing.Context{}) != nil {
				t.Error("a trace begins with Continue")
			}
			closeTracer(t, tracer)
			got := c.Await(t, traceID, "renamed")
			if tree := got.Under(callerID); tree != "step renamed(child(further))" && tree != "renamed(step child(further))" {
				t.Errorf("%s in:\n%v", tree, got)
			}
			if s := got.Named("step"); len(s) != 1 || s[0].End.Sub(s[0].Start) != time.Millisecond || !s[0].Start.Equal(began.Round(0)) {
				t.Errorf("%v", got)
			}
			if s := got.Named("child"); len(s) != 1 || len(s[0].Fault) > 1024 || !strings.HasPrefix(s[0].Fault, "why ä") || len(s[0].Attributes["long"]) != 1024 || s[0].Attributes["team"] != "a" || s[0].Attributes["service.name"] != "mine" || s[0].Attributes["service.version"] != "v1" {
				t.Errorf("%v", got)
			}
			if state := header.Get("Tracestate"); state != "x=1,y=2" {
				t.Errorf("tracestate %q is passed on", state)
			}
		})
	}
}

// TestPropagators: without W3C's propagator callers are not heeded, and nothing is passed on.
func TestPropagators(t *testing.T) {
	tracer := newTracer(t, "http://127.0.0.1:1", "OTEL_PROPAGATORS=baggage")
	defer closeTracer(t, tracer)
	span := tracer.Serve("a", tracing.Context{Parent: caller})
	if span.TraceID() == traceID || span.Context().Parent != "" || tracer.Continue("a", tracing.Context{Parent: caller}) != nil {
		t.Error("W3C's headers are used")
	}
}

// TestStuckCollector: a collector that accepts connections and never answers costs neither time nor
// memory: spans beyond the queue are dropped, and Close gives up when its context ends.
func TestStuckCollector(t *testing.T) {
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	tracer := newTracer(t, "http://"+ln.Addr().String(), "OTEL_BSP_MAX_QUEUE_SIZE=8", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=4", "OTEL_BSP_SCHEDULE_DELAY=1")
	for range 1000 {
		tracer.Serve("a", tracing.Context{}).End()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tracer.Close(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestNotSampled: a request that is not sampled costs no memory.
func TestNotSampled(t *testing.T) {
	tracer := newTracer(t, "http://127.0.0.1:1", "OTEL_TRACES_SAMPLER=parentbased_always_off")
	defer closeTracer(t, tracer)
	h := http.Header{"Content-Type": {"application/json"}}
	if n := testing.AllocsPerRun(100, func() {
		if tracer.Serve("a", tracing.OfHeader(h)).Child("b").Context().Parent != "" {
			t.Error("sampled")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkNotSampled is the cost for a request that is not sampled.
func BenchmarkNotSampled(b *testing.B) {
	tracer := newTracer(b, "http://127.0.0.1:1", "OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=0")
	defer closeTracer(b, tracer)
	h := http.Header{"Content-Type": {"application/json"}}
	b.ReportAllocs()
	for b.Loop() {
		tracer.Serve("a", tracing.OfHeader(h)).End()
	}
}
