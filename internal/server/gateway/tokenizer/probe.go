package tokenizer

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/select-service/select-service/internal/server/gateway/openai"
)

// errNoRenderRoute explains the answer of a vLLM without the render routes: 404, from 0.32.0 on
// 403.
var errNoRenderRoute = errors.New("it does not offer the route: vLLM serves it with --enable-scale-out or as `vllm launch render`; " +
	"--tokenizer-protocol=vllm-tokenize works with every vLLM")

// Probe asks for the tokens of a short prompt, so that an operator learns at the start what
// every request would meet. engine is the base URL to ask if the URL is Worker. The answer's
// length of the model is returned, 0 if it has none.
func (c *Client) Probe(ctx context.Context, model, engine string) (modelLength int, err error) {
	request, err := openai.ParseRequest(openai.Chat, []byte(`{"messages":[{"role":"user","content":"a"}]}`))
	if err != nil {
		return 0, fmt.Errorf("probe for model %q: %w", model, err)
	}
	question, err := c.call(&Request{Request: request, Model: model}, false)
	if err != nil {
		return 0, fmt.Errorf("probe for model %q: %w", model, err)
	}
	base := c.options.URL
	if base == Worker {
		base = baseOf(engine)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.options.Timeout, errTimeout)
	defer cancel()
	got, err := c.post(ctx, base+question.path, question) // past the breaker, which counts requests
	e, ok := errors.AsType[*Error](err)
	switch {
	case err == nil && len(got.ids) == 0:
		return 0, &Error{Reason: Broken, Err: errors.New("a prompt of one word has no tokens")}
	case ok && (e.Status == http.StatusNotFound || e.Status == http.StatusForbidden) && c.options.Protocol != VLLMTokenize:
		return 0, &Error{Reason: e.Reason, Status: e.Status, Err: fmt.Errorf("%w (%w)", errNoRenderRoute, e.Err)}
	}
	return got.modelLength, err
}
