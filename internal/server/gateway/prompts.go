package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/internal/server/gateway/openai"
	"github.com/select-service/select-service/internal/server/gateway/tokenizer"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
)

// Prompts says what the prompts of clients' requests are in token ids, for those who look into the
// choice of engines. It books, counts and keeps nothing. It is safe for concurrent use.
type Prompts struct {
	models  *models
	asks    *tokenizer.Client
	tagged  bool
	serving *memory.Account
	turns   chan struct{} // has an element for each question under way
}

// maxQuestions bounds how many prompts are asked for at a time: engines have requests to serve.
const maxQuestions = 4

// NewPrompts returns the prompts by the names, the tokenizer, the tags of salts and the memory of an
// endpoint picker, which need not run. There must be a tokenizer.
func NewPrompts(config Config, c *catalog.Catalog) *Prompts {
	return &Prompts{
		models: &models{catalog: c, named: config.Models}, asks: config.Tokenizer, tagged: config.SaltTag,
		serving: config.Memory.Account(memory.Serving), turns: make(chan struct{}, maxQuestions),
	}
}

var errBusy = errors.New("as many prompts as may be are being tokenized")

// Tokenize calls use with the prompt of a request as the gateway would look it up. body is that of a
// chat, a completion, a response or Anthropic's messages, in JSON. of is the scope of its model; nil: the
// body's model names it, as in a request through the gateway. use must not keep its argument.
// The error is a *bodyscan.Error, a *contract.Error, a *tokenizer.Error, or ctx's if ctx ended; a caller is told
// nothing of scopes that it does not see.
func (p *Prompts) Tokenize(ctx context.Context, caller *access.Caller, of *catalog.Scope, body []byte, use func(*tokenizer.Placed)) error {
	if n := tokensFactor * int64(len(body)); len(body) > memory.SmallBody {
		if !p.serving.Reserve(n) {
			return &tokenizer.Error{Reason: tokenizer.NoMemory}
		}
		defer p.serving.Release(n)
	}
	kind, err := openai.KindOfBody(body)
	if err != nil {
		return err
	}
	request, err := openai.ParseRequest(kind, body)
	if err != nil {
		return err
	}
	switch {
	case kind == openai.Other:
		return refusal("the request has no prompt: neither messages nor prompt nor input")
	case request.Prompts > 1:
		return refusal("the request is a batch: its prompts are placed by load")
	}
	t, pool, err := p.find(caller, of, request.Model)
	if err != nil {
		return err
	}
	salt, _, err := request.CacheSalt(nil, p.tagged)
	if err != nil {
		return refusal(err.Error())
	}
	placed := tokenizer.Placed{Scope: t.scope, LoRA: cmp.Or(t.lora, request.Adapter), CacheSalt: salt}
	var ids int64 // bytes of the answers' ids
	defer func() { p.serving.Release(ids) }()
	reserve := func(n int64) bool {
		if !p.serving.Reserve(n) {
			return false
		}
		ids += n
		return true
	}
	if placed.Prompt, err = p.tokens(ctx, request, t, pool, reserve); err != nil {
		return err
	}
	use(&placed)
	return nil
}

func refusal(text string) error { return &contract.Error{Kind: contract.BadRequest, Text: text} }

// find returns what a request is for, with its workers.
func (p *Prompts) find(caller *access.Caller, of *catalog.Scope, model string) (t target, workers *pool, err error) {
	known := of != nil
	if known {
		sc := p.models.catalog.Named(*of)
		t = target{scope: sc, base: p.models.base(sc)}
	} else if t, known = p.models.find(model, caller); !known {
		text := "the request names no model, and there is not just one"
		if model != "" {
			text = fmt.Sprintf("no worker serves a model %q", catalog.Clip(model))
		}
		return t, nil, &contract.Error{Kind: contract.NotFound, Text: text}
	}
	if workers = p.models.pool(t.scope); workers == nil {
		return t, nil, &contract.Error{Kind: contract.NotFound, Text: "no schedulable workers", Scope: &t.scope}
	}
	return t, workers, nil
}

// tokens returns the prompt's tokens, from the body or from the tokenizer.
func (p *Prompts) tokens(ctx context.Context, request *openai.Request, t target, pool *pool, reserve func(int64) bool) (tokenizer.Prompt, error) {
	if request.Tokens != nil && !request.Media {
		cut := truncation(p.asks, request)
		n, known := cut.Kept(0)
		return tokenizer.Prompt{IDs: cut.Cut(request.Tokens, n), Whole: !known}, nil
	}
	if ids := request.TransferredTokens(); ids != nil {
		return tokenizer.Prompt{IDs: ids}, nil
	}
	select {
	case p.turns <- struct{}{}:
		defer func() { <-p.turns }()
	default:
		return tokenizer.Prompt{}, &tokenizer.Error{Reason: tokenizer.Unavailable, Err: errBusy}
	}
	return p.asks.Tokens(ctx, &tokenizer.Request{Request: request, Model: t.base, Engines: pool.engines(), Reserve: reserve})
}
