package selecting

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
)

// LeastLoaded returns up to n ranks of different workers, the least loaded first, whatever the
// scope's policy: for requests whose prompt is unknown. Nothing is booked or counted, and nobody
// waits. The load is prefill tokens and active blocks, in tokens; of equal ones it takes those
// with fewer requests, then any. Without an eligible rank the error has selector.ErrNoEndpoints.
func (a *API) LeastLoaded(sc catalog.Scope, eligible Eligible, n int) ([]catalog.Rank, error) {
	snap, _, err := a.scopes.Schedulable(sc)
	if err != nil {
		return nil, err
	}
	type loaded struct {
		rank             catalog.Rank
		tokens, requests uint64
	}
	var all []loaded
	may := eligible.of(snap)
	a.ledger.Look(sc, nil, func(v *reservations.View) {
		for _, e := range snap.Ranks() {
			switch {
			case may != nil && !may(e):
			case !v.Known(e.Slot, e.Rank): // registered just now
				all = append(all, loaded{rank: e.Rank})
			default:
				l := v.Load(e.Slot)
				all = append(all, loaded{e.Rank, l.PrefillTokens + l.Blocks*uint64(snap.BlockSize), uint64(l.Requests)})
			}
		}
	})
	var least []catalog.Rank
	for range n {
		var best loaded
		ties := 0
		for _, l := range all {
			order := cmp.Or(cmp.Compare(l.tokens, best.tokens), cmp.Compare(l.requests, best.requests))
			switch {
			case slices.ContainsFunc(least, func(r catalog.Rank) bool { return r.Worker == l.rank.Worker }):
			case ties == 0 || order < 0:
				best, ties = l, 1
			case order == 0:
				if ties++; rand.IntN(ties) == 0 {
					best = l
				}
			}
		}
		if ties == 0 {
			break
		}
		least = append(least, best.rank)
	}
	if least == nil {
		return nil, &contract.Error{Kind: contract.Unavailable, Text: selector.ErrNoEndpoints.Error(), Err: selector.ErrNoEndpoints}
	}
	return least, nil
}
