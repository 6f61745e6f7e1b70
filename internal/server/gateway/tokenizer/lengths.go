package tokenizer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/select-service/select-service/internal/codec/redact"
	"github.com/select-service/select-service/internal/server/gateway/openai"
	"github.com/select-service/select-service/internal/transport/http1"
)

// Lengths asks engines for the context lengths of their models. It is safe for concurrent use.
type Lengths struct {
	engines Engines
	http    *http1.Client
}

const (
	// lengthTimeout bounds the time of a question.
	lengthTimeout = 5 * time.Second
	// maxModels bounds a list of models, in bytes.
	maxModels = 1 << 20
)

// NewLengths returns a client. Close closes its idle connections.
func NewLengths(of Engines) *Lengths {
	return &Lengths{of, http1.New(http1.Options{Dial: of.Dial, TLS: of.TLS})}
}

// Close ends the connections that are not in use.
func (l *Lengths) Close() { l.http.Close() }

var errNoLength = errors.New("the list of models does not have the model's max_model_len")

// Ask returns the context length of a model in tokens, as an engine's list of models
// (GET /v1/models of vLLM and SGLang) says it. engine is the engine's base URL.
func (l *Lengths) Ask(ctx context.Context, engine, model string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, lengthTimeout)
	defer cancel()
	to, err := url.Parse(baseOf(engine) + "/v1/models")
	if err != nil {
		return 0, fmt.Errorf("length of model %q: %w", model, err)
	}
	resp, err := l.http.Do(ctx, &http1.Request{
		Method: http.MethodGet, Origin: http1.OriginOf(to), Target: to.RequestURI(),
		Header: l.engines.authorize(http1.Header{{Name: "Accept", Value: "application/json"}}, to),
	})
	if err != nil {
		return 0, fmt.Errorf("length of model %q: GET %s: %w", model, redact.URLs(to.String()), err)
	}
	defer func() { _ = resp.Close() }()
	if resp.Status != http.StatusOK {
		return 0, fmt.Errorf("length of model %q: %s answers %s", model, redact.URLs(to.String()), statusOf(resp))
	}
	var list struct {
		Data []struct {
			ID          string `json:"id"`
			MaxModelLen *int32 `json:"max_model_len"`
		} `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(resp, maxModels)).Decode(&list); err != nil {
		return 0, fmt.Errorf("length of model %q: answer of %s: %w", model, redact.URLs(to.String()), err)
	}
	for _, m := range list.Data {
		if m.ID == model && m.MaxModelLen != nil && *m.MaxModelLen > 0 {
			return int(*m.MaxModelLen), nil
		}
	}
	return 0, fmt.Errorf("length of model %q: answer of %s: %w", model, redact.URLs(to.String()), errNoLength)
}

// shorten returns the tokens that the engine keeps of an answer of /tokenize, which has those of
// the whole prompt.
func (c *Client) shorten(ctx context.Context, r *Request, whole answer) (Prompt, error) {
	p := Prompt{IDs: whole.ids, ModelLength: whole.modelLength}
	length := r.ModelLength
	if whole.modelLength > 0 {
		length = whole.modelLength
	}
	cut := r.Truncation()
	n, known := cut.Kept(length)
	if !known {
		p.Whole = true
		return p, nil
	}
	if n >= len(p.IDs) {
		return p, nil
	}
	if cut.Side == "" && r.SpecialTokens() {
		// The engine's tokenizer cuts the text's tokens before it adds its own.
		plain, err := c.put(ctx, r, true)
		if err != nil {
			return Prompt{}, err
		}
		p.IDs = cutWithin(cut, whole.ids, plain.ids, n)
		return p, nil
	}
	p.IDs = cut.Cut(whole.ids, n)
	return p, nil
}

// cutWithin returns n tokens of a prompt in which the tokens of the text stand between those that
// the tokenizer adds: the latter, and the rest of the text's.
func cutWithin(cut openai.Truncation, whole, text []uint32, n int) []uint32 {
	added := len(whole) - len(text)
	before := added
	for before >= 0 && !slices.Equal(whole[before:before+len(text)], text) {
		before--
	}
	if before < 0 || n < added {
		return cut.Cut(whole, n)
	}
	return slices.Concat(whole[:before], cut.Cut(text, n-added), whole[before+len(text):])
}
