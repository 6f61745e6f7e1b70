package gateway

import (
	"cmp"
	"net/netip"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/internal/server/gateway/openai"
	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/pkg/catalog"
)

// exchangeTrace is the trace of an exchange. Attributes follow OpenTelemetry's semantic
// conventions for HTTP and generative AI where these have a name.
type exchangeTrace struct {
	span   *tracing.Span // nil: the exchange is not traced, and the methods do nothing
	placed time.Time     // when its engine was chosen
	first  time.Time     // when the first byte of the answer's body came
}

// begin starts the exchange's span. It belongs to parent, if there is one, else to the client's.
func (t *exchangeTrace) begin(tracer *tracing.Tracer, parent tracing.Context, h *Head, via counts.Via) {
	if tracer == nil {
		return
	}
	if parent.Parent == "" {
		parent = h.trace
	}
	if t.span = tracer.Serve("gateway request", parent); t.span == nil {
		return
	}
	t.span.Set(attribute.String("http.request.method", h.method), attribute.String("select_service.via", via.String()))
	if operation := operationOf(h.kind); operation != "" {
		t.span.Set(attribute.String("gen_ai.operation.name", operation))
	}
}

// operationOf returns the name that the conventions have for a kind of requests, "" for none.
func operationOf(k openai.Kind) string {
	switch k {
	case openai.Chat, openai.Responses, openai.Messages:
		return "chat"
	case openai.Completions:
		return "text_completion"
	case openai.Other:
	}
	return ""
}

// picking starts the span of the choice.
func (t *exchangeTrace) picking(h *Head) { h.span = t.span.Child("pick") }

// picked ends the span of the choice. The engine will belong to the span of the exchange.
func (t *exchangeTrace) picked(h *Head, p *Placement, bad *Problem) {
	if t.span == nil {
		return
	}
	if h.session.Client != "" {
		t.span.Set(attribute.String("select_service.session.client", h.session.Client), attribute.Bool("select_service.session.child", h.session.Parent != ""))
	}
	if model := catalog.Clip(h.model); model != "" {
		t.span.Set(attribute.String("gen_ai.request.model", model))
		t.span.Rename(cmp.Or(operationOf(h.kind), "request") + " " + model)
	}
	switch {
	case bad == nil:
		p.trace, t.placed = t.span.Context(), time.Now()
		if at, err := netip.ParseAddrPort(p.destinations[0].text); err == nil {
			t.span.Set(attribute.String("server.address", at.Addr().String()), attribute.Int("server.port", int(at.Port())))
		}
	case bad.failed():
		h.span.Fail(bad.code)
	}
	h.span.End()
}

// refused notes the answer in the engine's place.
func (t *exchangeTrace) refused(p *Problem) {
	if t.span == nil {
		return
	}
	t.span.Set(attribute.Int("http.response.status_code", p.status))
	if p.failed() {
		t.span.Set(attribute.String("error.type", p.code))
		t.span.Fail(p.code)
	}
}

// answered notes the status of the engine's answer.
func (t *exchangeTrace) answered(status int) {
	if t.span == nil {
		return
	}
	t.span.Set(attribute.Int("http.response.status_code", status))
	if status >= 500 {
		t.span.Fail("the engine's answer")
	}
}

// answering notes that a part of the answer's body has come.
func (t *exchangeTrace) answering() {
	if t.span == nil || !t.first.IsZero() || t.placed.IsZero() {
		return
	}
	t.first = time.Now()
	t.span.Step("first byte", t.placed, t.first)
	t.span.Set(attribute.Float64("gen_ai.response.time_to_first_chunk", t.first.Sub(t.placed).Seconds()))
}

// used notes what the engine said of the tokens, if it did.
func (t *exchangeTrace) used(u openai.Usage, said bool) {
	if t.span == nil || !said {
		return
	}
	t.span.Set(attribute.Int64("gen_ai.usage.input_tokens", int64(u.Prompt)), attribute.Int64("gen_ai.usage.output_tokens", int64(u.Completion)))
	if u.HasCached {
		t.span.Set(attribute.Int64("gen_ai.usage.cache_read.input_tokens", int64(u.Cached)))
	}
}

// end ends the exchange's span.
func (t *exchangeTrace) end() {
	if t.span == nil {
		return
	}
	if !t.first.IsZero() {
		t.span.Step("answer", t.first, time.Now())
	}
	t.span.End()
}
