package service

import (
	"slices"

	"github.com/select-service/select-service/internal/policies"
	"github.com/select-service/select-service/internal/selecting"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector/ttft"
)

// ScopePolicy is the policy of a scope that has workers.
type ScopePolicy struct {
	Scope  catalog.Scope
	Name   string // of the instance
	Type   string // "" for the built-in cost
	Shadow []string
	// Learned is what has been learned about the duration of prefills; nil if the policy does
	// not use it.
	Learned *LearnedPrefills
}

// LearnedPrefills has the learned parameters of a scope, see [ttft.Parameters].
type LearnedPrefills struct {
	ttft.Parameters
	Samples uint64
	Flow    ttft.Flow
	Ranks   []RankQueue
	Rails   []ttft.RailState
}

// RankQueue is the work that a rank still has to compute, with its predicted duration.
type RankQueue struct {
	Rank  catalog.Rank
	Queue ttft.Queue
	Wait  float64 // seconds
}

// Policies lists the policies of the matching scopes, by model and tenant.
func (s *Service) Policies(of catalog.ScopeFilter) []ScopePolicy {
	var all []ScopePolicy
	for sc, state := range s.scopes.All() {
		if !sc.Matches(of.Model, of.Tenant) {
			continue
		}
		p := ScopePolicy{Scope: sc, Name: policies.BuiltIn}
		if x := state.Policies; x != nil {
			p.Name, p.Type = x.Name, x.Type
			for _, shadow := range x.Shadows() {
				p.Shadow = append(p.Shadow, shadow.Name)
			}
			if x.Learner != nil {
				p.Learned = s.learned(sc, x.Learner)
			}
		}
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b ScopePolicy) int { return a.Scope.Compare(b.Scope) })
	return all
}

func (s *Service) learned(sc catalog.Scope, l *ttft.Learner) *LearnedPrefills {
	m := l.Model()
	known := &LearnedPrefills{Parameters: m.Parameters, Samples: l.Samples(), Flow: m.Flow(s.ledger.Now()), Rails: l.States()}
	s.eachQueue(sc, l, func(e catalog.Entry, q ttft.Queue) {
		wait, _ := m.Wait(&q)
		known.Ranks = append(known.Ranks, RankQueue{e.Rank, q, wait})
	})
	return known
}

// eachQueue calls f for every rank of a scope that the ledger knows, under the lock of
// the scope's ledger.
func (s *Service) eachQueue(sc catalog.Scope, l *ttft.Learner, f func(catalog.Entry, ttft.Queue)) {
	snap := s.catalog.Snapshot(sc)
	if snap == nil {
		return
	}
	s.ledger.Look(sc, nil, func(v *reservations.View) {
		for _, e := range snap.Ranks() {
			if v.Known(e.Slot, e.Rank) {
				f(e, selecting.QueueOf(v, e, l))
			}
		}
	})
}
