package node

import (
	"github.com/select-service/select-service/internal/engines/reports"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/internal/selection/rankstate"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/internal/telemetry"
	"github.com/select-service/select-service/internal/telemetry/metrics"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector/ttft"
)

// saturations says how full scopes are.
type saturations struct {
	core
	thresholds *overload.Table
	reports    *reports.Reports
}

// all yields how full every scope is that has, or had, workers, or that gateways know by its name.
func (s *saturations) all(yield func(telemetry.Saturation) bool) {
	known := s.scopes.Known()
	for _, sc := range s.scopes.Demanded() {
		if !s.scopes.Had(sc) {
			known = append(known, sc)
		}
	}
	for _, sc := range known {
		x, state := telemetry.Saturation{Scope: sc}, s.scopes.Of(sc)
		partly := s.scopes.PartlyUnserved(sc)
		requests := s.scopes.Unserved(sc) + partly
		if state == nil && requests == 0 {
			continue // the series end with the last worker
		}
		refused := requests
		if state != nil {
			n, r := state.Traffic.Recent()
			requests, refused = requests+n, refused+r
		}
		if requests > 0 {
			x.Refused = float64(refused) / float64(requests)
		}
		if snap := s.catalog.Snapshot(sc); snap != nil && snap.NumRanks > 0 && state != nil {
			x.Roles = s.fullness(snap, state)
			for i := range x.Roles {
				if partly > 0 { // what the requests need has no worker
					x.Roles[i].Ratio = max(x.Roles[i].Ratio, 1)
				}
			}
		} else {
			x.Roles = []telemetry.RoleSaturation{{Ratio: float64(metrics.OneIf(requests > 0))}}
		}
		if !yield(x) {
			return
		}
	}
}

// fullness returns how full the ranks of each role are: the mean saturation of those of which something
// is known, and the predicted wait, in seconds, on the rank where it is shortest, of those that give signs
// of life, if any do. Ranks of different roles cannot stand in for each other.
func (s *saturations) fullness(snap *catalog.Snapshot, state *scopes.State) []telemetry.RoleSaturation {
	var roles [len(roleNames)]roleFullness
	hasRoles := false
	for _, w := range snap.Workers {
		hasRoles = hasRoles || w.Role != nil
	}
	limits := s.thresholds.Of(snap.Scope.Model)
	excluded := s.reports.Excluded(snap.Scope)
	s.ledger.Look(snap.Scope, nil, func(v *reservations.View) {
		for _, e := range snap.Ranks() {
			if v.Known(e.Slot, e.Rank) && !e.Worker.OnlyEncodes() {
				roles[roleOf(e.Worker)].add(v, e, limits, waitOf(v, e, state), excluded[e.Rank] != nil)
			}
		}
	})
	if !hasRoles {
		return []telemetry.RoleSaturation{roles[bothPhases].of("")}
	}
	var all []telemetry.RoleSaturation
	for i := range roles {
		if roles[i].ranks > 0 {
			all = append(all, roles[i].of(roleNames[i]))
		}
	}
	return all
}

// Indexes of roleNames.
const (
	onlyPrefill = iota
	onlyDecode
	bothPhases
)

var roleNames = [...]string{onlyPrefill: catalog.RolePrefill, onlyDecode: catalog.RoleDecode, bothPhases: telemetry.RoleBoth}

func roleOf(w *catalog.Worker) int {
	switch {
	case w.Role == nil:
		return bothPhases
	case *w.Role == catalog.RolePrefill:
		return onlyPrefill
	}
	return onlyDecode
}

// roleFullness sums up the ranks of a role.
type roleFullness struct {
	ranks, living, known int // living: of ranks, those that give signs of life; known: those with a saturation
	sum                  float64
	wait, ofExcluded     float64 // the shortest of the living, and of the others
}

func (f *roleFullness) add(v *reservations.View, e catalog.Entry, limits *overload.Thresholds, wait float64, excluded bool) {
	if of, ok := rankSaturation(v, e, limits); ok {
		f.known++
		f.sum += of
	}
	switch {
	case excluded && f.ranks == f.living:
		f.ofExcluded = wait
	case excluded:
		f.ofExcluded = min(f.ofExcluded, wait)
	case f.living == 0:
		f.wait, f.living = wait, 1
	default:
		f.wait, f.living = min(f.wait, wait), f.living+1
	}
	f.ranks++
}

func (f *roleFullness) of(role string) telemetry.RoleSaturation {
	x := telemetry.RoleSaturation{Role: role, Wait: f.wait}
	if f.known > 0 {
		x.Ratio = f.sum / float64(f.known)
	}
	if f.living == 0 {
		x.Wait = f.ofExcluded
	}
	return x
}

// rankSaturation returns how full a rank is, as the greatest of its shares in use: of its blocks,
// of the requests that it runs at a time, and of the thresholds. known is false if none of these
// limits is known.
func rankSaturation(v *reservations.View, e catalog.Entry, limits *overload.Thresholds) (most float64, known bool) {
	share := func(used, of float64) {
		if of > 0 {
			most, known = max(most, used/of), true
		}
	}
	load, capacity := v.Greater(e.Slot), rankstate.CapacityOf(e.Worker)
	if said := v.Engine(e.Slot); said != nil {
		if capacity.KVBlocks == 0 {
			capacity.KVBlocks = said.TotalBlocks
		}
		share(float64(said.Reported.Requests), float64(said.MaxRequests))
	}
	share(float64(load.Blocks), float64(capacity.KVBlocks))
	if t := limits.DecodeBlocks; t != nil {
		share(float64(load.Blocks), *t*float64(capacity.KVBlocks))
	}
	if t := limits.PrefillTokens; t != nil {
		share(float64(load.PrefillTokens), float64(*t))
	}
	if t := limits.PrefillFraction; t != nil {
		share(float64(load.PrefillTokens), *t*float64(capacity.BatchedTokens))
	}
	return most, known
}

// waitOf returns the predicted wait of a new request on a rank, in seconds.
func waitOf(v *reservations.View, e catalog.Entry, state *scopes.State) float64 {
	if l := state.Rules().Learner(); l != nil {
		q := selection.QueueOf(v, e, l)
		wait, _ := l.Model().Wait(&q)
		return wait
	}
	tokens := float64(v.Total(e.Slot).PrefillTokens)
	if tokens == 0 {
		return 0
	}
	p := ttft.Default()
	return p.Prefill(tokens, tokens)
}
