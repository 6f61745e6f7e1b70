package selection

import (
	"cmp"

	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/internal/selection/rankstate"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
)

// answer fills in the answer for the chosen rank and its candidate.
func (c *choice) answer(cand *selector.Candidate, v *reservations.View, r *Selection) {
	e := c.chosen
	*r = Selection{}
	r.SelectionID, r.Scope = c.SelectionID, c.Scope
	r.Rank, r.Endpoint, r.BlockSize = e.Rank, e.Worker.Address(), c.scope.snapshot.BlockSize
	r.EffectivePrefillTokens = c.weights.EffectivePrefill(c.prompt.size, cand)
	r.PotentialDecodeBlocks = selector.PotentialDecode(c.prompt.size, cand) + c.prompt.size.Partial()
	if t := c.api.config.DecodeBusy; t != nil {
		total, known := e.Worker.KVBlocks()
		if !known {
			total = rankstate.EngineBlocks(v, e.Slot)
		}
		if known || total > 0 {
			blocks := r.PotentialDecodeBlocks - cand.Active + max(cand.Active, v.Greater(e.Slot).Blocks)
			r.DecodeBusy = new(float64(blocks) > *t*float64(total))
		}
	}
	if c.Advisory {
		r.WorkerLoad = workerLoad(e, cand, c.api.config.PrefillBusy, v)
	}
	var sum selector.Summary
	ranks := c.scope.snapshot.RanksOf(e.Rank.Worker)
	r.Overlap.DP = make([]RankTokens, 0, len(ranks))
	for _, rank := range ranks {
		var of selector.Candidate
		of.Device, of.Host, of.Disk = c.prompt.overlap.At(rank.Slot)
		sum.Add(c.prompt.size, &of)
		r.Overlap.DP = append(r.Overlap.DP, RankTokens{DP: rank.DP, Tokens: selector.DeviceTokens(c.prompt.size, &of)})
	}
	r.Overlap.LongestMatched, r.Overlap.GPU, r.Overlap.CPU, r.Overlap.Disk = sum.Longest, sum.GPU, sum.CPU, sum.Disk
}

// workerLoad returns the current load of a chosen rank. A rank whose prefills exceed the fraction
// busy (nil: none) of its batch, by its engine's word or by ours, is busy.
func workerLoad(e catalog.Entry, cand *selector.Candidate, busy *float64, v *reservations.View) *WorkerLoad {
	load := &WorkerLoad{
		ActivePrefillTokens:  cand.Prefill,
		PrefillTokenCapacity: cmp.Or(batchLimit(e.Worker), admission.DefaultMaxBatchedTokens),
		TotalKVBlocks:        e.Worker.TotalKVBlocks,
	}
	if busy != nil {
		load.PrefillBusy = new(float64(max(cand.Prefill, v.Greater(e.Slot).PrefillTokens)) > *busy*float64(load.PrefillTokenCapacity))
	}
	return load
}
