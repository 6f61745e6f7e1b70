package httpapi

import (
	"errors"
	"fmt"
	stdlog "log"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/internal/telemetry/metrics"
	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/pkg/catalog"
)

// Limits of a connection. There is no limit on the time to answer: a selection takes as long as
// it waits in the queue.
const (
	headerTimeout = 10 * time.Second
	// idleTimeout is longer than clients and load balancers usually keep a connection, so that
	// it is they who close it.
	idleTimeout    = 3 * time.Minute
	maxHeaderBytes = 64 << 10
)

// NewServer returns a server for handler, ready for Serve on the caller's listener.
func NewServer(handler http.Handler, log zerolog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          stdlog.New(serverLog{log}, "", 0),

		DisableGeneralOptionsHandler: true, // so that OPTIONS * gets our 404
	}
}

// serverLog logs the lines of net/http about faults of connections.
type serverLog struct{ log zerolog.Logger }

func (l serverLog) Write(line []byte) (int, error) {
	l.log.Debug().Str("detail", string(line)).Msg("http connection")
	return len(line), nil
}

// api is the state that the handlers of a contract share.
type api struct {
	log        zerolog.Logger
	dialect    dialect
	render     renderer
	requests   RequestObserver // nil: none
	retryAfter string          // Retry-After of an overload; empty: none
	access     *access.Guard
	hosts      *access.Hosts
	part       Part
	audit      *access.Audit
	memory     *Memory // nil: no limits
	dumps      *Readers
	snapshots  *Readers
	maxWorkers int
	sources    Sources // nil: there are none
	fleet      FleetStatus
	page       bool // the listener has the operators' page
	tracer     *tracing.Tracer
	named      func(catalog.Scope) catalog.Scope // nil: models have no further names
}

// resolve puts the scope that a name stands for in its place.
func (a *api) resolve(sc *catalog.Scope) {
	if a.named != nil {
		*sc = a.named(*sc)
	}
}

// RequestObserver sees every request of a listener, from any goroutine. It is on the
// path of every answer: it must not block.
type RequestObserver interface {
	// Begin is called when a request has come.
	Begin()
	// End is called once for each Begin, when the answer has been written or given up; its last
	// part may still be in a buffer. The route is a pattern ("/workers/:worker_id"). If no
	// route was found, method and route are both empty, so that clients cannot create new
	// values. The status is 499 if the client left before its answer was complete, and 500 if
	// the service broke the answer off. of is the request's trace.
	End(method, route string, status int, took time.Duration, of metrics.Example)
	// Refused is called for a request that a limit refuses, before its End. limit is one
	// of contract.Limits.
	Refused(limit string)
}

// statusClientGone is the status for a client that did not wait for its answer (nginx's number).
// It is used in the log and counters only, where such a request must not look like a refusal.
const statusClientGone = 499

// observe wraps the handling of a request: it echoes the request's id, and counts and logs its
// end, even after a panic.
func (a api) observe(c *gin.Context) {
	echoRequestID(c)
	debugging := a.logsRequests()
	if a.requests == nil && !debugging && a.tracer == nil {
		return // gin calls the next handlers itself
	}
	start := time.Now()
	if a.requests != nil {
		a.requests.Begin()
	}
	whole := false
	defer func() {
		took := time.Since(start)
		status := c.Writer.Status()
		switch {
		case whole:
		case c.Request.Context().Err() != nil:
			status = statusClientGone
		default:
			status = http.StatusInternalServerError
		}
		if a.requests != nil {
			method, route := c.Request.Method, c.FullPath()
			if route == "" {
				method = ""
			}
			a.requests.End(method, route, status, took, a.spanOf(c).Example())
		}
		a.endSpan(c, status)
		if debugging {
			a.logAccess(c, status, took)
		}
	}()
	c.Next()
	whole = true
}

// logAccess writes one debug line about a request, with the text of the answer
// if that is an error. Bodies are never logged: they hold prompts.
func (a api) logAccess(c *gin.Context, status int, took time.Duration) {
	line := withRequest(a.log.Debug(), c)
	if text := c.GetString(problemKey); text != "" {
		line.Str("error", catalog.Clip(text))
	}
	line.
		Str("path", catalog.Clip(c.Request.URL.Path)).
		Int("status", status).
		Int64("request_bytes", c.Request.ContentLength).
		Int("bytes", max(c.Writer.Size(), 0)).
		Dur("took_ms", took).
		Str("remote", c.Request.RemoteAddr).
		Msg("request")
}

// problemKey is the key of a request's error text, for the access log.
const problemKey = "problem"

// noteProblem counts an error that comes from a limit, and keeps the text for the
// access log and for an audit line, if there is one.
func (a api) noteProblem(c *gin.Context, p problem) {
	if p.limit != "" && a.requests != nil {
		a.requests.Refused(p.limit)
	}
	if a.logsRequests() || c.GetBool(auditedKey) {
		c.Set(problemKey, p.text)
	}
}

// logsRequests reports whether there is an access log.
func (a api) logsRequests() bool { return a.log.GetLevel() <= zerolog.DebugLevel }

// withRequest adds to a log line which request it is about.
func withRequest(e *zerolog.Event, c *gin.Context) *zerolog.Event {
	e = e.Str("method", c.Request.Method).Str("route", c.FullPath())
	if id := requestID(c.Request); id != nil {
		e = e.Str("request_id", id[0])
	}
	if span := spanOf(c); span != nil {
		e = e.Str("trace_id", span.TraceID())
	}
	return e
}

// headerOf is Header.Get for a name in canonical form, which Get would make again at each call.
func headerOf(h http.Header, name string) string {
	if values := h[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// requestIDHeader carries the id that a client, or a proxy, gives a request.
const requestIDHeader = "X-Request-Id"

// maxRequestID is the longest id that is echoed, in bytes.
const maxRequestID = 128

// requestID returns the request's id as the values of a header, nil if it has no usable id: 1
// to maxRequestID visible ASCII characters.
func requestID(r *http.Request) []string {
	ids := r.Header[requestIDHeader]
	if len(ids) == 0 || ids[0] == "" || len(ids[0]) > maxRequestID {
		return nil
	}
	for i := range len(ids[0]) {
		if c := ids[0][i]; c <= ' ' || c > '~' {
			return nil
		}
	}
	return ids[:1:1]
}

func echoRequestID(c *gin.Context) {
	if id := requestID(c.Request); id != nil {
		c.Writer.Header()[requestIDHeader] = id
	}
}

// recovery turns a handler's panic into a 500 answer, so that one bad request
// cannot take the process down.
func (a api) recovery(c *gin.Context) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
			panic(p) // asks net/http to drop the connection
		}
		withRequest(a.log.Error(), c).Str("panic", fmt.Sprint(p)).Bytes("stack", debug.Stack()).Msg("handler panicked")
		if c.Writer.Written() {
			panic(http.ErrAbortHandler) // an incomplete answer must not look complete
		}
		a.noteProblem(c, internalProblem)
		status, out := a.render(c.Request, nil, internalProblem)
		respond(c, status, out)
		c.Abort()
	}()
	c.Next()
}
