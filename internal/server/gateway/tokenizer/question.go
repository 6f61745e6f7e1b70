package tokenizer

import (
	"context"
	"encoding/base64"
	"net/http"
	"net/url"

	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/internal/transport/http1"
)

// authorize adds the credentials of the URL if it has any, or else the token; nil: there is none.
func authorize(header http1.Header, token func() string, to *url.URL) http1.Header {
	if u := to.User; u != nil {
		password, _ := u.Password()
		return append(header, http1.Field{Name: "Authorization", Value: "Basic " + base64.StdEncoding.EncodeToString([]byte(u.Username()+":"+password))})
	}
	if token != nil {
		if text := token(); text != "" {
			return append(header, http1.Field{Name: "Authorization", Value: "Bearer " + text})
		}
	}
	return header
}

// question returns a POST of JSON, with the trace of ctx.
func (c *Client) question(ctx context.Context, to *url.URL, body [][]byte) *http1.Request {
	header := append(make(http1.Header, 0, 8), http1.Field{Name: "Content-Type", Value: "application/json"}, http1.Field{Name: "Accept", Value: "application/json"})
	token := c.options.Engines.Token
	if c.options.URL != Worker {
		token = nil
	}
	header = authorize(header, token, to)
	trace := http.Header{}
	tracing.Of(ctx).Context().AddTo(trace) //nolint:contextcheck // of the span in ctx
	for name, values := range trace {
		for _, value := range values {
			header = append(header, http1.Field{Name: name, Value: value})
		}
	}
	return &http1.Request{Method: http.MethodPost, Origin: http1.OriginOf(to), Target: to.RequestURI(), Header: header, Body: body}
}
