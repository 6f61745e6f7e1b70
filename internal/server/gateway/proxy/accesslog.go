package proxy

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/pkg/catalog"
)

// outcome is what became of an exchange.
type outcome string

const (
	outcomeDone    outcome = "done"
	outcomeRefused outcome = "refused" // answered in the engine's place
	outcomeBroken  outcome = "broken"  // by the engine, within its answer
	outcomeGone    outcome = "gone"    // the client has left
	outcomeFailed  outcome = "failed"  // by a fault of this process
)

// statusGone is logged for a client that has left before its answer was complete.
const statusGone = 499

// accessLine is what the access log says of an exchange.
type accessLine struct {
	status  int
	code    string // of an answer in the engine's place
	engine  string // ip:port; "": none
	first   time.Time
	bytes   int64
	outcome outcome
}

func (l *accessLine) gone() { l.status, l.outcome = statusGone, outcomeGone }

func (l *accessLine) refused(status int, code string) {
	l.status, l.code, l.outcome = status, code, outcomeRefused
}

// log writes the line. It has nothing of what the request or its answer says.
func (e *exchange) log() {
	e.server.config.Log.Info().EmbedObject(logged{e}).Msg("request through the proxy")
}

// logged is an exchange in the log.
type logged struct{ *exchange }

// MarshalZerologObject implements zerolog.LogObjectMarshaler.
func (l logged) MarshalZerologObject(to *zerolog.Event) {
	line := &l.line
	to.Str("method", l.r.Method).Str("api", l.Kind().String()).Int("status", line.status).Str("outcome", string(line.outcome)).
		Int64("bytes", line.bytes).Dur("took_ms", time.Since(l.began))
	if line.code != "" {
		to.Str("code", line.code)
	}
	if model := l.Model(); model != "" {
		to.Str("model", catalog.Clip(model))
	}
	if line.engine != "" {
		to.Str("engine", line.engine)
	}
	if !line.first.IsZero() {
		to.Dur("first_byte_ms", line.first.Sub(l.began))
	}
	if prompt, completion := l.Tokens(); prompt > 0 || completion > 0 {
		to.Uint64("prompt_tokens", prompt).Uint64("completion_tokens", completion)
	}
}
