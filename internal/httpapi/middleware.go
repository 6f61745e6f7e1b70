package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/rs/zerolog"
)

// api is what the handlers of a contract have in common.
type api struct {
	log    zerolog.Logger
	render renderer
}

// accessLog writes one debug line per request. Bodies are never logged: they
// hold prompts.
func (a api) accessLog(c *gin.Context) {
	if a.log.GetLevel() > zerolog.DebugLevel {
		return // gin goes on by itself
	}
	start := time.Now()
	c.Next()
	a.log.Debug().
		Str("method", c.Request.Method).
		Str("path", c.Request.URL.Path).
		Int("status", c.Writer.Status()).
		Int64("request_bytes", c.Request.ContentLength).
		Int("bytes", c.Writer.Size()).
		Dur("took", time.Since(start)).
		Str("remote", c.Request.RemoteAddr).
		Msg("request")
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
		a.log.Error().Str("panic", fmt.Sprint(p)).Bytes("stack", debug.Stack()).
			Str("method", c.Request.Method).Str("route", c.FullPath()).Msg("handler panicked")
		if c.Writer.Written() {
			panic(http.ErrAbortHandler) // half an answer must not look whole
		}
		status, out := a.render(nil, internalProblem)
		respond(c, status, out)
		c.Abort()
	}()
	c.Next()
}
