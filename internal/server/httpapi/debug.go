package httpapi

import (
	"expvar"
	"net/http"
	"net/http/pprof"
	"sync"

	"github.com/gin-gonic/gin"

	"github.com/select-service/select-service/internal/container/offheap"
	"github.com/select-service/select-service/internal/server/access"
)

// NewDebug returns the handler of the debug listener: profiles of the process under
// /debug/pprof/ and its variables at /debug/vars. No other listener has them.
func NewDebug(opt Options) http.Handler { return newDebugEngine(opt) }

// publishOutside publishes the memory outside the collector's heap, which memstats does not have.
var publishOutside = sync.OnceFunc(func() {
	expvar.Publish("outside_heap_bytes", expvar.Func(func() any { return offheap.Mapped() }))
})

func newDebugEngine(opt Options) engine {
	publishOutside()
	e := bareEngine(opt, renderSelection)
	e.routes.get(access.Operate, "/debug/vars", plain(gin.WrapH(expvar.Handler())))
	e.routes.get(access.Operate, "/debug/pprof/*profile", plain(profile))
	return e
}

// profile serves one profile or the list of profiles. Profiles that run for a time end with the
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
