package rankstate

import (
	"iter"

	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// OverloadedWorkers yields the workers of a sorted list of ranks, and whether each is
// overloaded. The caller holds the ledger's lock (it has a View).
func OverloadedWorkers(limits *overload.Thresholds, ranks []catalog.Entry, v *reservations.View) iter.Seq2[*catalog.Worker, bool] {
	return func(yield func(*catalog.Worker, bool) bool) {
		for of := range ByWorker(ranks) {
			if !yield(of[0].Worker, Exceeded(limits, of, v) != 0) {
				return
			}
		}
	}
}

// Exceeded returns the limits that the ranks of a worker exceed, by the greater of what is booked
// and what their engines have reported. It returns 0, not overloaded, if any of them exceeds none.
// A rank unknown to the ledger has no load.
func Exceeded(limits *overload.Thresholds, ranks []catalog.Entry, v *reservations.View) (causes overload.Causes) {
	of := CapacityOf(ranks[0].Worker)
	for _, e := range ranks {
		capacity := of
		var load overload.Load
		if v.Known(e.Slot, e.Rank) {
			carried := v.Greater(e.Slot)
			load = overload.Load{Blocks: carried.Blocks, Prefill: carried.PrefillTokens}
			if capacity.KVBlocks == 0 {
				capacity.KVBlocks = EngineBlocks(v, e.Slot)
			}
		}
		why := limits.Exceeded(load, capacity)
		if why == 0 {
			return 0
		}
		causes |= why
	}
	return causes
}

// CapacityOf returns the capacity of each rank, from the worker's record, else from its engine's
// description.
func CapacityOf(w *catalog.Worker) (c overload.Capacity) {
	c.BatchedTokens, _ = w.BatchTokens()
	c.KVBlocks, _ = w.KVBlocks()
	return c
}

// EngineBlocks returns the blocks that a rank's engine reports to have room for, 0 if it does not.
func EngineBlocks(v *reservations.View, slot uint32) uint64 {
	if of := v.Engine(slot); of != nil {
		return of.TotalBlocks
	}
	return 0
}

// ByWorker splits a sorted list of ranks by worker.
func ByWorker(ranks []catalog.Entry) iter.Seq[[]catalog.Entry] {
	return func(yield func([]catalog.Entry) bool) {
		for len(ranks) > 0 {
			n := 1
			for n < len(ranks) && ranks[n].Worker == ranks[0].Worker {
				n++
			}
			if !yield(ranks[:n]) {
				return
			}
			ranks = ranks[n:]
		}
	}
}
