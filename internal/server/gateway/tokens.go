package gateway

import (
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/server/gateway/counts"
	"github.com/select-service/select-service/internal/server/gateway/openai"
	"github.com/select-service/select-service/internal/server/gateway/tokenizer"
	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
)

// tokenize sets r.prompt: from the body's token ids, or by asking the tokenizer. Without tokens
// the prompt is placed by load. A prompt that the engine shortens is shortened before it is looked
// up and booked.
func (r *request) tokenize(ctx context.Context) *Problem {
	r.prompt = selection.Prompt{LoRA: r.lora, CacheSalt: r.salt}
	switch {
	case r.body.Prompts > 1: // a batch: its prompts have no common prefix to look up
		r.placeByLoad()
		return nil
	case r.body.Tokens != nil && !r.body.Media: // media: they are a part of the prompt
		r.prompt.TokenIDs, r.prompt.HasTokenIDs = r.truncation().Cut(r.body.Tokens, r.kept()), true
		return nil
	case r.body.Transfers():
		if bad := r.reserveTokens(); bad != nil {
			return bad
		}
		if ids := r.body.TransferredTokens(); ids != nil {
			r.prompt.TokenIDs, r.prompt.HasTokenIDs = ids, true
			return nil
		}
	}
	if r.config.Tokenizer == nil {
		r.placeByLoad()
		return nil
	}
	if bad := r.reserveTokens(); bad != nil {
		return bad
	}
	began, span := time.Now(), r.head.span.Child("tokenize")
	defer span.End()
	got, err := r.config.Tokenizer.Tokens(tracing.With(ctx, span), &tokenizer.Request{
		Request: r.body, Model: r.target.base, Engines: r.pool.engines(), ModelLength: r.lengths.known(r.target),
		Reserve: r.reserveIDs,
	})
	r.metrics.Tokenized(time.Since(began), span.Example())
	if err != nil {
		span.Fail(err.Error())
		return r.notTokenized(ctx, err)
	}
	r.lengths.learn(r.target.scope, got.ModelLength)
	if got.Whole {
		r.metrics.LengthUnknown()
		r.lengths.want(r.target)
	}
	r.prompt.TokenIDs, r.prompt.HasTokenIDs = got.IDs, true
	return nil
}

// truncation returns how the engine shortens the prompt.
func (r *request) truncation() openai.Truncation { return truncation(r.config.Tokenizer, r.body) }

// truncation returns how the engines of a tokenizer shorten a prompt. SGLang's have no such members.
func truncation(asks *tokenizer.Client, body *openai.Request) openai.Truncation {
	if asks.Renders(tokenizer.SGLangRenderer) {
		return openai.Truncation{}
	}
	return body.Truncation()
}

// kept returns how many tokens of a prompt the engine keeps at most. All count, and that is
// counted, while that depends on the model's length and the length is unknown.
func (r *request) kept() int {
	cut := r.truncation()
	if n, known := cut.Kept(0); known {
		return n
	}
	n, known := cut.Kept(r.lengths.want(r.target))
	if !known {
		r.metrics.LengthUnknown()
	}
	return n
}

// tokensFactor times the length of a body is the memory that its tokens may take, in bytes. A
// token of one byte of text takes four bytes. A token id in the body takes two bytes at least
// with its comma, and eight in memory while the list of ids grows.
const tokensFactor = 4

// reserveTokens reserves the memory for the tokens of a large body, once. Tokens of small bodies
// are not counted.
func (r *request) reserveTokens() *Problem {
	if r.reserved > 0 || len(r.text) <= memory.SmallBody {
		return nil
	}
	n := tokensFactor * int64(len(r.text))
	if !r.serving.Reserve(n) {
		return NoMemory()
	}
	r.reserved = n
	return nil
}

// reserveIDs reserves memory for token ids that a tokenizer has answered, beyond what reserveTokens has
// reserved, and reports whether there is room. Few ids are not counted.
func (r *request) reserveIDs(bytes int64) bool {
	r.idBytes += bytes
	n := r.idBytes - r.reserved - r.reservedIDs
	if n <= 0 || r.idBytes <= memory.SmallBody {
		return true
	}
	if !r.requests.Reserve(n) {
		return false
	}
	r.reservedIDs += n
	return true
}

// releaseTokens releases what reserveTokens and reserveIDs have reserved. Further calls do nothing.
func (r *request) releaseTokens() {
	r.serving.Release(r.reserved)
	r.requests.Release(r.reservedIDs)
	r.reserved, r.reservedIDs = 0, 0
}

// ReleaseText implements selection.TextReleaser. It drops the tokens of a request that waits: its
// hashes are enough.
func (r *request) ReleaseText() {
	r.releaseTokens()
	r.prompt.TokenIDs, r.body.Tokens = nil, nil
}

// maxProbed bounds the models that the tokenizer is tried with at the start.
const maxProbed = 8

// probe tries the tokenizer once for each of the first models, so that an operator learns early
// what every request would meet.
func (p *picker) probe(ctx context.Context) {
	if p.config.Tokenizer == nil {
		return
	}
	for i, t := range p.models.scopes() {
		pool := p.models.pool(t.scope)
		if i == maxProbed {
			return
		}
		if pool == nil {
			continue
		}
		var engine string
		for engine = range pool.engines() {
			break
		}
		length, err := p.config.Tokenizer.Probe(ctx, t.base, engine)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			p.log.Warn().Str("model", catalog.Clip(t.base)).Err(err).Msg("the tokenizer does not answer as it should: see --tokenizer-url and --tokenizer-protocol")
		default:
			p.lengths.learn(t.scope, length)
			p.log.Info().Str("model", catalog.Clip(t.base)).Msg("the tokenizer answers")
		}
	}
}

// engines has the base URLs of the pool's engines, each once, from a random one on.
func (p *pool) engines() iter.Seq[string] {
	return func(yield func(string) bool) {
		first := rand.IntN(len(p.workers))
		for i := range p.workers {
			if !yield(p.workers[(first+i)%len(p.workers)].Address()) {
				return
			}
		}
	}
}

// failures are the reasons as they are counted.
var failures = map[tokenizer.Reason]counts.TokenizerReason{
	tokenizer.Rejected: counts.TokenizerRejected, tokenizer.Unavailable: counts.TokenizerUnavailable, tokenizer.Open: counts.TokenizerOpen,
	tokenizer.Timeout: counts.TokenizerTimeout, tokenizer.Broken: counts.TokenizerBroken, tokenizer.TooLarge: counts.TokenizerTooLarge,
	tokenizer.NoMemory: counts.TokenizerNoMemory, tokenizer.Unconvertible: counts.TokenizerUnconvertible,
}

// notTokenized decides about a request without tokens: it places it by load and returns nil, or
// returns the problem.
func (r *request) notTokenized(ctx context.Context, err error) *Problem {
	if ctx.Err() != nil {
		return problemOf(ctx, ctx.Err())
	}
	reason := tokenizer.Broken
	if e, ok := errors.AsType[*tokenizer.Error](err); ok {
		reason = e.Reason
	}
	why := failures[reason]
	bad := &Problem{kind: openai.TypeServer, outcome: counts.GatewayTokenizer, err: err}
	bad.status, bad.code, bad.text = reason.Client()
	switch reason {
	case tokenizer.Rejected:
		bad.kind, bad.outcome = openai.TypeInvalidRequest, counts.GatewayInvalid
	case tokenizer.NoMemory:
		bad.outcome, bad.retry = counts.GatewayUnavailable, true
	default:
		bad.retry = bad.status == http.StatusServiceUnavailable
	}
	if why == counts.TokenizerUnconvertible || r.config.LoadOnly && why != counts.TokenizerRejected {
		r.metrics.TokenizerFailed(why, counts.TokenizerLoadOnly)
		r.log.Debug().Err(err).Msg("a prompt without tokens is placed by load")
		r.placeByLoad()
		return nil
	}
	r.metrics.TokenizerFailed(why, counts.TokenizerRefused)
	return bad
}

// bytesPerToken is the estimated text of a token in bytes, for prompts that no tokenizer
// counts.
const bytesPerToken = 4

// placeByLoad sets r.prompt so that load alone decides: to one of about the right length with
// random blocks, which no cache has. The text of a prompt with media does not tell how long it is:
// its prompt is empty, and only the request counts as load.
func (r *request) placeByLoad() {
	if r.body.Media {
		r.light, r.prompt = true, selection.Prompt{TokenIDs: []uint32{}, HasTokenIDs: true}
		return
	}
	tokens := max(1, r.body.EstimateTokens(bytesPerToken, r.kept()))
	blocks := make([]uint64, tokens/max(1, int(r.pool.snapshot.BlockSize)))
	for i := range blocks {
		blocks[i] = rand.Uint64()
	}
	r.prompt = selection.Prompt{
		BlockHashes: blocks, HasBlockHashes: true, SequenceHashes: blocks, HasSequenceHashes: true,
		ISLTokens: uint64(tokens), HasISLTokens: true,
	}
}
