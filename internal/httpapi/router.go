package httpapi

import (
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/select-service/select-service/internal/access"
	"github.com/select-service/select-service/pkg/catalog"
)

// Part is which routes of a contract a listener has.
type Part uint8

// The parts: everything; all but the operators' routes, where an admin listener has
// them; those and what reads, on the admin listener.
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

// request is one and who sends it.
type request struct {
	*gin.Context
	who *access.Caller
}

// endpoint is what a route does. Callers with a scope reach it only if it is scoped:
// then it must keep to that. Those who make endpoints see to it: withBody by the
// body's check, listing by the filter, byID by the reservation.
type endpoint struct {
	handle func(request)
	scoped bool
}

// plain makes an endpoint that is not for callers with a scope.
func plain(h gin.HandlerFunc) endpoint { return endpoint{handle: func(c request) { h(c.Context) }} }

// anyScope makes an endpoint that shows nothing of any scope, or only what the
// caller's has.
func anyScope(e endpoint) endpoint {
	e.scoped = true
	return e
}

// router registers the routes of a listener, each with the role that it takes. There
// is no other way to register one: TestRoutesHaveRoles.
type router struct {
	group gin.IRouter
	api   api
	roles map[string]access.Role // by method and path, of all routes of the listener
}

// under is the router of the routes below a prefix, which a handles.
func (r router) under(prefix string, a api) router {
	return router{group: r.group.Group(prefix), api: a, roles: r.roles}
}

func (r router) post(role access.Role, path string, e endpoint) {
	r.add(http.MethodPost, role, path, e)
}

// get registers an endpoint for GET and HEAD; net/http drops the body of the latter.
func (r router) get(role access.Role, path string, e endpoint) {
	r.add(http.MethodGet, role, path, e)
	r.add(http.MethodHead, role, path, e)
}

func (r router) add(method string, role access.Role, path string, e endpoint) {
	if !r.api.part.has(role) {
		e = anyScope(r.api.serve(routeNotFound)) // of the path's other methods some may be here: not a 405
	}
	a := r.api
	changes := role == access.Operate && method != http.MethodGet && method != http.MethodHead
	r.group.Handle(method, path, func(c *gin.Context) {
		who, err := a.access.Admit(c.Request, role, e.scoped)
		if changes {
			a.audited(c, who, func() { a.run(c, who, err, e) })
		} else {
			a.run(c, who, err, e)
		}
	})
	base := ""
	if g, ok := r.group.(*gin.RouterGroup); ok {
		base = strings.TrimSuffix(g.BasePath(), "/")
	}
	r.roles[method+" "+base+path] = role
}

// run calls an endpoint, or answers why the caller is denied.
func (a api) run(c *gin.Context, who *access.Caller, denied error, e endpoint) {
	if denied != nil {
		a.fail(c, nil, denied)
		return
	}
	e.handle(request{c, who})
}

// unrouted answers what no route takes: whoever needs a token elsewhere does here.
func (a api) unrouted(answer answerFunc) gin.HandlerFunc {
	e := a.serve(answer)
	return func(c *gin.Context) {
		who, err := a.access.Identify(c.Request)
		if err != nil {
			c.Writer.Header().Del("Allow") // gin's list of the path's methods
			a.fail(c, nil, err)
			return
		}
		e.handle(request{c, who})
	}
}

// defend refuses what pages of foreign sites send, on every path.
func (a api) defend(c *gin.Context) {
	err := access.CheckOrigin(c.Request)
	if err == nil {
		err = a.hosts.Check(c.Request)
	}
	if err != nil {
		a.fail(c, nil, err)
		c.Abort()
	}
}

// inScope is the check of a body that names a scope: a caller's must be his own.
func inScope[T any](scope func(*T) *catalog.Scope) func(*access.Caller, *T) error {
	return func(who *access.Caller, t *T) error {
		if !who.Sees(*scope(t)) {
			return access.ErrForeignScope
		}
		return nil
	}
}

// checkedByID is the check of a body that names no scope, on a route whose use case
// checks that of the path's id.
func checkedByID[T any](*access.Caller, *T) error { return nil }

// listing makes an endpoint of a function that lists what a filter matches, which is
// the query's, narrowed to the caller's scope.
func (a api) listing(list func(f catalog.ScopeFilter, out []byte) []byte) endpoint {
	return anyScope(a.serve(func(c request, out []byte) (int, []byte, error) {
		f, err := filterOf(c.Request)
		if err == nil {
			f, err = c.who.Narrow(f)
		}
		if err != nil {
			return 0, nil, err
		}
		return http.StatusOK, list(f, out), nil
	}))
}
