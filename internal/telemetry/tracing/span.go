package tracing

import (
	"context"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/select-service/select-service/internal/telemetry/metrics"
)

// Context is a span as W3C's Trace Context writes it: the values of the headers traceparent and
// tracestate, empty for none.
type Context struct{ Parent, State string }

// The names of the headers, in lower case.
const (
	ParentHeader = "traceparent"
	StateHeader  = "tracestate"
)

// Get implements propagation.TextMapCarrier.
func (c *Context) Get(name string) string {
	switch name {
	case ParentHeader:
		return c.Parent
	case StateHeader:
		return c.State
	}
	return ""
}

// Set implements propagation.TextMapCarrier.
func (c *Context) Set(name, value string) {
	switch name {
	case ParentHeader:
		c.Parent = value
	case StateHeader:
		c.State = value
	}
}

// Keys implements propagation.TextMapCarrier.
func (c *Context) Keys() []string { return []string{ParentHeader, StateHeader} }

// OfHeader returns the context that the headers of a request have.
func OfHeader(h http.Header) (c Context) {
	if parent := h["Traceparent"]; len(parent) == 1 {
		c.Parent, c.State = parent[0], strings.Join(h["Tracestate"], ",")
	}
	return c
}

// AddTo sets the headers of a request, unless the context is empty.
func (c Context) AddTo(h http.Header) {
	if c.Parent == "" {
		return
	}
	h.Set(ParentHeader, c.Parent)
	if c.State != "" {
		h.Set(StateHeader, c.State)
	}
}

// w3c reads and writes Contexts.
var w3c propagation.TraceContext

// span returns the context's span, an invalid one if the context is empty or malformed.
func (c Context) span() trace.SpanContext {
	return trace.SpanContextFromContext(w3c.Extract(context.Background(), &c))
}

// Span is a piece of work that is being traced. Its methods are safe for concurrent use; a nil
// Span's do nothing.
type Span struct {
	tracer *Tracer
	span   trace.Span
}

// Child starts a span within s.
func (s *Span) Child(name string) *Span {
	if s == nil {
		return nil
	}
	return s.child(name)
}

func (s *Span) child(name string, options ...trace.SpanStartOption) *Span {
	_, span := s.tracer.tracer.Start(trace.ContextWithSpan(context.Background(), s.span), name, options...)
	return &Span{s.tracer, span}
}

// Step adds a span within s for a part of its work that is over.
func (s *Span) Step(name string, began, ended time.Time, attributes ...attribute.KeyValue) {
	if s == nil {
		return
	}
	s.child(name, trace.WithTimestamp(began), trace.WithAttributes(attributes...)).span.End(trace.WithTimestamp(ended))
}

// Rename replaces the name that the span was started with.
func (s *Span) Rename(name string) {
	if s != nil {
		s.span.SetName(name)
	}
}

// Set adds attributes.
func (s *Span) Set(attributes ...attribute.KeyValue) {
	if s != nil {
		s.span.SetAttributes(attributes...)
	}
}

// Fail marks the work as failed, for a reason that may be shown to operators.
func (s *Span) Fail(reason string) {
	if s != nil {
		s.span.SetStatus(codes.Error, clip(reason))
	}
}

// clip shortens a text, which may be a caller's, to maxText bytes.
func clip(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "")
}

// End ends the span. A span that is never ended is not sent.
func (s *Span) End() {
	if s != nil {
		s.span.End()
	}
}

// Context returns the span for those that are asked in its course.
func (s *Span) Context() Context {
	if s == nil || !s.tracer.propagates {
		return Context{}
	}
	c := new(Context)
	w3c.Inject(trace.ContextWithSpan(context.Background(), s.span), c)
	return *c
}

// TraceID returns the id of the span's trace, in hexadecimal; "" for a nil Span.
func (s *Span) TraceID() string {
	if s == nil {
		return ""
	}
	return s.span.SpanContext().TraceID().String()
}

// Example returns the span as an exemplar of a histogram's value.
func (s *Span) Example() metrics.Example {
	if s == nil {
		return metrics.Example{}
	}
	c := s.span.SpanContext()
	return metrics.Example{TraceID: c.TraceID().String(), SpanID: c.SpanID().String()}
}

// spanKey is the context key of a Span.
type spanKey struct{}

// With returns a context that has the span.
func With(ctx context.Context, s *Span) context.Context {
	if s == nil {
		return ctx
	}
	return context.WithValue(ctx, spanKey{}, s)
}

// Of returns the span of a context, nil if it has none.
func Of(ctx context.Context) *Span {
	s, _ := ctx.Value(spanKey{}).(*Span)
	return s
}
