package access

import (
	"crypto/sha256"

	"github.com/select-service/select-service/pkg/catalog"
)

// Caller is the sender of a request. A nil Caller, used without a tokens file, has all
// roles and all scopes.
type Caller struct {
	// Name is the name of the token or of the certificate.
	Name  string
	roles roles
	// scope limits what the caller sees, books and changes; a nil name is any.
	scope catalog.ScopeFilter
}

// anonymous is the caller of a public route without a token.
var anonymous = new(Caller)

// May reports whether the caller has a role.
func (c *Caller) May(r Role) bool { return c == nil || r == Public || c.roles.has(r) }

// Scoped reports whether the caller is limited to a model or a tenant.
func (c *Caller) Scoped() bool {
	return c != nil && (c.scope.Model != nil || c.scope.Tenant != nil)
}

// Sees reports whether a scope is within the caller's.
func (c *Caller) Sees(s catalog.Scope) bool {
	return c == nil || s.Matches(c.scope.Model, c.scope.Tenant)
}

// Scope returns the caller's scope, the empty filter if it is not limited.
func (c *Caller) Scope() catalog.ScopeFilter {
	if c == nil {
		return catalog.ScopeFilter{}
	}
	return c.scope
}

// Narrow limits a filter to the caller's scope. The error is a *DeniedError if the filter names
// a model or tenant outside it.
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

// Covers returns a *DeniedError unless everything that the filter matches is within the
// caller's scope.
func (c *Caller) Covers(f catalog.ScopeFilter) error {
	own := c.Scope()
	if own.Model != nil && (f.Model == nil || *f.Model != *own.Model) ||
		own.Tenant != nil && (f.Tenant == nil || *f.Tenant != *own.Tenant) {
		return ErrForeignScope
	}
	return nil
}

// token is a token of the file.
type token struct {
	sum    [sha256.Size]byte
	caller *Caller
}

// directory has the callers of one version of the file.
type directory struct {
	tokens []token
	names  map[string]*Caller // by name in a certificate
}
