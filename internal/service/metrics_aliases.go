package service

import (
	"github.com/select-service/select-service/internal/metrics"
	"github.com/select-service/select-service/pkg/kvevents"
)

// indexerCounts are numbers of this service that dynamo.indexer has, too.
type indexerCounts struct {
	models, workers int
	streams         *streamStates
	events          *kvevents.Tally
}

// show sets what is shown under the names of dynamo.indexer; what it means here
// stands beside those names.
func (c *indexerCounts) show(m *metrics.Sources) {
	m.IndexerModels, m.IndexerWorkers = metrics.Value(c.models), metrics.Value(c.workers)
	all := 0
	for _, n := range c.streams {
		all += n
	}
	pending := c.streams[kvevents.Connecting]
	m.IndexerListeners = metrics.Samples{
		sample(all-pending, "active"), sample(0, "failed"), sample(0, "paused"), sample(pending, "pending"),
	}
	indexerEvents(m, c.events)
}

// indexerStatuses are those of dynamo.indexer 1.6.1 for an event.
var indexerStatuses = [...]string{
	"ok", "parent_block_not_found", "block_not_found", "invalid_block", "capacity_exhausted",
	"unsupported_residency_domain", "allocation_failed", "indexer_invariant_violation", "ownership_degree_overflow",
}

// indexerStatus finds the status that comes closest to a reason. Events that are
// not meant for the index have none.
func indexerStatus(r kvevents.Reason) (status string, counts bool) {
	switch {
	case r == kvevents.Applied:
		return "ok", true
	case r.Ordinary(), r == kvevents.UnknownRank, r == kvevents.EnvelopeEvent:
		return "", false
	case r == kvevents.UnknownMedium:
		return "unsupported_residency_domain", true
	case r == kvevents.TooMany, r == kvevents.TooManyMedia:
		return "capacity_exhausted", true
	}
	return "invalid_block", true
}

// indexerEvents sets the events as dynamo.indexer counts them.
func indexerEvents(m *metrics.Sources, tally *kvevents.Tally) {
	for _, kind := range []kvevents.Kind{kvevents.Stored, kvevents.Removed, kvevents.Cleared} {
		byStatus := make(map[string]uint64)
		for tier := range tally.Events[kind] {
			for reason, n := range tally.Events[kind][tier] {
				if status, counts := indexerStatus(kvevents.Reason(reason)); counts {
					byStatus[status] += n
				}
			}
		}
		for _, status := range indexerStatuses {
			m.IndexerEvents = append(m.IndexerEvents, sample(byStatus[status], kind.String(), status))
		}
	}
	var again uint64
	for tier := range tally.Blocks {
		again += tally.Blocks[tier][kvevents.BlocksKnown]
	}
	m.IndexerWarnings = metrics.Samples{sample(again, "duplicate_store")}
}
