package gateway

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/server/gateway/tokenizer"
	"github.com/select-service/select-service/pkg/catalog"
)

// lengths has the context lengths of models. They are learnt from the tokenizer's answers and,
// when a request needs one, from an engine's list of models. The engines of a model are taken to
// have the same length: the latest answer counts.
type lengths struct {
	models *models
	asks   *tokenizer.Lengths
	wanted chan target // to be asked for; full: what is wanted now will be wanted again
	log    zerolog.Logger

	mu sync.Mutex // guards of
	of map[catalog.Scope]*contextLength
}

// contextLength is what is known of a model's context length.
type contextLength struct {
	tokens int       // 0: unknown
	asked  time.Time // when it was last learnt or asked for
}

const (
	// maxWantedLengths bounds the models to be asked for.
	maxWantedLengths = 16
	// An unknown length is asked for again after lengthEvery, a known one after lengthFor: engines
	// may have been restarted with another one.
	lengthEvery = time.Second
	lengthFor   = 5 * time.Minute
	// maxLengthAsked bounds how many engines are asked for a length before it stays unknown.
	maxLengthAsked = 3
)

func newLengths(models *models, of tokenizer.Engines, log zerolog.Logger) *lengths {
	return &lengths{models: models, asks: tokenizer.NewLengths(of), wanted: make(chan target, maxWantedLengths), log: log, of: make(map[catalog.Scope]*contextLength)}
}

// known returns the context length of a target's model in tokens without waiting; 0: unknown.
func (l *lengths) known(t target) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.of[t.scope]; c != nil {
		return c.tokens
	}
	return 0
}

// want returns the length as known does, and has it asked for where it is unknown or old.
func (l *lengths) want(t target) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.entryLocked(t.scope)
	again := lengthEvery
	if c.tokens > 0 {
		again = lengthFor
	}
	if now := time.Now(); now.Sub(c.asked) >= again {
		select {
		case l.wanted <- t:
			c.asked = now
		default:
		}
	}
	return c.tokens
}

// learn notes a length that an engine has told; 0 is none.
func (l *lengths) learn(sc catalog.Scope, tokens int) {
	if tokens <= 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.entryLocked(sc)
	c.tokens, c.asked = tokens, time.Now()
}

func (l *lengths) entryLocked(sc catalog.Scope) *contextLength {
	c := l.of[sc]
	if c == nil {
		if len(l.of) >= maxPools {
			clear(l.of)
		}
		c = &contextLength{}
		l.of[sc] = c
	}
	return c
}

// run asks for the wanted lengths until ctx ends.
func (l *lengths) run(ctx context.Context) error {
	defer l.asks.Close()
	for {
		select {
		case <-ctx.Done():
			return nil
		case t := <-l.wanted:
			l.ask(ctx, t)
		}
	}
}

// ask asks engines of the model until one answers.
func (l *lengths) ask(ctx context.Context, t target) {
	pool := l.models.pool(t.scope)
	if pool == nil {
		return
	}
	asked := 0
	for engine := range pool.engines() {
		tokens, err := l.asks.Ask(ctx, engine, t.base)
		if err == nil {
			l.learn(t.scope, tokens)
			return
		}
		l.log.Debug().Err(err).Msg("the length of a model is not known")
		if asked++; asked == maxLengthAsked || ctx.Err() != nil {
			return
		}
	}
}
