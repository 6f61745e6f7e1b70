package policies

import (
	"maps"
	"sync/atomic"

	"github.com/select-service/select-service/pkg/catalog"
)

// Served has the scopes that a port for requests to engines can name: by the names of their models, and by further
// names under which their engines serve these. A nil Served has none.
type Served struct {
	named   func(catalog.Scope) bool
	further atomic.Pointer[map[catalog.Scope]bool] // scopes with a further name that is named; nil: none
}

// NewServed returns the scopes that such a port names. named says which these are while no engine has told further names.
func NewServed(named func(catalog.Scope) bool) *Served { return &Served{named: named} }

// Has reports whether the port can name a scope.
func (s *Served) Has(sc catalog.Scope) bool {
	if s == nil {
		return false
	}
	if further := s.further.Load(); further != nil && (*further)[sc] {
		return true
	}
	return s.named(sc)
}

// SetAliases sets the scopes that further names stand for, by these names, and reports whether the port can name other
// scopes than before. Calls must follow each other.
func (s *Served) SetAliases(aliases map[catalog.Scope]catalog.Scope) (changed bool) {
	if s == nil {
		return false
	}
	further := make(map[catalog.Scope]bool)
	for name, sc := range aliases {
		if s.named(name) {
			further[sc] = true
		}
	}
	if was := s.further.Load(); was != nil && maps.Equal(*was, further) || was == nil && len(further) == 0 {
		return false
	}
	s.further.Store(&further)
	return true
}
