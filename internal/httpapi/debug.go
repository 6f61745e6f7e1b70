package httpapi

import (
	"expvar"
	"net/http"
	"net/http/pprof"

	"github.com/gin-gonic/gin"
)

// NewDebug returns the handler of the debug listener: profiles of the process under
// /debug/pprof/ and its variables at /debug/vars. No other listener has them.
func NewDebug(opt Options) http.Handler {
	e, _ := bareEngine(opt, renderSelection)
	get(e, "/debug/vars", gin.WrapH(expvar.Handler()))
	get(e, "/debug/pprof/*profile", profile)
	return e
}

// profile serves one profile, or their list. Those with a time to run end with the
// request.
func profile(c *gin.Context) {
	serve := pprof.Index // knows the named ones
	switch c.Param("profile") {
	case "/cmdline":
		serve = pprof.Cmdline
	case "/profile":
		serve = pprof.Profile
	case "/symbol":
		serve = pprof.Symbol
	case "/trace":
		serve = pprof.Trace
	}
	serve(c.Writer, c.Request)
}
