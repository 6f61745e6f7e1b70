package selection

import (
	"cmp"
	"slices"

	"github.com/select-service/select-service/internal/selection/fairness"
	"github.com/select-service/select-service/pkg/catalog"
)

// FairnessQuery says which consumers of engine seconds are listed.
type FairnessQuery struct {
	Of       catalog.ScopeFilter
	Programs bool // programs of tenants instead of tenants
	Limit    int  // at most so many consumers, and as many classes
}

// FairnessList has the greatest consumers of the classes that are fair.
type FairnessList struct {
	Consumers []Consumer // those with the most engine seconds first
	Total     int        // of all, listed or not
	Classes   []FairClass
}

// Consumer is a tenant, or a program of one, in a class of a scope that is fair.
type Consumer struct {
	Scope       catalog.Scope
	PolicyClass string
	fairness.Use
	Waiting int // requests that wait
}

// FairClass is a class of a scope that is fair.
type FairClass struct {
	Scope       catalog.Scope
	PolicyClass string
	Rules       fairness.Rules
	fairness.Evenness
}

// Fairness lists who uses the engines of scopes in which tenants take turns.
func (a *API) Fairness(q *FairnessQuery) (l FairnessList) {
	now := a.scopes.Seconds()
	for sc, state := range a.scopes.All() {
		if !sc.Matches(q.Of.Model, q.Of.Tenant) {
			continue
		}
		for _, class := range state.Rules().Queue.FairClasses(true) {
			l.Classes = append(l.Classes, FairClass{sc, class.Name, class.Accounts.Rules(), class.Accounts.Evenness(now)})
			for _, u := range class.Accounts.Uses(q.Programs, now) {
				l.Consumers = append(l.Consumers, Consumer{sc, class.Name, u, class.Waiting[u.Account]})
			}
		}
	}
	l.Total = len(l.Consumers)
	slices.SortFunc(l.Consumers, func(a, b Consumer) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), a.Scope.Compare(b.Scope), cmp.Compare(a.PolicyClass, b.PolicyClass),
			cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Program, b.Program))
	})
	slices.SortFunc(l.Classes, func(a, b FairClass) int {
		return cmp.Or(a.Scope.Compare(b.Scope), cmp.Compare(a.PolicyClass, b.PolicyClass))
	})
	l.Consumers = l.Consumers[:min(len(l.Consumers), q.Limit)]
	l.Classes = l.Classes[:min(len(l.Classes), q.Limit)]
	return l
}
