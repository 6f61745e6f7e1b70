package service

import (
	"slices"

	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
)

// Loads returns what every rank of the matching scopes carries; nil matches
// all. A scope whose workers have gone stays in the list, without rows.
func (s *Service) Loads(model, tenant *string) []ScopeLoads {
	var out []ScopeLoads
	for _, sc := range s.scopes.Known() {
		if !sc.Matches(model, tenant) {
			continue
		}
		row := ScopeLoads{Scope: sc, Loads: []RankLoad{}}
		for _, l := range s.ledger.Loads(sc) {
			row.Loads = append(row.Loads, rankLoad(l))
		}
		if p := s.scopes.Of(sc); p != nil {
			row.PendingCount, row.PendingISLTokens = p.Queue.Pending()
		}
		out = append(out, row)
	}
	slices.SortFunc(out, func(a, b ScopeLoads) int { return a.Scope.Compare(b.Scope) })
	return out
}

// PotentialLoads returns what every schedulable rank would carry with the
// prompt booked on it.
func (s *Service) PotentialLoads(req *ProjectRequest) ([]RankLoad, error) {
	q := newQuery()
	defer q.recycle()
	snap, weights, err := s.project(q, req)
	if err != nil {
		return nil, err
	}
	rows := make([]RankLoad, 0, len(snap.Ranks))
	s.ledger.Look(req.Scope, q.sequence, func(v *reservations.View) {
		for _, e := range snap.Ranks {
			c := candidate(e, &q.overlap, v)
			row := RankLoad{
				Rank:          e.Rank,
				PrefillTokens: weights.PotentialPrefill(q.size, &c),
				DecodeBlocks:  selector.PotentialDecode(q.size, &c),
			}
			if c.Known {
				row.Requests = uint64(v.Requests[e.Slot])
			}
			rows = append(rows, row)
		}
	})
	return rows, nil
}

// OverlapScores returns how much of the prompt each rank holds, tier by tier.
func (s *Service) OverlapScores(req *ProjectRequest) (OverlapScores, error) {
	q := newQuery()
	defer q.recycle()
	snap, weights, err := s.project(q, req)
	if err != nil {
		return OverlapScores{}, err
	}
	out := OverlapScores{BlockSize: snap.BlockSize, NumBlocks: q.size.Blocks, Rows: make([]OverlapRow, 0, len(snap.Known))}
	for _, e := range snap.Known {
		var c selector.Candidate
		c.Device, c.Host, c.Disk = q.overlap.At(e.Slot)
		if c.Device+c.Host+c.Disk == 0 && !snap.IsCandidate(e) {
			continue
		}
		out.Rows = append(out.Rows, OverlapRow{Rank: e.Rank, Device: c.Device, Host: c.Host, Disk: c.Disk, RouterCredit: weights.CreditBlocks(&c)})
	}
	return out, nil
}

// project reads a prompt that is not going to be placed.
func (s *Service) project(q *query, req *ProjectRequest) (*catalog.Snapshot, selector.Weights, error) {
	snap, state, err := s.scopes.Schedulable(req.Scope)
	if err != nil {
		return nil, selector.Weights{}, err
	}
	weights, err := s.config.Weights.With(req.Override)
	if err != nil {
		return nil, weights, &contract.Error{Kind: contract.BadRequest, Text: err.Error(), Err: err}
	}
	if err := q.read(&req.Prompt, snap); err != nil {
		return nil, weights, err
	}
	state.Space.Overlap(q.local, &q.overlap)
	return snap, weights, nil
}
