package httpapi

import (
	"net/http"

	"github.com/gin-gonic/gin"
	"go.opentelemetry.io/otel/attribute"

	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/internal/telemetry/tracing"
)

// spanKey is the key of a request's span, if it is traced.
const spanKey = "span"

// beginSpan starts the span of a request, if it is sampled. Requests of callers may begin a trace;
// those of operators, probes and other replicas are traced only within one.
func (a api) beginSpan(c *gin.Context, name string, role access.Role) {
	start := a.tracer.Continue
	if role == access.Call {
		start = a.tracer.Serve
	}
	span := start(name, tracing.OfHeader(c.Request.Header))
	if span == nil {
		return
	}
	span.Set(attribute.String("http.request.method", c.Request.Method), attribute.String("http.route", c.FullPath()))
	c.Set(spanKey, span)
}

// spanOf returns the span of a request, nil if it is not traced.
func (a api) spanOf(c *gin.Context) *tracing.Span {
	if a.tracer == nil {
		return nil
	}
	return spanOf(c)
}

func spanOf(c *gin.Context) *tracing.Span {
	v, _ := c.Get(spanKey)
	span, _ := v.(*tracing.Span)
	return span
}

// endSpan ends the span of a request that was answered with a status.
func (a api) endSpan(c *gin.Context, status int) {
	span := a.spanOf(c)
	if span == nil {
		return
	}
	span.Set(attribute.Int("http.response.status_code", status))
	if status >= http.StatusInternalServerError {
		span.Fail(http.StatusText(status))
	}
	span.End()
}
