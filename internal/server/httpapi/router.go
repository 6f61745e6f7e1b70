package httpapi

import (
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/select-service/select-service/internal/server/access"
	"github.com/select-service/select-service/internal/telemetry/tracing"
	"github.com/select-service/select-service/pkg/catalog"
)

// Part says which routes of a contract a listener has.
type Part uint8

// The parts: all routes; all but the operators' routes, if an admin listener has them; the
// operators' routes and those that only read, on the admin listener.
const (
	AllRoutes Part = iota
	CallersRoutes
	OperatorsRoutes
)

// has reports whether routes of a role are in the part.
func (p Part) has(role access.Role) bool {
	switch p {
	case CallersRoutes:
		return role != access.Operate
	case OperatorsRoutes:
		return role == access.Operate || role == access.Read || role == access.Public
	case AllRoutes:
	}
	return true
}

// request is a request with its caller.
type request struct {
	*gin.Context
	who  *access.Caller
	span *tracing.Span // nil: the request is not traced
}

// endpoint is the handler of a route. Callers with a scope may use it only if it is scoped; it
// must then keep to their scope. The functions that create endpoints ensure that: withBody by
// the body's check, listing by the filter, byID by the reservation.
type endpoint struct {
	handle func(request)
	scoped bool
}

// plain returns an endpoint that callers with a scope may not use.
func plain(h gin.HandlerFunc) endpoint { return endpoint{handle: func(c request) { h(c.Context) }} }

// anyScope lets callers with a scope use an endpoint that shows nothing of any scope, or limits
// itself to the caller's.
func anyScope(e endpoint) endpoint {
	e.scoped = true
	return e
}

// router registers the routes of a listener, each with the role that it requires. There is no
// other way to register a route: TestRoutesHaveRoles.
type router struct {
	group gin.IRouter
	api   api
	roles map[string]access.Role // by method and path, of all routes of the listener
}

// under returns the router for a prefix, whose routes a handles.
func (r router) under(prefix string, a api) router {
	return router{group: r.group.Group(prefix), api: a, roles: r.roles}
}

func (r router) post(role access.Role, path string, e endpoint) {
	r.add(http.MethodPost, role, path, e)
}

// get registers an endpoint for GET and HEAD; net/http drops the body of a HEAD's answer.
func (r router) get(role access.Role, path string, e endpoint) {
	r.add(http.MethodGet, role, path, e)
	r.add(http.MethodHead, role, path, e)
}

func (r router) add(method string, role access.Role, path string, e endpoint) {
	if !r.api.part.has(role) {
		e = anyScope(r.api.serve(routeNotFound)) // other methods of the path may be on this listener, so this is not a 405
	}
	a := r.api
	changes := role == access.Operate && method != http.MethodGet && method != http.MethodHead
	base := ""
	if g, ok := r.group.(*gin.RouterGroup); ok {
		base = strings.TrimSuffix(g.BasePath(), "/")
	}
	name := method + " " + base + path
	r.group.Handle(method, path, func(c *gin.Context) {
		who, err := a.access.Admit(c.Request, role, e.scoped)
		if a.tracer != nil && err == nil { // who is not admitted fills no queue of spans
			a.beginSpan(c, name, role)
		}
		if changes {
			a.audited(c, who, func() { a.run(c, who, err, e) })
		} else {
			a.run(c, who, err, e)
		}
	})
	r.roles[name] = role
}

// run calls an endpoint, or answers why the caller is denied (denied not nil).
func (a api) run(c *gin.Context, who *access.Caller, denied error, e endpoint) {
	if denied != nil {
		a.fail(c, nil, denied)
		return
	}
	e.handle(request{c, who, a.spanOf(c)})
}

// unrouted answers requests without a route. A caller that needs a token on routes needs one
// here too.
func (a api) unrouted(answer answerFunc) gin.HandlerFunc {
	e := a.serve(answer)
	return func(c *gin.Context) {
		who, err := a.access.Identify(c.Request)
		if err != nil {
			c.Writer.Header().Del("Allow") // gin's list of the path's methods
			a.fail(c, nil, err)
			return
		}
		e.handle(request{c, who, nil})
	}
}

// defend refuses, on every path, requests that pages of foreign sites send. Links to our own page
// may be followed from anywhere.
func (a api) defend(c *gin.Context) {
	var err error
	if !a.page || !showsPage(c) {
		err = access.CheckOrigin(c.Request)
	}
	if err == nil {
		err = a.hosts.Check(c.Request)
	}
	if err != nil {
		a.fail(c, nil, err)
		c.Abort()
	}
}

// inScope returns the check of a body that names a scope: it must be within the caller's.
func inScope[T any](scope func(*T) *catalog.Scope) func(*access.Caller, *T) error {
	return func(who *access.Caller, t *T) error {
		if !who.Sees(*scope(t)) {
			return access.ErrForeignScope
		}
		return nil
	}
}

// checkedByID is the check of a body without a scope, on a route whose use case checks the
// scope of the path's id.
func checkedByID[T any](*access.Caller, *T) error { return nil }

// listing returns an endpoint that lists what matches the query's filter, narrowed to the
// caller's scope.
func (a api) listing(list func(f catalog.ScopeFilter, out []byte) []byte) endpoint {
	return a.narrowed(func(_ request, f catalog.ScopeFilter, out []byte) ([]byte, error) { return list(f, out), nil })
}
