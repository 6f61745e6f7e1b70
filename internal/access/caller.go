package access

import (
	"crypto/sha256"

	"github.com/select-service/select-service/pkg/catalog"
)

// Caller is who sends a request. A nil Caller is everybody: without a tokens file
// there are no roles and no scopes.
type Caller struct {
	// Name is that of the token, or of the certificate.
	Name  string
	roles roles
	// scope is all that the caller sees, books and changes; nil names are any.
	scope catalog.ScopeFilter
}

// anonymous is the caller of a public route who shows no token.
var anonymous = new(Caller)

// May reports whether the caller has a role.
func (c *Caller) May(r Role) bool { return c == nil || r == Public || c.roles.has(r) }

// Scoped reports whether the caller is limited to a model or a tenant.
func (c *Caller) Scoped() bool {
	return c != nil && (c.scope.Model != nil || c.scope.Tenant != nil)
}

// Sees reports whether a scope is the caller's.
func (c *Caller) Sees(s catalog.Scope) bool {
	return c == nil || s.Matches(c.scope.Model, c.scope.Tenant)
}

// Scope is all that the caller sees, the empty filter if that is everything.
func (c *Caller) Scope() catalog.ScopeFilter {
	if c == nil {
		return catalog.ScopeFilter{}
	}
	return c.scope
}

// Narrow limits a filter to the caller's scope. The error is a *DeniedError if the
// filter names another one.
func (c *Caller) Narrow(f catalog.ScopeFilter) (catalog.ScopeFilter, error) {
	if !c.Scoped() {
		return f, nil
	}
	for _, n := range [...]struct{ own, asked **string }{{&c.scope.Model, &f.Model}, {&c.scope.Tenant, &f.Tenant}} {
		switch own, asked := *n.own, *n.asked; {
		case own == nil:
		case asked == nil:
			*n.asked = own
		case *asked != *own:
			return f, ErrForeignScope
		}
	}
	return f, nil
}

// Covers returns a *DeniedError unless everything that the filter matches is the
// caller's.
func (c *Caller) Covers(f catalog.ScopeFilter) error {
	own := c.Scope()
	if own.Model != nil && (f.Model == nil || *f.Model != *own.Model) ||
		own.Tenant != nil && (f.Tenant == nil || *f.Tenant != *own.Tenant) {
		return ErrForeignScope
	}
	return nil
}

// token is an entry of the file.
type token struct {
	sum    [sha256.Size]byte
	caller *Caller
}

// directory has the callers of one content of the file.
type directory struct {
	tokens []token
	names  map[string]*Caller // by name in a certificate
}
