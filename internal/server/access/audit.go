package access

import (
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// The log may get refusedBurst lines about refused changes at once, then one per refusedEvery,
// so that callers without permission cannot fill the log.
const (
	refusedBurst = 20
	refusedEvery = time.Second
)

// Audit writes log lines about changes: by whom, from where, with what result. All of them
// have the field "who".
type Audit struct {
	log     zerolog.Logger
	start   time.Time
	due     atomic.Int64 // see take
	omitted atomic.Uint64
}

// NewAudit returns an audit in a log.
func NewAudit(log zerolog.Logger) *Audit { return &Audit{log: log, start: time.Now()} }

// Line begins the line about a request's change; the caller adds fields and sends it. It
// returns nil if there are too many lines about refused changes. An unknown caller, and
// everyone if there is no tokens file, is "anonymous".
func (a *Audit) Line(who *Caller, r *http.Request, done bool) *zerolog.Event {
	if !done && !take(&a.due, time.Since(a.start), refusedEvery, refusedBurst) {
		a.omitted.Add(1)
		return nil
	}
	name := "anonymous"
	if who != nil && who.Name != "" {
		name = who.Name
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	result := "ok"
	if !done {
		result = "refused"
	}
	//nolint:zerologlint // the caller ends it
	line := a.log.Info().Str("who", name).Str("address", host).Str("result", result)
	if n := a.omitted.Swap(0); n > 0 {
		line.Uint64("omitted", n) // refused changes without a line before this one
	}
	return line
}
