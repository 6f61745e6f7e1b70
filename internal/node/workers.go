package node

import (
	"slices"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// EventsBlockSize returns the block size of the KV events of a worker's engine if it is another one
// than the worker's, so that none of them can be used; else 0.
func (s *Service) EventsBlockSize(w *catalog.Worker) uint32 {
	for i := range w.RankCount() {
		if st, ok := s.streams.Stream(catalog.Rank{Worker: w.ID, DP: w.FirstRank() + i}); ok && st.OtherBlockSize > 0 {
			return st.OtherBlockSize
		}
	}
	return 0
}

// Excluded lists the ranks of a worker that get no new requests because their engines give no sign
// of life, by rank.
func (s *Service) Excluded(w *catalog.Worker) (list []selection.ExcludedRank) {
	for of, x := range s.reports.Excluded(w.Scope) {
		if of.Worker == w.ID {
			list = append(list, selection.ExcludedRank{Rank: of, Why: selection.Exclusion(x.State.String())})
		}
	}
	slices.SortFunc(list, func(a, b selection.ExcludedRank) int { return a.Rank.Compare(b.Rank) })
	return list
}

// Ready reports whether requests can be served: at least one worker of any scope is schedulable,
// no recovery or snapshot on disk is awaited, and the service is not shutting down.
func (s *Service) Ready() (ready bool, schedulable int, workers []*catalog.Worker) {
	settled, schedulable := s.settled()
	return settled && schedulable > 0, schedulable, s.catalog.List(nil, nil)
}

// Settled is Ready without the condition on workers: there may be none yet, and requests are
// then refused for that reason.
func (s *Service) Settled() bool {
	settled, _ := s.settled()
	return settled
}

func (s *Service) settled() (settled bool, schedulable int) {
	schedulable = s.catalog.CountSchedulable()
	awaited := s.store.Awaited() || s.recovery.awaited(schedulable) || s.state.Awaited()
	return !s.scopes.Closing() && !awaited, schedulable
}

// ScopeLoads is one scope of GET /loads.
type ScopeLoads struct {
	Scope            catalog.Scope
	Loads            []selection.RankLoad // by rank
	PendingCount     int
	PendingISLTokens uint64
}

// Loads returns the load of every rank of the matching scopes; nil matches all. A scope whose
// workers have left stays in the list, without rows.
func (s *Service) Loads(model, tenant *string) []ScopeLoads {
	var out []ScopeLoads
	for _, sc := range s.scopes.Known() {
		if !sc.Matches(model, tenant) {
			continue
		}
		row := ScopeLoads{Scope: sc, Loads: []selection.RankLoad{}}
		for _, l := range s.ledger.Loads(sc) {
			row.Loads = append(row.Loads, rankLoad(l))
		}
		s.addReports(sc, row.Loads)
		if state := s.scopes.Of(sc); state != nil {
			row.PendingCount, row.PendingISLTokens = state.Rules().Queue.Pending()
		}
		out = append(out, row)
	}
	slices.SortFunc(out, func(a, b ScopeLoads) int { return a.Scope.Compare(b.Scope) })
	return out
}

// addReports adds to the loads of a scope what its engines say.
func (s *Service) addReports(sc catalog.Scope, rows []selection.RankLoad) {
	s.ledger.Look(sc, nil, func(v *reservations.View) {
		for i := range rows {
			slot, ok := v.Slot(rows[i].Rank)
			if !ok || v.Engine(slot) == nil {
				continue
			}
			if f := v.Engine(slot).Foreign; f != (reservations.Foreign{}) {
				rows[i].Foreign = &f
			}
		}
	})
	for i := range rows {
		st, ok := s.reports.Status(sc, rows[i].Rank)
		if !ok {
			continue
		}
		rows[i].Reported = &st
		if rows[i].Foreign == nil {
			rows[i].Foreign = new(reservations.Foreign)
		}
	}
}
