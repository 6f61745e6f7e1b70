package selection

import (
	"slices"

	"github.com/select-service/select-service/internal/selection/fairness"
	"github.com/select-service/select-service/pkg/replicasync"
)

// maxToldAccounts bounds the accounts of a class that are told to other replicas in a second. The others are told later.
const maxToldAccounts = 4 * replicasync.MaxServed

// ShareServed shares what accounts are served with the replicas that replica follows. It must be called before any other use.
func (a *API) ShareServed(replica *replicasync.Replica) {
	a.replica = replica
	replica.AttachServed(a)
}

// shareServed tells other replicas what has changed of what accounts were served here.
func (a *API) shareServed() {
	if a.replica == nil || !a.scopes.Fair() {
		return
	}
	now := a.scopes.Seconds()
	for sc, state := range a.scopes.All() {
		for _, class := range state.Rules().Queue.FairClasses(false) {
			for some := range slices.Chunk(class.Accounts.Changed(maxToldAccounts, now), replicasync.MaxServed) {
				s := replicasync.Served{Scope: sc, Class: class.Name}
				for _, account := range some {
					s.Accounts = append(s.Accounts, replicasync.ServedAccount(account))
				}
				a.replica.ShareServed(&s)
			}
		}
	}
}

// ApplyServed is part of replicasync.ServedSink.
func (a *API) ApplyServed(process, version uint64, s *replicasync.Served) (known bool) {
	state := a.scopes.Of(s.Scope)
	if state == nil {
		return false
	}
	now := a.scopes.Seconds()
	for _, class := range state.Rules().Queue.FairClasses(false) {
		if class.Name != s.Class {
			continue
		}
		known = true
		for i := range s.Accounts {
			class.Accounts.ServedElsewhere(process, version, new(fairness.State(s.Accounts[i])), now)
		}
	}
	return known
}
