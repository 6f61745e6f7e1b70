package httpapi

import (
	"cmp"
	"context"
	"net/http"
	"strconv"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/internal/server/gateway/tokenizer"
	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/pkg/catalog"
)

// PromptReader says what the prompts of clients' requests are in token ids.
type PromptReader interface {
	// Tokenize calls use with the prompt of a request, whose body is the text. of is the scope of its
	// model; nil: the body's model names it, in a scope that the caller sees.
	Tokenize(ctx context.Context, caller *access.Caller, of *catalog.Scope, text []byte, use func(*tokenizer.Placed)) error
}

func (o operatorRoutes) tokenize(c request, b *tokenizeBody, out []byte) (int, []byte, error) {
	if o.Prompts == nil {
		return 0, nil, &tokenizer.Error{Reason: tokenizer.None}
	}
	ctx := tracing.With(c.Request.Context(), c.span)
	err := o.Prompts.Tokenize(ctx, c.who, b.named(), b.text, func(p *tokenizer.Placed) { out = o.d.appendPlaced(out, p) })
	return http.StatusOK, out, err
}

func (d dialect) appendPlaced(out []byte, p *tokenizer.Placed) []byte {
	out = d.appendScope(append(out, '{'), p.Scope)
	for _, key := range [...]struct{ name, value string }{{"lora_name", p.LoRA}, {"cache_salt", p.CacheSalt}} {
		if key.value == "" {
			out = appendNull(out, key.name)
		} else {
			out = appendStringField(out, key.name, key.value)
		}
	}
	if p.ModelLength > 0 {
		out = appendUintField(out, "max_model_len", uint64(p.ModelLength))
	} else {
		out = appendNull(out, "max_model_len")
	}
	out = appendList(appendKey(out, "token_ids"), p.IDs, func(out []byte, id uint32) []byte { return strconv.AppendUint(out, uint64(id), 10) })
	return append(out, '}')
}

// tokenizeBody is the body of /tokenize.
type tokenizeBody struct {
	scope catalog.Scope // as far as it is named
	text  []byte        // the request's body
}

// named returns the scope that the body names; nil: none.
func (b *tokenizeBody) named() *catalog.Scope {
	if b.scope == (catalog.Scope{}) {
		return nil
	}
	return &catalog.Scope{Model: cmp.Or(b.scope.Model, catalog.DefaultName), Tenant: cmp.Or(b.scope.Tenant, catalog.DefaultName)}
}

func newTokenizeBody(d dialect) *body[tokenizeBody] {
	shape := bodyscan.NewObject(append(scopeFields(d, func(b *tokenizeBody) *catalog.Scope { return &b.scope }),
		bodyscan.Field[tokenizeBody]{Name: "request", Required: true, Read: func(s *bodyscan.Scanner, b *tokenizeBody) { b.text = s.Value() }},
	)...)
	b := newBody(shape, nil, nil).permit(func(who *access.Caller, b *tokenizeBody) error {
		if of := b.named(); of != nil && !who.Sees(*of) {
			return access.ErrForeignScope
		}
		return nil
	})
	b.names = func(b *tokenizeBody) *catalog.Scope {
		if of := b.named(); of != nil {
			b.scope = *of
		}
		return &b.scope
	}
	b.passesOn = true
	return b
}
