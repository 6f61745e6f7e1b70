package gateway

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/codec/redact"
	"github.com/select-service/select-service/pkg/catalog"
)

// lengths has the context lengths of models. A worker states it, as it was registered or as its engine
// describes itself. Where none does, it is learnt from the tokenizer's answers and, when a request needs
// it, asked of an engine. The engines of a model are taken to have the same length: that of the first
// worker counts, or else the latest answer.
type lengths struct {
	models *models
	asks   func(ctx context.Context, engine, model string) (int, error) // nil: nobody is asked
	wanted chan target                                                  // to be asked for; full: what is wanted now will be wanted again
	log    zerolog.Logger

	mu sync.Mutex // guards of
	of map[catalog.Scope]*contextLength
}

// contextLength is what is known of a model's context length.
type contextLength struct {
	tokens int       // 0: unknown
	asked  time.Time // when it was last learnt or asked for

	of     *catalog.Snapshot // whose workers were looked at
	stated int               // by one of them, 0: by none
}

// known returns the length by a snapshot of the model's workers, 0 if it is unknown.
func (c *contextLength) known(now *catalog.Snapshot) int {
	if c.of != now {
		c.of, c.stated = now, 0
		if now != nil {
			for _, w := range now.Workers {
				if w.MaxModelLen != nil && *w.MaxModelLen > 0 {
					c.stated = int(*w.MaxModelLen)
					break
				}
			}
		}
	}
	return cmp.Or(c.stated, c.tokens)
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

func newLengths(models *models, asks func(ctx context.Context, engine, model string) (int, error), log zerolog.Logger) *lengths {
	return &lengths{models: models, asks: asks, wanted: make(chan target, maxWantedLengths), log: log, of: make(map[catalog.Scope]*contextLength)}
}

// known returns the context length of a target's model in tokens without waiting; 0: unknown.
func (l *lengths) known(t target) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.entryLocked(t.scope).known(l.models.catalog.Snapshot(t.scope))
}

// want returns the length as known does, and requests it from an engine if it is unknown or old.
func (l *lengths) want(t target) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.entryLocked(t.scope)
	tokens := c.known(l.models.catalog.Snapshot(t.scope))
	if c.stated > 0 {
		return tokens
	}
	again := lengthEvery
	if tokens > 0 {
		again = lengthFor
	}
	if now := time.Now(); now.Sub(c.asked) >= again {
		select {
		case l.wanted <- t:
			c.asked = now
		default:
		}
	}
	return tokens
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
	if pool == nil || l.asks == nil {
		return
	}
	asked := 0
	for engine := range pool.engines() {
		tokens, err := l.asks(ctx, engine, t.base)
		if err == nil {
			l.learn(t.scope, tokens)
			return
		}
		l.log.Debug().Str("error", redact.URLs(err.Error())).Msg("the length of a model is not known")
		if asked++; asked == maxLengthAsked || ctx.Err() != nil {
			return
		}
	}
}
