package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/telemetry/metrics"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
)

var (
	eventFamilies metrics.Families

	kvEvents       = eventFamilies.Counter("kv_events_total", "KV cache events of engines by kind, storage tier and outcome.", "kind", "tier", "outcome")
	kvEventBlocks  = eventFamilies.Counter("kv_event_blocks_total", "Blocks of applied KV cache events by storage tier and outcome.", "tier", "outcome")
	kvMessages     = eventFamilies.Counter("kv_messages_total", "Messages on KV event streams by what happened to them; one may count under several outcomes.", "outcome")
	kvMessagesLost = eventFamilies.Counter("kv_messages_lost_total", "Messages of KV event streams that never arrived and that no replay brought back.")
	kvGaps         = eventFamilies.Counter("kv_gaps_total", "Gaps in the sequence numbers of KV event streams by outcome.", "outcome")
	kvReplays      = eventFamilies.Counter("kv_replays_total", "Replays asked of engines by result.", "result")
	kvRestarts     = eventFamilies.Counter("kv_engine_restarts_total", "Engines found to have started anew; their blocks were dropped.")
	kvConnections  = eventFamilies.Counter("kv_stream_changes_total", "Changes in the connections of KV event streams.", "change")
	kvCopiesAsSet  = eventFamilies.Counter("kv_copies_as_set_total", "KV event streams that announced more copies of blocks than their rank has room for; their copies are not counted.")
	kvStreams      = eventFamilies.Gauge("kv_streams", "KV event streams by state.", "state")
	kvEventLag     = eventFamilies.Histogram("kv_event_lag_seconds", "Age of live KV event messages when they came in, by the engine's time stamp; clocks that differ count.")
)

// Streams are the KV event streams of a process. Both kinds count in the same
// kvevents.Counters.
type Streams struct {
	Workers   *kvevents.Subscribers
	Conductor *kvevents.Subscribers // of the Conductor API's publishers
}

// tally returns the outcomes of the events of all streams.
func (s Streams) tally() kvevents.Tally {
	sum, more := s.Workers.Tally(), s.Conductor.Tally()
	sum.Add(&more)
	return sum
}

// streamStates counts streams by state.
type streamStates [kvevents.NumStreamStates]int

func (s Streams) states() (count streamStates) {
	for _, subscribers := range []*kvevents.Subscribers{s.Workers, s.Conductor} {
		for _, st := range subscribers.Streams() {
			count[st.State]++
		}
	}
	return count
}

// Events collects metrics of KV event streams and their events.
type Events struct {
	Streams Streams
	Lag     *metrics.Histogram // age of live messages, in seconds
}

// Describe implements prometheus.Collector.
func (Events) Describe(ch chan<- *prometheus.Desc) { eventFamilies.Describe(ch) }

// Collect implements prometheus.Collector.
func (e Events) Collect(ch chan<- prometheus.Metric) {
	sendMessages(ch, e.Streams.Workers.Counters()) // of the publishers' streams, too
	for state, n := range e.Streams.states() {
		metrics.Send(ch, kvStreams, n, kvevents.StreamState(state).String())
	}
	metrics.SendHistogram(ch, kvEventLag, e.Lag)
	tally := e.Streams.tally()
	sendEvents(ch, &tally)
	sendBlocks(ch, &tally)
	metrics.Send(ch, kvCopiesAsSet, tally.CopiesAsSet)
}

func sendMessages(ch chan<- prometheus.Metric, n *kvevents.Counters) {
	metrics.Send(ch, kvMessages, n.Messages.Load(), "received")
	metrics.Send(ch, kvMessages, n.Replayed.Load(), "replayed")
	metrics.Send(ch, kvMessages, n.Applied.Load(), "applied")
	metrics.Send(ch, kvMessages, n.FrameErrors.Load(), "bad_frames")
	metrics.Send(ch, kvMessages, n.Undecodable.Load(), "undecodable")
	metrics.Send(ch, kvMessages, n.Duplicates.Load(), "duplicate")
	metrics.Send(ch, kvMessages, n.Foreign.Load(), "foreign_rank")
	metrics.Send(ch, kvMessages, n.Held.Load(), "held")
	metrics.Send(ch, kvMessagesLost, n.MessagesLost.Load())
	metrics.Send(ch, kvGaps, n.Gaps.Load(), "seen")
	metrics.Send(ch, kvGaps, n.GapsLost.Load(), "unrepaired")
	metrics.Send(ch, kvReplays, n.ReplayStarts.Load(), "started")
	metrics.Send(ch, kvReplays, n.ReplaysAgain.Load(), "asked_again")
	for r := range n.ReplayResults {
		metrics.Send(ch, kvReplays, n.ReplayResults[r].Load(), kvevents.ReplayResult(r).String())
	}
	metrics.Send(ch, kvRestarts, n.Restarts.Load())
	metrics.Send(ch, kvConnections, n.Connects.Load(), "connected")
	metrics.Send(ch, kvConnections, n.Disconnects.Load(), "disconnected")
	metrics.Send(ch, kvConnections, n.Pauses.Load(), "paused")
}

// alwaysShown reports whether the series of events of a kind on a tier exists before the first
// event, so that this event is a rise and not a new series. Host and disk tiers are rare, and
// some kinds have no tier.
func alwaysShown(kind kvevents.Kind, tier int) bool {
	device := kind == kvevents.Stored || kind == kvevents.Removed
	return tier == kvevents.NoTier || tier == int(indexer.Device) && device
}

// sendEvents sends the events by kind and tier. It leaves out series without events unless they
// are always shown: most combinations cannot occur.
func sendEvents(ch chan<- prometheus.Metric, tally *kvevents.Tally) {
	for kind := range tally.Events {
		for tier := range tally.Events[kind] {
			for reason, n := range tally.Events[kind][tier] {
				if n > 0 || alwaysShown(kvevents.Kind(kind), tier) {
					metrics.Send(ch, kvEvents, n, kvevents.Kind(kind).String(), kvevents.TierLabel(tier), kvevents.Reason(reason).String())
				}
			}
		}
	}
}

func sendBlocks(ch chan<- prometheus.Metric, tally *kvevents.Tally) {
	for tier := range tally.Blocks {
		for o, n := range tally.Blocks[tier] {
			if n > 0 || tier == int(indexer.Device) {
				metrics.Send(ch, kvEventBlocks, n, kvevents.TierLabel(tier), kvevents.BlockOutcome(o).String())
			}
		}
	}
}
