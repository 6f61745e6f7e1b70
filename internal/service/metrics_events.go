package service

import (
	"github.com/select-service/select-service/internal/metrics"
	"github.com/select-service/select-service/pkg/kvevents"
)

// eventMetrics sets what is known of event streams: selection's and Conductor's
// together.
func (s *Service) eventMetrics(m *metrics.Sources) {
	s.messageMetrics(m)
	s.streamMetrics(m)
	m.KVEventLag = []metrics.Distribution{{Histogram: s.lag}}
	tally := s.tally()
	m.KVEvents, m.KVEventBlocks = eventSamples(&tally), blockSamples(&tally)
	indexerEvents(m, &tally)
}

// tally is what the events of all streams came to.
func (s *Service) tally() kvevents.Tally {
	sum, more := s.streams.Tally(), s.conductorStreams.Tally()
	sum.Add(&more)
	return sum
}

func (s *Service) messageMetrics(m *metrics.Sources) {
	n := s.streams.Counters() // Conductor's streams count there, too
	m.KVMessages = metrics.Samples{
		sample(n.Messages.Load(), "received"),
		sample(n.Replayed.Load(), "replayed"),
		sample(n.Applied.Load(), "applied"),
		sample(n.FrameErrors.Load(), "bad_frames"),
		sample(n.Undecodable.Load(), "undecodable"),
		sample(n.Duplicates.Load(), "duplicate"),
		sample(n.Foreign.Load(), "foreign_rank"),
		sample(n.Held.Load(), "held"),
	}
	m.KVMessagesLost = metrics.Value(n.MessagesLost.Load())
	m.KVGaps = metrics.Samples{sample(n.Gaps.Load(), "seen"), sample(n.GapsLost.Load(), "unrepaired")}
	m.KVReplays = metrics.Samples{sample(n.ReplayStarts.Load(), "started"), sample(n.ReplaysAgain.Load(), "asked_again")}
	for r := range n.ReplayResults {
		m.KVReplays = append(m.KVReplays, sample(n.ReplayResults[r].Load(), kvevents.ReplayResult(r).String()))
	}
	m.KVRestarts = metrics.Value(n.Restarts.Load())
	m.KVConnections = metrics.Samples{
		sample(n.Connects.Load(), "connected"),
		sample(n.Disconnects.Load(), "disconnected"),
		sample(n.Pauses.Load(), "paused"),
	}
}

func (s *Service) streamMetrics(m *metrics.Sources) {
	var states [kvevents.NumStreamStates]int
	all := 0
	for _, subscribers := range []*kvevents.Subscribers{s.streams, s.conductorStreams} {
		for _, st := range subscribers.Streams() {
			states[st.State]++
			all++
		}
	}
	for state, n := range states {
		m.KVStreams = append(m.KVStreams, sample(n, kvevents.StreamState(state).String()))
	}
	pending := states[kvevents.Connecting]
	m.IndexerListeners = metrics.Samples{
		sample(all-pending, "active"), sample(0, "failed"), sample(0, "paused"), sample(pending, "pending"),
	}
}

// eventSamples leaves out combinations that never occurred: most cannot.
func eventSamples(tally *kvevents.Tally) (out metrics.Samples) {
	for kind := range tally.Events {
		for tier := range tally.Events[kind] {
			for reason, n := range tally.Events[kind][tier] {
				if n > 0 {
					out = append(out, sample(n, kvevents.Kind(kind).String(), kvevents.TierLabel(tier), kvevents.Reason(reason).String()))
				}
			}
		}
	}
	return out
}

func blockSamples(tally *kvevents.Tally) (out metrics.Samples) {
	for tier := range tally.Blocks {
		for o, n := range tally.Blocks[tier] {
			if n > 0 {
				out = append(out, sample(n, kvevents.TierLabel(tier), kvevents.BlockOutcome(o).String()))
			}
		}
	}
	return out
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
