package tracing_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/attribute"

	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/test/helpers/tracetest"
)

// lines is what was logged. The SDK of a tracer that an earlier test gave up reports its failures here, too.
type lines struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !bytes.Contains(p, []byte("spans not sent")) {
		l.text.Write(p)
	}
	return len(p), nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// tracerAndLog returns the tracer of an option and of variables, and what was logged at its start.
func tracerAndLog(t *testing.T, endpoint string, variables ...string) (*tracing.Tracer, string) {
	t.Helper()
	env := make(map[string]string)
	for _, v := range variables {
		name, value, _ := strings.Cut(v, "=")
		env[name] = value
		t.Setenv(name, value) // what the SDK reads by itself
	}
	var log lines
	tracer, err := tracing.New(t.Context(), tracing.Options{
		Endpoint: endpoint, Version: "v1", Getenv: func(name string) string { return env[name] }, Log: zerolog.New(&log),
	})
	if err != nil {
		t.Fatalf("%q: %v", variables, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = tracer.Close(ctx)
	})
	return tracer, log.String()
}

// TestVariables: no value of a variable ends the start. Of one that is not understood a warning names the
// variable, the value and what holds; of others there is none. The meanings are those of OpenTelemetry's
// specification, Environment Variable Specification and OTLP Exporter: enumerations are case-insensitive,
// unknown values and bad numbers are warned of and ignored.
func TestVariables(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		variables string // by spaces
		warns     string // "" for no warning
		off       bool
	}{
		{"OTEL_TRACES_SAMPLER=xray", `OTEL_TRACES_SAMPLER is \"xray\", which is not always_on, `, false},
		{"OTEL_TRACES_SAMPLER=parentbased_jaeger_remote", `OTEL_TRACES_SAMPLER is \"parentbased_jaeger_remote\"`, false},
		{"OTEL_TRACES_SAMPLER=ALWAYS_ON", "", false},
		{"OTEL_TRACES_SAMPLER=ParentBased_TraceIdRatio OTEL_TRACES_SAMPLER_ARG=0.5", "", false},
		{"OTEL_TRACES_SAMPLER=traceidratio OTEL_TRACES_SAMPLER_ARG=10%", `OTEL_TRACES_SAMPLER_ARG is \"10%\", which is not a number from 0 to 1: 1 holds`, false},
		{"OTEL_TRACES_SAMPLER=traceidratio OTEL_TRACES_SAMPLER_ARG=2", "OTEL_TRACES_SAMPLER_ARG", false},
		{"OTEL_TRACES_SAMPLER=traceidratio OTEL_TRACES_SAMPLER_ARG=-0.1", "OTEL_TRACES_SAMPLER_ARG", false},
		{"OTEL_TRACES_SAMPLER=traceidratio OTEL_TRACES_SAMPLER_ARG=NaN", "OTEL_TRACES_SAMPLER_ARG", false},
		{"OTEL_TRACES_SAMPLER=always_on OTEL_TRACES_SAMPLER_ARG=endpoint=http://x", "", false}, // another sampler's
		{"OTEL_EXPORTER_OTLP_PROTOCOL=http/json", `OTEL_EXPORTER_OTLP_PROTOCOL is \"http/json\", which is not grpc or http/protobuf`, false},
		{"OTEL_EXPORTER_OTLP_PROTOCOL=GRPC", "", false},
		{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=thrift OTEL_EXPORTER_OTLP_PROTOCOL=grpc", `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is \"thrift\"`, false},
		{"OTEL_TRACES_EXPORTER=zipkin", `OTEL_TRACES_EXPORTER is \"zipkin\"`, false},
		{"OTEL_TRACES_EXPORTER=OTLP", "", false},
		{"OTEL_TRACES_EXPORTER=None", "", true},
		{"OTEL_SDK_DISABLED=TRUE", "", true},
		{"OTEL_SDK_DISABLED=1", `OTEL_SDK_DISABLED is \"1\", which is neither true nor false`, false},
		{"OTEL_SDK_DISABLED=False", "", false},
		{"OTEL_PROPAGATORS=b3,TraceContext", `OTEL_PROPAGATORS is \"b3\"`, false},
		{"OTEL_PROPAGATORS=tracecontext,baggage", "", false},
		{"OTEL_EXPORTER_OTLP_TIMEOUT=10s", `OTEL_EXPORTER_OTLP_TIMEOUT is \"10s\", which is not a number`, false},
		{"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT=-1", `OTEL_EXPORTER_OTLP_TRACES_TIMEOUT is \"-1\"`, false},
		{"OTEL_EXPORTER_OTLP_TIMEOUT=9999999999999999", "OTEL_EXPORTER_OTLP_TIMEOUT", false},
		{"OTEL_EXPORTER_OTLP_COMPRESSION=zstd", `OTEL_EXPORTER_OTLP_COMPRESSION is \"zstd\", which is not gzip or none`, false},
		{"OTEL_EXPORTER_OTLP_COMPRESSION=GZIP", "", false},
		{"OTEL_EXPORTER_OTLP_INSECURE=yes OTEL_EXPORTER_OTLP_ENDPOINT=c:4317", `OTEL_EXPORTER_OTLP_INSECURE is \"yes\"`, false},
		{"OTEL_EXPORTER_OTLP_HEADERS=secret", `OTEL_EXPORTER_OTLP_HEADERS has a part without`, false},
		{"OTEL_EXPORTER_OTLP_HEADERS=k=secret%0A", `OTEL_EXPORTER_OTLP_HEADERS: http/protobuf cannot send the header \"k\"`, false},
		{"OTEL_EXPORTER_OTLP_HEADERS=k=secret%zz", `cannot send the header \"k\"`, false},
		{"OTEL_EXPORTER_OTLP_HEADERS=k(=secret", `cannot send the header \"k(\"`, false},
		{"OTEL_EXPORTER_OTLP_PROTOCOL=grpc OTEL_EXPORTER_OTLP_HEADERS=k=secret%C3%A4", `grpc cannot send the header \"k\"`, false},
		{"OTEL_EXPORTER_OTLP_HEADERS=a=secret,b=secret", "", false},
		{"OTEL_EXPORTER_OTLP_CERTIFICATE=" + none, "", false}, // not asked for in plain text
		{"OTEL_EXPORTER_OTLP_ENDPOINT=https://c:1 OTEL_EXPORTER_OTLP_CERTIFICATE=" + none, "OTEL_EXPORTER_OTLP_CERTIFICATE is", false},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=https://c:4317 OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE=" + garbage, "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE is", false},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=https://c:1 OTEL_EXPORTER_OTLP_CLIENT_KEY=" + none, "OTEL_EXPORTER_OTLP_CLIENT_KEY is", false},
		{"OTEL_RESOURCE_ATTRIBUTES=a=b,c", `OTEL_RESOURCE_ATTRIBUTES is \"c\", which is not name=value`, false},
		{"OTEL_RESOURCE_ATTRIBUTES=a=%zz", `OTEL_RESOURCE_ATTRIBUTES is \"a=%zz\"`, false},
		{"OTEL_RESOURCE_ATTRIBUTES=a=b,", "", false},
		{"OTEL_BSP_MAX_QUEUE_SIZE=-1", `OTEL_BSP_MAX_QUEUE_SIZE is \"-1\", which is not a number from 1 to`, false},
		{"OTEL_BSP_MAX_QUEUE_SIZE=1000000000000", "OTEL_BSP_MAX_QUEUE_SIZE", false},
		{"OTEL_BSP_MAX_QUEUE_SIZE=many", "OTEL_BSP_MAX_QUEUE_SIZE", false},
		{"OTEL_BSP_MAX_EXPORT_BATCH_SIZE=0", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", false},
		{"OTEL_BSP_MAX_QUEUE_SIZE=8 OTEL_BSP_MAX_EXPORT_BATCH_SIZE=9", `which is not a number from 1 to 8: 8 holds`, false},
		{"OTEL_BSP_SCHEDULE_DELAY=5s", "OTEL_BSP_SCHEDULE_DELAY", false},
		{"OTEL_BSP_SCHEDULE_DELAY=0", "OTEL_BSP_SCHEDULE_DELAY", false}, // the SDK would never rest
		{"OTEL_BSP_EXPORT_TIMEOUT=-5", "OTEL_BSP_EXPORT_TIMEOUT", false},
		{"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT=x OTEL_ATTRIBUTE_COUNT_LIMIT=3", `OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT is \"x\"`, false},
		{"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT=-1", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", false},
		{"OTEL_SPAN_EVENT_COUNT_LIMIT=x", "OTEL_SPAN_EVENT_COUNT_LIMIT", false},
		{"OTEL_SPAN_LINK_COUNT_LIMIT=x", "OTEL_SPAN_LINK_COUNT_LIMIT", false},
		{"OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT=x", "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", false},
		{"OTEL_LINK_ATTRIBUTE_COUNT_LIMIT=x", "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", false},
		// Endpoints. A port of gRPC needs no scheme by the specification, and is spoken with by TLS.
		{"OTEL_EXPORTER_OTLP_ENDPOINT=10.0.0.5:4317", `OTEL_EXPORTER_OTLP_ENDPOINT is \"10.0.0.5:4317\", which has no scheme: write http://10.0.0.5:4317, or https:// for TLS`, false},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=collector:4317", `OTEL_EXPORTER_OTLP_ENDPOINT is \"collector:4317\", which has no scheme`, false},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=collector:4318", `OTEL_EXPORTER_OTLP_ENDPOINT is \"collector:4318\", which has no scheme`, true},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=collector", "which has no scheme", true},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=collector:9 OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "which has no scheme", false},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=tcp://collector:4318", `which has the scheme \"tcp\": write http://collector:4318, or https://`, true},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=https:///v1/traces", "which is not a URL with a host", true},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://[::1", "which is not a URL with a host", true},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=user:secret@collector:4318", `is \"collector:4318\"`, true},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=HTTP://127.0.0.1:1", "", false},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=unix:///run/otel.sock OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "", false},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=collector OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", false},
	} {
		t.Run(c.variables, func(t *testing.T) {
			option := "http://127.0.0.1:1"
			if strings.Contains(c.variables, "ENDPOINT") {
				option = ""
			}
			tracer, log := tracerAndLog(t, option, strings.Fields(c.variables)...)
			if (tracer == nil) != c.off {
				t.Errorf("off is %v", tracer == nil)
			}
			if !strings.Contains(log, c.warns) || (log == "") != (c.warns == "") || strings.Contains(log, "secret") {
				t.Errorf("logged %q, want %q", log, c.warns)
			}
		})
	}
}

// TestVariablesCount: what variables that are understood do, over both protocols, whatever their case; and
// what holds where a value is not understood.
func TestVariablesCount(t *testing.T) {
	for _, c := range []struct {
		variables  []string
		length     int // of a long text
		attributes int // of twenty
		resource   string
	}{
		{nil, 1024, 20, ""},
		{[]string{"OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT=7", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT=3", "OTEL_RESOURCE_ATTRIBUTES=team=a%20b"}, 7, 3, "a b"},
		{[]string{"OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT=x", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT=9", "OTEL_ATTRIBUTE_COUNT_LIMIT=4"}, 9, 4, ""},
		{[]string{"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT=-1", "OTEL_RESOURCE_ATTRIBUTES=team=a,x", "OTEL_BSP_MAX_QUEUE_SIZE=x"}, 1024, 20, "a"},
	} {
		for _, protocol := range []string{"GRPC", "Http/Protobuf"} {
			t.Run(fmt.Sprint(c.variables, protocol), func(t *testing.T) {
				collector := tracetest.Start(t)
				at := collector.GRPC
				if protocol != "GRPC" {
					at = collector.HTTP
				}
				tracer, _ := tracerAndLog(t, "", append(c.variables, "OTEL_EXPORTER_OTLP_ENDPOINT="+at, "OTEL_EXPORTER_OTLP_PROTOCOL="+protocol, "OTEL_TRACES_SAMPLER=ALWAYS_ON")...)
				span := tracer.Serve("a", tracing.Context{Parent: unsampled})
				span.Set(attribute.String("long", strings.Repeat("x", 64<<10)))
				for i := range 19 {
					span.Set(attribute.Int(fmt.Sprint("n", i), i))
				}
				span.End()
				closeTracer(t, tracer)
				got := collector.Await(t, traceID, "a").Named("a")[0]
				n := 0
				for key := range got.Attributes {
					if key == "long" || key[0] == 'n' && len(key) <= 3 {
						n++
					}
				}
				if len(got.Attributes["long"]) != c.length || n != c.attributes || got.Attributes["team"] != c.resource {
					t.Errorf("a text of %d bytes, %d attributes, team %q", len(got.Attributes["long"]), n, got.Attributes["team"])
				}
			})
		}
	}
}

// TestPropagatorsNotUnderstood: a list of which nothing is understood counts as not set.
func TestPropagatorsNotUnderstood(t *testing.T) {
	for list, heeded := range map[string]bool{"b3": true, "TRACECONTEXT": true, "b3,baggage": false, "none": false, " tracecontext , b3": true} {
		tracer, _ := tracerAndLog(t, "http://127.0.0.1:1", "OTEL_PROPAGATORS="+list)
		if got := tracer.Serve("a", tracing.Context{Parent: caller}).TraceID() == traceID; got != heeded {
			t.Errorf("%s: heeded is %v", list, got)
		}
	}
}

// TestRedirects: spans, and the headers that go with them, do not follow a redirect of the collector,
// neither to another host nor to another port or path.
func TestRedirects(t *testing.T) {
	var followed atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed.Add(1) }))
	defer other.Close()
	for i, status := range []int{301, 302, 303, 307, 308} {
		sent := make(chan string, 10)
		collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			sent <- r.URL.Path + " " + r.Header.Get("X-Api-Key") + " " + r.Header.Get("Content-Encoding")
			http.Redirect(w, r, other.URL+"/v1/traces", status)
		}))
		tracer, _ := tracerAndLog(t, "", "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL+"/base/", "OTEL_EXPORTER_OTLP_HEADERS=x-api-key=OTELKEY",
			"OTEL_EXPORTER_OTLP_COMPRESSION="+[]string{"", "GZIP", "none", "zstd", "gzip"}[i])
		tracer.Serve("a", tracing.Context{}).End()
		_ = tracer.Close(t.Context())
		if got := <-sent; got != "/base/v1/traces OTELKEY "+[]string{"", "gzip", "", "", "gzip"}[i] || followed.Load() > 0 {
			t.Errorf("%d: sent to %q, followed %d", status, got, followed.Load())
		}
		collector.Close()
	}
}
