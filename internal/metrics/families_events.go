package metrics

import "github.com/prometheus/client_golang/prometheus"

// eventFamilies are about the KV events of engines and the index made of them.
var eventFamilies = []family{
	{
		"kv_events_total", "KV cache events of engines by kind, storage tier and outcome.",
		prometheus.CounterValue,
		[]string{"kind", "tier", "outcome"},
		func(s *Sources) Samples { return s.KVEvents },
	},
	{
		"kv_event_blocks_total", "Blocks of applied KV cache events by storage tier and outcome.",
		prometheus.CounterValue,
		[]string{"tier", "outcome"},
		func(s *Sources) Samples { return s.KVEventBlocks },
	},
	{
		"kv_messages_total", "Messages on KV event streams by what happened to them; one may count under several outcomes.",
		prometheus.CounterValue,
		[]string{"outcome"},
		func(s *Sources) Samples { return s.KVMessages },
	},
	{
		"kv_messages_lost_total", "Messages of KV event streams that never arrived and that no replay brought back.",
		prometheus.CounterValue,
		nil,
		func(s *Sources) Samples { return s.KVMessagesLost },
	},
	{
		"kv_gaps_total", "Gaps in the sequence numbers of KV event streams by outcome.",
		prometheus.CounterValue,
		[]string{"outcome"},
		func(s *Sources) Samples { return s.KVGaps },
	},
	{
		"kv_replays_total", "Replays asked of engines by result.",
		prometheus.CounterValue,
		[]string{"result"},
		func(s *Sources) Samples { return s.KVReplays },
	},
	{
		"kv_engine_restarts_total", "Engines found to have started anew; their blocks were dropped.",
		prometheus.CounterValue,
		nil,
		func(s *Sources) Samples { return s.KVRestarts },
	},
	{
		"kv_stream_changes_total", "Changes in the connections of KV event streams.",
		prometheus.CounterValue,
		[]string{"change"},
		func(s *Sources) Samples { return s.KVConnections },
	},
	{
		"kv_streams", "KV event streams by state.",
		prometheus.GaugeValue,
		[]string{"state"},
		func(s *Sources) Samples { return s.KVStreams },
	},
	{
		"index_blocks", "Blocks in the index by storage tier, counted once for each rank that holds them.",
		prometheus.GaugeValue,
		[]string{"tier"},
		func(s *Sources) Samples { return s.IndexBlocks },
	},
	{
		"index_unique_blocks", "Distinct blocks in the index.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Samples { return s.IndexUniqueBlocks },
	},
	{
		"index_orphan_blocks", "Blocks kept out of answers until their parent comes.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Samples { return s.IndexOrphans },
	},
	{
		"index_bytes", "Memory of the index.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Samples { return s.IndexBytes },
	},
}
