package selection

import (
	"slices"

	"github.com/select-service/select-service/internal/selection/rankstate"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// ScopeLoads is one scope of GET /loads.
type ScopeLoads struct {
	Scope            catalog.Scope
	Loads            []RankLoad // by rank
	PendingCount     int
	PendingISLTokens uint64
}

// Loads returns the load of every rank of the matching scopes; nil matches all. A scope whose
// workers have left stays in the list, without rows.
func (a *API) Loads(model, tenant *string) []ScopeLoads {
	var out []ScopeLoads
	for _, sc := range a.scopes.Known() {
		if !sc.Matches(model, tenant) {
			continue
		}
		row := ScopeLoads{Scope: sc, Loads: []RankLoad{}}
		for _, l := range a.ledger.Loads(sc) {
			row.Loads = append(row.Loads, LoadOf(l))
		}
		a.addReports(sc, row.Loads)
		if state := a.scopes.Of(sc); state != nil {
			row.PendingCount, row.PendingISLTokens = state.Rules().Queue.Pending()
		}
		out = append(out, row)
	}
	slices.SortFunc(out, func(a, b ScopeLoads) int { return a.Scope.Compare(b.Scope) })
	return out
}

// addReports adds to the loads of a scope what its engines say.
func (a *API) addReports(sc catalog.Scope, rows []RankLoad) {
	a.ledger.Look(sc, nil, func(v *reservations.View) {
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
		st, ok := a.reports.Status(sc, rows[i].Rank)
		if !ok {
			continue
		}
		rows[i].Reported = &st
		if rows[i].Foreign == nil {
			rows[i].Foreign = new(reservations.Foreign)
		}
	}
}

// Excluded lists the ranks of a worker that get no new requests because their engines give no sign
// of life, by rank.
func (a *API) Excluded(w *catalog.Worker) (list []ExcludedRank) {
	for of, x := range a.reports.Excluded(w.Scope) {
		if of.Worker != w.ID {
			continue
		}
		if v := rankstate.Judge(rankstate.Facts{Worker: w, DP: of.DP, Liveness: x.State}); v.IsCandidate() {
			list = append(list, ExcludedRank{Rank: of, Why: exclusionOf(v)})
		}
	}
	slices.SortFunc(list, func(a, b ExcludedRank) int { return a.Rank.Compare(b.Rank) })
	return list
}

// LoadOf returns the load of a rank as the ledger has it.
func LoadOf(l reservations.Load) RankLoad {
	return RankLoad{Rank: l.Rank, PrefillTokens: l.PrefillTokens, DecodeBlocks: l.Blocks, Requests: uint64(l.Requests)}
}
