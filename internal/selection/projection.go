package selection

import (
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
)

// PotentialLoads returns what every schedulable rank would carry with the
// prompt booked on it.
func (a *API) PotentialLoads(req *ProjectRequest) ([]RankLoad, error) {
	p := newPrompt()
	defer p.recycle()
	snap, weights, err := a.project(p, req)
	if err != nil {
		return nil, err
	}
	rows := make([]RankLoad, 0, snap.NumRanks)
	a.ledger.Look(req.Scope, p.sequence, func(v *reservations.View) {
		for _, e := range snap.Ranks() {
			c := candidate(e, &p.overlap, v)
			booked := v.Load(e.Slot) // without foreign load: this is what the ledger would show
			c.Prefill, c.Active, c.Requests = booked.PrefillTokens, booked.Blocks, booked.Requests
			row := RankLoad{
				Rank:          e.Rank,
				PrefillTokens: weights.PotentialPrefill(p.size, &c),
				DecodeBlocks:  selector.PotentialDecode(p.size, &c),
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
	p := newPrompt()
	defer p.recycle()
	snap, weights, err := a.project(p, req)
	if err != nil {
		return OverlapScores{}, err
	}
	out := OverlapScores{BlockSize: snap.BlockSize, NumBlocks: p.size.Blocks, Rows: make([]OverlapRow, 0, len(snap.Known()))}
	for _, e := range snap.Known() {
		var c selector.Candidate
		c.Device, c.Host, c.Disk = p.overlap.At(e.Slot)
		if c.Device+c.Host+c.Disk == 0 && !snap.IsCandidate(e) {
			continue
		}
		out.Rows = append(out.Rows, OverlapRow{Rank: e.Rank, Device: c.Device, Host: c.Host, Disk: c.Disk, RouterCredit: weights.CreditBlocks(&c)})
	}
	return out, nil
}

// project reads a prompt and looks up its overlap, for an answer that books nothing.
func (a *API) project(p *prompt, req *ProjectRequest) (*catalog.Snapshot, selector.Weights, error) {
	req.Scope = a.catalog.Named(req.Scope)
	snap, state, err := a.scopes.Schedulable(req.Scope)
	if err != nil {
		return nil, selector.Weights{}, err
	}
	weights, err := a.config.Weights.With(req.Override)
	if err != nil {
		return nil, weights, &contract.Error{Kind: contract.BadRequest, Text: err.Error(), Err: err}
	}
	if err := p.read(&req.Prompt, snap); err != nil {
		return nil, weights, err
	}
	req.Prompt.noteKeys(state.Space)
	p.lookUp(state, false)
	return snap, weights, nil
}
