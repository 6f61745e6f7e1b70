package telemetry

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/internal/selection/rankstate"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/internal/telemetry/metrics"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

var (
	rankFamilies metrics.Families
	rankLabels   = []string{"model_name", "tenant_id", "worker_id", "dp_rank"}
	// frontendLabels are those of Dynamo's frontend.
	frontendLabels = []string{"worker_id", "dp_rank", "worker_type"}

	rankActiveBlocks   = rankFamilies.Gauge("rank_active_kv_blocks", "KV blocks of the reservations on a rank.", rankLabels...)
	rankPrefillTokens  = rankFamilies.Gauge("rank_active_prefill_tokens", "Prompt tokens that a rank still has to compute for its reservations.", rankLabels...)
	rankActiveRequests = rankFamilies.Gauge("rank_active_requests", "Reservations on a rank.", rankLabels...)
	rankUsedBlocks     = rankFamilies.Gauge("rank_used_kv_blocks", "KV blocks on a rank's device that the index knows of; cached ones that nothing uses count.", rankLabels...)
	rankTotalBlocks    = rankFamilies.Gauge("rank_total_kv_blocks", "KV blocks that a rank's device has room for, where the worker's record says.", rankLabels...)
	rankBatchedTokens  = rankFamilies.Gauge("rank_max_num_batched_tokens", "Prompt tokens that a rank computes in one step, where the worker's record says.", rankLabels...)
	ranksUnlisted      = rankFamilies.Gauge("ranks_unlisted", "Ranks that are too many to have series of their own.")
	workerOverloaded   = rankFamilies.Gauge("worker_overloaded", "1 if all ranks of a worker are above a busy threshold, else 0; only for models that have a threshold.", rankLabels[:3]...)
	frontendBlocks     = rankFamilies.Gauge("dynamo_frontend_worker_active_decode_blocks", "The same as select_service_rank_active_kv_blocks, without the slot tracker's workers.", frontendLabels...)
	frontendPrefill    = rankFamilies.Gauge("dynamo_frontend_worker_active_prefill_tokens", "The same as select_service_rank_active_prefill_tokens, without the slot tracker's workers.", frontendLabels...)
)

// maxListedRanks bounds the ranks, and the workers, that have series of their
// own.
const maxListedRanks = 4096

// Ranks collects the load of the ranks, and which workers are overloaded. A series ends with
// its worker.
type Ranks struct {
	Catalog    *catalog.Catalog
	Scopes     *scopes.Registry
	Ledger     *reservations.Ledger
	Thresholds *overload.Table
}

// Describe implements prometheus.Collector.
func (Ranks) Describe(ch chan<- *prometheus.Desc) { rankFamilies.Describe(ch) }

// Collect implements prometheus.Collector. It goes through the ranks in order of
// scope, worker and rank, and reads the ledger and the index once for each scope.
func (ranks Ranks) Collect(ch chan<- prometheus.Metric) {
	r := rankList{Ranks: ranks}
	for _, snap := range ranks.Catalog.Snapshots() {
		r.read(snap)
		r.send(ch)
	}
	metrics.Send(ch, ranksUnlisted, r.unlisted)
}

// rankList reads the ranks of one scope after the other.
type rankList struct {
	Ranks
	listed, listedWorkers, unlisted int // counts over all scopes so far

	// Of the current scope:

	snap    *catalog.Snapshot
	loads   []rankLoad
	workers []workerLoad
	used    []int // blocks on the device by slot
}

type rankLoad struct {
	catalog.Entry
	blocks, prefill, requests uint64
}

type workerLoad struct {
	id         uint64
	overloaded bool
}

// read goes to the next scope.
func (r *rankList) read(snap *catalog.Snapshot) {
	r.snap, r.loads, r.workers, r.used = snap, r.loads[:0], r.workers[:0], r.used[:0]
	if state := r.Scopes.Of(snap.Scope); state != nil {
		r.used = state.Space.DeviceBlocks(r.used)
	}
	for _, e := range snap.Known() {
		switch {
		case !e.CarriesLoad:
		case r.listed == maxListedRanks:
			r.unlisted++
		default:
			r.listed++
			r.loads = append(r.loads, rankLoad{Entry: e})
		}
	}
	limits := r.Thresholds.Of(snap.Scope.Model)
	r.Ledger.Look(snap.Scope, nil, func(v *reservations.View) {
		r.readLoads(v)
		if limits.Any() {
			r.readOverload(limits, v)
		}
	})
}

// readLoads copies the loads. It is called under the ledger's lock.
func (r *rankList) readLoads(v *reservations.View) {
	for i := range r.loads {
		l := &r.loads[i]
		if v.Known(l.Slot, l.Rank) {
			carried := v.Load(l.Slot)
			l.blocks, l.prefill, l.requests = carried.Blocks, carried.PrefillTokens, uint64(carried.Requests)
		}
	}
}

// readOverload records which workers are overloaded. It is called under the ledger's lock.
func (r *rankList) readOverload(limits *overload.Thresholds, v *reservations.View) {
	for worker, overloaded := range rankstate.OverloadedWorkers(limits, r.snap.Ranks(), v) {
		if r.listedWorkers == maxListedRanks {
			return
		}
		r.listedWorkers++
		r.workers = append(r.workers, workerLoad{worker.ID, overloaded})
	}
}

// send sends the series of the current scope.
func (r *rankList) send(ch chan<- prometheus.Metric) {
	model, tenant := r.snap.Scope.Model, r.snap.Scope.Tenant
	for i := range r.loads {
		l := &r.loads[i]
		worker, dp := strconv.FormatUint(l.Rank.Worker, 10), strconv.FormatUint(uint64(l.DP), 10)
		labels := []string{model, tenant, worker, dp}
		used := 0
		if int(l.Slot) < len(r.used) {
			used = r.used[l.Slot]
		}
		metrics.Send(ch, rankActiveBlocks, l.blocks, labels...)
		metrics.Send(ch, rankPrefillTokens, l.prefill, labels...)
		metrics.Send(ch, rankActiveRequests, l.requests, labels...)
		metrics.Send(ch, rankUsedBlocks, used, labels...)
		limit := rankstate.CapacityOf(l.Worker)
		if limit.KVBlocks > 0 {
			metrics.Send(ch, rankTotalBlocks, limit.KVBlocks, labels...)
		}
		if limit.BatchedTokens > 0 {
			metrics.Send(ch, rankBatchedTokens, limit.BatchedTokens, labels...)
		}
		if !l.Worker.Tracked {
			metrics.Send(ch, frontendBlocks, l.blocks, worker, dp, "select")
			metrics.Send(ch, frontendPrefill, l.prefill, worker, dp, "select")
		}
	}
	for _, w := range r.workers {
		metrics.Send(ch, workerOverloaded, metrics.OneIf(w.overloaded), model, tenant, strconv.FormatUint(w.id, 10))
	}
}
