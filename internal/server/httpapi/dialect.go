package httpapi

import (
	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
)

// dialect is the contract version of a group of routes. It decides names, members of answers,
// statuses and texts, not the behaviour of the process as a whole (decision E2).
type dialect contract.Version

const (
	dialect13 = dialect(contract.V13)
	dialect16 = dialect(contract.V16)
)

// dialects are the dialects with a prefix of their own, on every listener that speaks them.
var dialects = []dialect{dialect13, dialect16}

// prefix is the prefix of the dialect's routes, whatever dialect routes without a prefix speak.
func (d dialect) prefix() string { return "/v" + contract.Version(d).String() }

// tenantKey is the dialect's name for the tenant of a scope. Bodies may also use the other
// dialect's name (decision E1).
func (d dialect) tenantKey() string {
	if d == dialect16 {
		return "routing_group"
	}
	return "tenant_id"
}

// reservationKey is the dialect's name of a reservation's id in bodies and answers.
func (d dialect) reservationKey() string {
	if d == dialect16 {
		return "selection_id"
	}
	return "reservation_id"
}

func (d dialect) other() dialect {
	if d == dialect16 {
		return dialect13
	}
	return dialect16
}

// appendScope appends the names of a scope.
func (d dialect) appendScope(out []byte, scope catalog.Scope) []byte {
	out = appendStringField(out, "model_name", scope.Model)
	return appendStringField(out, d.tenantKey(), scope.Tenant)
}

// scopeFields are the members that name a scope; one that is left out keeps its value.
func scopeFields[T any](d dialect, scope func(*T) *catalog.Scope) []bodyscan.Field[T] {
	return []bodyscan.Field[T]{
		{Name: "model_name", Read: bodyscan.Set(func(t *T) *string { return &scope(t).Model }, readText)},
		tenantField(d, scope),
	}
}

// tenantField is the member that names the tenant of a scope.
func tenantField[T any](d dialect, scope func(*T) *catalog.Scope) bodyscan.Field[T] {
	return aliased(d.tenantKey(), d.other().tenantKey(), func(t *T) *string { return &scope(t).Tenant })
}

// aliased describes a string that has two names. Both may come if they are equal.
func aliased[T any](name, alias string, field func(*T) *string) bodyscan.Field[T] {
	return bodyscan.Field[T]{
		Name: name, Read: bodyscan.Set(field, readText),
		Alias: alias, Again: func(s *bodyscan.Scanner, t *T) { sameString(s, *field(t), name, alias) },
	}
}

// aliasedOrNull is aliased for a member whose null means the same as its absence.
func aliasedOrNull[T any](name, alias string, field func(*T) **string) bodyscan.Field[T] {
	read := bodyscan.Optional(field, readText)
	return bodyscan.Field[T]{Name: name, Read: read, Alias: alias, Again: func(s *bodyscan.Scanner, t *T) {
		switch first := *field(t); {
		case first == nil:
			read(s, t)
		case !s.Null():
			sameString(s, *first, name, alias)
		}
	}}
}

// sameString reads a string and fails if it is not want.
func sameString(s *bodyscan.Scanner, want, name, alias string) {
	if got := s.Text(); s.Err() == nil && string(got) != want {
		s.Fail("`" + name + "` and `" + alias + "` differ")
	}
}
