// Package tracetest receives the spans of programs under test: with the OTLP receiver of a real
// OpenTelemetry collector where TRACES_COLLECTOR names the program of test/others/traces/collector (make
// test-traces builds it), else with one of a few lines.
package tracetest

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/select-service/select-service/test/checks/e2e"
)

// Collector is a receiver of spans.
type Collector struct {
	GRPC, HTTP string // base URLs
	list       func(context.Context) (*trace.TracesData, error)
}

// Span is a span that has come.
type Span struct {
	Name              string
	Trace, ID, Parent string // in hexadecimal; Parent "": none
	Kind              trace.Span_SpanKind
	Start, End        time.Time
	Fault             string // "": the work did not fail
	// Attributes has the span's and those of its resource, as text.
	Attributes map[string]string
}

// Start starts a collector, until the end of the test.
func Start(t testing.TB) *Collector {
	t.Helper()
	if bin := os.Getenv("TRACES_COLLECTOR"); bin != "" {
		return startReal(t, bin)
	}
	s := new(server)
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	collector.RegisterTraceServiceServer(g, s)
	go func() { _ = g.Serve(ln) }() // until Stop
	t.Cleanup(g.Stop)
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	return &Collector{GRPC: "http://" + ln.Addr().String(), HTTP: h.URL, list: s.all}
}

func startReal(t testing.TB, bin string) *Collector {
	var at []string
	for range 3 {
		at = append(at, fmt.Sprintf("127.0.0.1:%d", e2e.FreePort(t)))
	}
	p := exec.Command(bin, at...)
	p.Stderr = os.Stderr
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait() // it was killed
	})
	c := &Collector{GRPC: "http://" + at[0], HTTP: "http://" + at[1]}
	c.list = func(ctx context.Context) (*trace.TracesData, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at[2], nil)
		if err != nil {
			return nil, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, err
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			return nil, err
		}
		all := new(trace.TracesData)
		return all, proto.Unmarshal(text, all)
	}
	e2e.Eventually(t, "the collector listens", func() error {
		_, err := c.list(t.Context())
		return err
	})
	return c
}

// server is the receiver of a few lines.
type server struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex // guards spans
	spans trace.TracesData
}

// Export implements TraceServiceServer.
func (s *server) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spans.ResourceSpans = append(s.spans.ResourceSpans, r.GetResourceSpans()...)
	return &collector.ExportTraceServiceResponse{}, nil
}

// ServeHTTP takes spans at /v1/traces.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(r.Body)
	got := new(collector.ExportTraceServiceRequest)
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(text, got) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	_, _ = s.Export(r.Context(), got)
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func (s *server) all(context.Context) (*trace.TracesData, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return proto.Clone(&s.spans).(*trace.TracesData), nil
}

// Spans returns the spans that have come, in the order of their starts.
func (c *Collector) Spans(ctx context.Context) (found []Span, err error) {
	all, err := c.list(ctx)
	for _, r := range all.GetResourceSpans() {
		for _, s := range r.GetScopeSpans() {
			for _, x := range s.GetSpans() {
				span := Span{
					Name: x.GetName(), Trace: hex.EncodeToString(x.GetTraceId()), ID: hex.EncodeToString(x.GetSpanId()),
					Parent: hex.EncodeToString(x.GetParentSpanId()), Kind: x.GetKind(),
					Start: time.Unix(0, int64(x.GetStartTimeUnixNano())), End: time.Unix(0, int64(x.GetEndTimeUnixNano())),
					Attributes: make(map[string]string),
				}
				if x.GetStatus().GetCode() == trace.Status_STATUS_CODE_ERROR {
					span.Fault = x.GetStatus().GetMessage()
				}
				for _, a := range append(r.GetResource().GetAttributes(), x.GetAttributes()...) {
					span.Attributes[a.GetKey()] = text(a.GetValue())
				}
				found = append(found, span)
			}
		}
	}
	slices.SortStableFunc(found, func(a, b Span) int { return a.Start.Compare(b.Start) })
	return found, err
}

func text(v *common.AnyValue) string {
	switch v := v.GetValue().(type) {
	case *common.AnyValue_StringValue:
		return v.StringValue
	case *common.AnyValue_IntValue:
		return fmt.Sprint(v.IntValue)
	case *common.AnyValue_BoolValue:
		return fmt.Sprint(v.BoolValue)
	case *common.AnyValue_DoubleValue:
		return fmt.Sprint(v.DoubleValue)
	}
	return v.String()
}

// Await waits until spans with all the names have come in a trace ("": in any), and returns all
// that have come in it.
func (c *Collector) Await(t testing.TB, id string, names ...string) (found Spans) {
	t.Helper()
	e2e.Eventually(t, fmt.Sprintf("the spans %q come", names), func() error {
		all, err := c.Spans(t.Context())
		if err != nil {
			return err
		}
		found = slices.DeleteFunc(all, func(s Span) bool { return id != "" && s.Trace != id })
		for _, name := range names {
			if len(found.Named(name)) == 0 {
				return fmt.Errorf("no %q in:\n%v", name, found)
			}
		}
		return nil
	})
	return found
}

// Spans are spans, of one trace or of several.
type Spans []Span

// Named returns the spans of a name.
func (all Spans) Named(name string) (found []Span) {
	for _, s := range all {
		if s.Name == name {
			found = append(found, s)
		}
	}
	return found
}

// Under returns the names of the spans below a parent, each with its own below it in brackets, in
// the order of their starts: "a b(c d)".
func (all Spans) Under(parent string) string {
	var names []string
	for _, s := range all {
		if s.Parent == parent {
			name := s.Name
			if below := all.Under(s.ID); below != "" {
				name += "(" + below + ")"
			}
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

// maxShown is how many spans String shows.
const maxShown = 40

// String shows the last spans, one a line.
func (all Spans) String() string {
	var b strings.Builder
	for _, s := range all[max(0, len(all)-maxShown):] {
		fmt.Fprintf(&b, "%s %s<%s %q %v %s\n", s.Trace, s.ID, s.Parent, s.Name, s.End.Sub(s.Start), s.Fault)
	}
	return b.String()
}
