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

// PotentialLoads returns what every schedulable rank would carry with the
// prompt booked on it.
func (a *API) PotentialLoads(req *ProjectRequest) ([]RankLoad, error) {
	q := newQuery()
	defer q.recycle()
	snap, weights, err := a.project(q, req)
	if err != nil {
		return nil, err
	}
	rows := make([]RankLoad, 0, snap.NumRanks)
	a.ledger.Look(req.Scope, q.sequence, func(v *reservations.View) {
		for _, e := range snap.Ranks() {
			c := candidate(e, &q.overlap, v)
			row := RankLoad{
				Rank:          e.Rank,
				PrefillTokens: weights.PotentialPrefill(q.size, &c),
				DecodeBlocks:  selector.PotentialDecode(q.size, &c),
			}
			if c.Known {
				row.Requests = uint64(c.Requests)
			}
			rows = append(rows, row)
		}
	})
	return rows, nil
}

// OverlapScores returns how much of the prompt each rank holds, tier by tier.
func (a *API) OverlapScores(req *ProjectRequest) (OverlapScores, error) {
	q := newQuery()
	defer q.recycle()
	snap, weights, err := a.project(q, req)
	if err != nil {
		return OverlapScores{}, err
	}
	out := OverlapScores{BlockSize: snap.BlockSize, NumBlocks: q.size.Blocks, Rows: make([]OverlapRow, 0, len(snap.Known()))}
	for _, e := range snap.Known() {
		var c selector.Candidate
		c.Device, c.Host, c.Disk = q.overlap.At(e.Slot)
		if c.Device+c.Host+c.Disk == 0 && !snap.IsCandidate(e) {
			continue
		}
		out.Rows = append(out.Rows, OverlapRow{Rank: e.Rank, Device: c.Device, Host: c.Host, Disk: c.Disk, RouterCredit: weights.CreditBlocks(&c)})
	}
	return out, nil
}

// project reads a prompt and looks up its overlap, for an answer that books nothing.
func (a *API) project(q *query, req *ProjectRequest) (*catalog.Snapshot, selector.Weights, error) {
	snap, state, err := a.scopes.Schedulable(req.Scope)
	if err != nil {
		return nil, selector.Weights{}, err
	}
	weights, err := a.config.Weights.With(req.Override)
	if err != nil {
		return nil, weights, &contract.Error{Kind: contract.BadRequest, Text: err.Error(), Err: err}
	}
	if err := q.read(&req.Prompt, snap); err != nil {
		return nil, weights, err
	}
	req.Prompt.noteKeys(state.Space)
	state.Overlap(q.local, &q.overlap, &q.predicted)
	return snap, weights, nil
}

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
