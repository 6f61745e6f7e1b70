package node

import (
	"math"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/internal/telemetry"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector/ttft"
)

// saturation yields how full every scope is that has, or had, workers, or that gateways know by its name.
func (s *Service) saturation(yield func(telemetry.Saturation) bool) {
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
			x.Ratio, x.Wait = s.fullness(snap, state)
			if partly > 0 { // what the requests need has no worker
				x.Ratio = max(x.Ratio, 1)
			}
		} else if requests > 0 {
			x.Ratio = 1
		}
		if !yield(x) {
			return
		}
	}
}

// fullness returns the mean saturation of the ranks of which something is known, and the predicted
// wait, in seconds, on the rank where it is shortest, of those that give signs of life, if any do.
func (s *Service) fullness(snap *catalog.Snapshot, state *scopes.State) (ratio, wait float64) {
	limits := s.Thresholds().Of(snap.Scope.Model)
	known, sum := 0, 0.0
	excluded := s.reports.Excluded(snap.Scope)
	wait = math.Inf(1)
	ofExcluded := math.Inf(1)
	s.ledger.Look(snap.Scope, nil, func(v *reservations.View) {
		for _, e := range snap.Ranks() {
			if !v.Known(e.Slot, e.Rank) {
				continue
			}
			if of, ok := rankSaturation(v, e, limits); ok {
				known++
				sum += of
			}
			if excluded[e.Rank] != nil {
				ofExcluded = min(ofExcluded, waitOf(v, e, state))
			} else {
				wait = min(wait, waitOf(v, e, state))
			}
		}
	})
	if known > 0 {
		ratio = sum / float64(known)
	}
	if math.IsInf(wait, 1) {
		wait = ofExcluded
	}
	if math.IsInf(wait, 1) {
		wait = 0
	}
	return ratio, wait
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
	load, capacity := v.Greater(e.Slot), selection.CapacityOf(e.Worker)
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
