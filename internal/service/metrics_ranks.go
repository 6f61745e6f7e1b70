package service

import (
	"strconv"

	"github.com/select-service/select-service/internal/metrics"
	"github.com/select-service/select-service/internal/scopes"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// maxListedRanks bounds the ranks, and the workers, that have series of their
// own.
const maxListedRanks = 4096

// rankMetrics sets what the ranks carry, in order of scope, worker and rank, and
// which workers are overloaded. It reads the ledger and the index once for each
// scope.
func (s *Service) rankMetrics(m *metrics.Sources, pools map[catalog.Scope]*scopes.State) {
	ranks := rankSeries{m: m}
	var held []int
	for _, snap := range s.catalog.Snapshots() {
		if p := pools[snap.Scope]; p != nil {
			held = p.Space.DeviceBlocks(held[:0])
		} else {
			held = held[:0]
		}
		limits := s.busy.Of(snap.Scope.Model)
		ranks.begin(snap)
		s.ledger.Look(snap.Scope, nil, func(v *reservations.View) {
			ranks.read(v)
			if limits.Any() {
				ranks.judge(func(of []catalog.Entry) bool { return overloadOf(limits, of, v) != 0 })
			}
		})
		ranks.show(held)
	}
	m.RanksUnlisted = metrics.Value(ranks.unlisted)
}

// rankSeries makes the series of ranks, one scope after the other.
type rankSeries struct {
	m                               *metrics.Sources
	listed, listedWorkers, unlisted int

	// Of the present scope:

	snap   *catalog.Snapshot
	ranks  []carried
	judged []judgedWorker
}

// carried is what a rank carries.
type carried struct {
	catalog.Entry
	blocks, prefill, requests uint64
}

type judgedWorker struct {
	id         uint64
	overloaded bool
}

// begin goes to the next scope and lists its ranks.
func (r *rankSeries) begin(snap *catalog.Snapshot) {
	r.snap, r.ranks, r.judged = snap, r.ranks[:0], r.judged[:0]
	for _, e := range snap.Known {
		switch {
		case !e.CarriesLoad:
		case r.listed == maxListedRanks:
			r.unlisted++
		default:
			r.listed++
			r.ranks = append(r.ranks, carried{Entry: e})
		}
	}
}

// read copies the loads. It is called under the ledger's lock.
func (r *rankSeries) read(v *reservations.View) {
	for i := range r.ranks {
		c := &r.ranks[i]
		if v.Known(c.Slot, c.Rank) {
			c.blocks, c.prefill, c.requests = v.Blocks[c.Slot], v.Prefill[c.Slot], uint64(v.Requests[c.Slot])
		}
	}
}

// judge notes which workers are overloaded. It is called under the ledger's
// lock.
func (r *rankSeries) judge(overloaded func([]catalog.Entry) bool) {
	for ranks := range byWorker(r.snap.Ranks) {
		if r.listedWorkers == maxListedRanks {
			return
		}
		r.listedWorkers++
		r.judged = append(r.judged, judgedWorker{ranks[0].Rank.Worker, overloaded(ranks)})
	}
}

// show adds the series of the present scope. held has the blocks on the device
// by slot.
func (r *rankSeries) show(held []int) {
	model, tenant := r.snap.Scope.Model, r.snap.Scope.Tenant
	for i := range r.ranks {
		c := &r.ranks[i]
		worker, dp := strconv.FormatUint(c.Rank.Worker, 10), strconv.FormatUint(uint64(c.DP), 10)
		labels := []string{model, tenant, worker, dp}
		used := 0
		if int(c.Slot) < len(held) {
			used = held[c.Slot]
		}
		put(&r.m.RankActiveBlocks, labels, c.blocks)
		put(&r.m.RankPrefillTokens, labels, c.prefill)
		put(&r.m.RankActiveRequests, labels, c.requests)
		put(&r.m.RankUsedBlocks, labels, uint64(used))
		limit := capacityOf(c.Worker)
		if limit.KVBlocks > 0 {
			put(&r.m.RankTotalBlocks, labels, limit.KVBlocks)
		}
		if limit.BatchedTokens > 0 {
			put(&r.m.RankBatchedTokens, labels, limit.BatchedTokens)
		}
		if !c.Worker.Tracked {
			labels := []string{worker, dp, "select"}
			put(&r.m.FrontendBlocks, labels, c.blocks)
			put(&r.m.FrontendPrefill, labels, c.prefill)
		}
	}
	for _, w := range r.judged {
		r.m.WorkerOverloaded = append(r.m.WorkerOverloaded, sample(flag(w.overloaded), model, tenant, strconv.FormatUint(w.id, 10)))
	}
}

func put(to *metrics.Samples, labels []string, n uint64) {
	*to = append(*to, metrics.Sample{Labels: labels, Value: float64(n)})
}
