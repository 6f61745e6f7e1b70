package gateway

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/select-service/select-service/internal/budget"
	"github.com/select-service/select-service/internal/gateway/openai"
	"github.com/select-service/select-service/internal/gateway/tokenizer"
	"github.com/select-service/select-service/internal/selecting"
	"github.com/select-service/select-service/internal/telemetry"
	"github.com/select-service/select-service/pkg/catalog"
)

// tokenize fills in the prompt: from the body, or by asking the tokenizer.
func (r *request) tokenize(ctx context.Context) *problem {
	r.prompt = selecting.Prompt{LoRA: r.target.lora, CacheSalt: r.salt}
	switch {
	case r.body.Prompts > 1: // a batch: no rank has one prefix of all
		r.placeByLoad()
		return nil
	case r.body.Tokens != nil:
		r.prompt.TokenIDs, r.prompt.HasTokenIDs = r.body.Tokens, true
		return nil
	case r.config.Tokenizer == nil:
		r.placeByLoad()
		return nil
	}
	if bad := r.holdTokens(); bad != nil {
		return bad
	}
	began := time.Now()
	ids, err := r.config.Tokenizer.Tokens(ctx, &tokenizer.Request{Request: r.body, Model: r.target.base, Engine: r.pool.engine})
	r.metrics.Tokenized(time.Since(began))
	if err != nil {
		return r.notTokenized(ctx, err)
	}
	r.prompt.TokenIDs, r.prompt.HasTokenIDs = ids, true
	return nil
}

// tokensFactor times its length is what the tokens of a body may take: one of one byte is four
// in memory, and a token id in the body, of two bytes with its comma, twice that while the list
// of them grows.
const tokensFactor = 4

// holdTokens reserves what the tokens of a large body may take, once. Those of small bodies
// are not counted.
func (r *request) holdTokens() *problem {
	if r.held > 0 || len(r.text) <= budget.SmallBody {
		return nil
	}
	n := tokensFactor * int64(len(r.text))
	if !r.serving.Reserve(n) {
		return errNoMemory()
	}
	r.held = n
	return nil
}

// ReleaseText implements selecting.TextHolder: the request waits, and its hashes are enough.
func (r *request) ReleaseText() {
	r.serving.Release(r.held)
	r.held, r.prompt.TokenIDs, r.body.Tokens = 0, nil, nil
}

// mostProbed is for how many models the tokenizer is tried at the start.
const mostProbed = 8

// probe tries the tokenizer once for each of the first models, to tell an operator early what
// every request would meet.
func (p *picker) probe(ctx context.Context) {
	if p.config.Tokenizer == nil {
		return
	}
	for i, t := range p.models.scopes() {
		pool := p.models.pool(t.scope)
		if i == mostProbed || pool == nil {
			return
		}
		err := p.config.Tokenizer.Probe(ctx, t.base, pool.engine())
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			p.log.Warn().Str("model", catalog.Clip(t.base)).Err(err).Msg("the tokenizer does not answer as it should: see --tokenizer-url and --tokenizer-protocol")
		default:
			p.log.Info().Str("model", catalog.Clip(t.base)).Msg("the tokenizer answers")
		}
	}
}

// engine returns the base URL of an engine of the model, at random; "" for none.
func (p *pool) engine() string {
	workers := p.snapshot.Workers
	if len(workers) == 0 {
		return ""
	}
	return workers[rand.IntN(len(workers))].Address()
}

// notTokenized decides what becomes of a request without tokens: nil places it by load.
func (r *request) notTokenized(ctx context.Context, err error) *problem {
	if ctx.Err() != nil {
		return problemOf(ctx, ctx.Err())
	}
	why := telemetry.TokenizerBroken
	bad := &problem{
		status: http.StatusBadGateway, kind: openai.TypeServer, code: "tokenizer_failed", text: "The tokenizer failed.",
		outcome: telemetry.GatewayTokenizer, err: err,
	}
	if e, ok := errors.AsType[*tokenizer.Error](err); ok {
		switch e.Reason {
		case tokenizer.Rejected:
			why = telemetry.TokenizerRejected
			bad = errInvalid("invalid_request", "The request was rejected by the tokenizer.")
			bad.err = err
		case tokenizer.Unavailable:
			why, bad.status, bad.code, bad.text, bad.retry = telemetry.TokenizerUnavailable, http.StatusServiceUnavailable, "tokenizer_unavailable", "The tokenizer is not available.", true
		case tokenizer.Open:
			why, bad.status, bad.code, bad.text, bad.retry = telemetry.TokenizerOpen, http.StatusServiceUnavailable, "tokenizer_unavailable", "The tokenizer is not available.", true
		case tokenizer.Timeout:
			why, bad.status, bad.code, bad.text = telemetry.TokenizerTimeout, http.StatusGatewayTimeout, "tokenizer_timeout", "The tokenizer did not answer in time."
		case tokenizer.Unconvertible:
			why = telemetry.TokenizerUnconvertible
		case tokenizer.NoMemory:
			why, bad = telemetry.TokenizerNoMemory, errNoMemory()
		case tokenizer.TooLarge:
			why = telemetry.TokenizerTooLarge
		case tokenizer.Broken:
		}
	}
	if why == telemetry.TokenizerUnconvertible || r.config.LoadOnly && why != telemetry.TokenizerRejected {
		r.metrics.TokenizerFailed(why, telemetry.TokenizerLoadOnly)
		r.log.Debug().Err(err).Msg("a prompt without tokens is placed by load")
		r.placeByLoad()
		return nil
	}
	r.metrics.TokenizerFailed(why, telemetry.TokenizerRefused)
	return bad
}

// bytesPerToken is about what a token of text has, for prompts whose tokens nobody counts.
const bytesPerToken = 4

// placeByLoad makes a prompt of about the right length that no cache has: its load counts.
func (r *request) placeByLoad() {
	tokens := max(1, r.body.TextBytes/bytesPerToken, len(r.body.Tokens)+r.body.FurtherTokens)
	blocks := make([]uint64, tokens/max(1, int(r.pool.snapshot.BlockSize)))
	for i := range blocks {
		blocks[i] = rand.Uint64()
	}
	r.prompt = selecting.Prompt{
		BlockHashes: blocks, HasBlockHashes: true, SequenceHashes: blocks, HasSequenceHashes: true,
		ISLTokens: uint64(tokens), HasISLTokens: true,
	}
}
