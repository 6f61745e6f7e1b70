package service

import (
	"github.com/select-service/select-service/internal/metrics"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
)

// eventMetrics sets what is known of event streams: selection's and Conductor's
// together.
func (s *Service) eventMetrics(m *metrics.Sources, streams *streamStates, tally *kvevents.Tally) {
	s.messageMetrics(m)
	for state, n := range streams {
		m.KVStreams = append(m.KVStreams, sample(n, kvevents.StreamState(state).String()))
	}
	m.KVEventLag = []metrics.Distribution{{Histogram: s.lag}}
	m.KVEvents, m.KVEventBlocks = eventSamples(tally), blockSamples(tally)
}

// tally is what the events of all streams came to.
func (s *Service) tally() kvevents.Tally {
	sum, more := s.streams.Tally(), s.conductor.Streams().Tally()
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

// streamStates counts streams by state.
type streamStates [kvevents.NumStreamStates]int

func (s *Service) streamStates() (count streamStates) {
	for _, subscribers := range []*kvevents.Subscribers{s.streams, s.conductor.Streams()} {
		for _, st := range subscribers.Streams() {
			count[st.State]++
		}
	}
	return count
}

// alwaysShown tells whether events of a kind are counted at a tier even while
// there are none, so that the first one is a rise and not a new series. Host and
// disk tiers are rare, and some kinds have no tier.
func alwaysShown(kind kvevents.Kind, tier int) bool {
	device := kind == kvevents.Stored || kind == kvevents.Removed
	return tier == kvevents.NoTier || tier == int(indexer.Device) && device
}

// eventSamples leaves out what never occurred at other tiers: most cannot.
func eventSamples(tally *kvevents.Tally) (out metrics.Samples) {
	for kind := range tally.Events {
		for tier := range tally.Events[kind] {
			for reason, n := range tally.Events[kind][tier] {
				if n > 0 || alwaysShown(kvevents.Kind(kind), tier) {
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
			if n > 0 || tier == int(indexer.Device) {
				out = append(out, sample(n, kvevents.TierLabel(tier), kvevents.BlockOutcome(o).String()))
			}
		}
	}
	return out
}
