package metrics

import "github.com/prometheus/client_golang/prometheus"

// Sources feed the families. The comments name the labels; a family whose
// source is nil is left out. Counters must never go down.
type Sources struct {
	KVEvents       Source // counter: kind, tier, outcome ("applied", or why not)
	KVEventBlocks  Source // counter: tier, outcome
	KVMessages     Source // counter: outcome; a message may count under several
	KVMessagesLost Source // counter
	KVGaps         Source // counter: outcome
	KVReplays      Source // counter: result
	KVRestarts     Source // counter
	KVConnections  Source // counter: change
	KVStreams      Source // gauge: state

	IndexBlocks       Source // gauge: tier; (rank, block) entries
	IndexUniqueBlocks Source // gauge
	IndexOrphans      Source // gauge
	IndexBytes        Source // gauge

	Workers           Source // gauge: lifecycle
	Selections        Source // counter: outcome
	ReservationsLive  Source // gauge
	ReservationEvents Source // counter: event
	QueuedRequests    Source // gauge
	QueuedTokens      Source // gauge

	ReplicaSent      Source // counter: kind
	ReplicaReceived  Source // counter: kind
	ReplicaLost      Source // counter
	ReplicaLate      Source // counter
	ReplicaDropped   Source // counter: reason
	ReplicaPeers     Source // gauge: state
	ReplicaSnapshots Source // counter: outcome
	ReplicaLearned   Source // counter: change

	RecoveryStage   Source // gauge: stage; 1 for the present one
	RecoveryEntries Source // counter
	RecoverySkipped Source // counter: reason

	ConductorPublishers     Source // gauge
	ConductorSpaces         Source // gauge
	ConductorNamespaces     Source // gauge
	ConductorOwners         Source // gauge
	ConductorIndexBlocks    Source // gauge: tier; (rank, block) entries
	ConductorIndexUnique    Source // gauge
	ConductorIndexOrphans   Source // gauge
	ConductorIndexBytes     Source // gauge
	ConductorBlocks         Source // counter: hashes
	ConductorEventGaps      Source // counter
	ConductorEventsMissed   Source // counter
	ConductorLateEvents     Source // counter
	ConductorStreamRestarts Source // counter
	ConductorBaseMismatches Source // counter
}

// family describes a metric family and finds its source.
type family struct {
	name   string // without the namespace
	help   string
	kind   prometheus.ValueType
	labels []string
	source func(*Sources) Source
}

var families = []family{
	{
		"kv_events_total", "KV cache events of engines by kind, storage tier and outcome.",
		prometheus.CounterValue,
		[]string{"kind", "tier", "outcome"},
		func(s *Sources) Source { return s.KVEvents },
	},
	{
		"kv_event_blocks_total", "Blocks of applied KV cache events by storage tier and outcome.",
		prometheus.CounterValue,
		[]string{"tier", "outcome"},
		func(s *Sources) Source { return s.KVEventBlocks },
	},
	{
		"kv_messages_total", "Messages on KV event streams by what happened to them; one may count under several outcomes.",
		prometheus.CounterValue,
		[]string{"outcome"},
		func(s *Sources) Source { return s.KVMessages },
	},
	{
		"kv_messages_lost_total", "Messages of KV event streams that never arrived and that no replay brought back.",
		prometheus.CounterValue,
		nil,
		func(s *Sources) Source { return s.KVMessagesLost },
	},
	{
		"kv_gaps_total", "Gaps in the sequence numbers of KV event streams by outcome.",
		prometheus.CounterValue,
		[]string{"outcome"},
		func(s *Sources) Source { return s.KVGaps },
	},
	{
		"kv_replays_total", "Replays asked of engines by result.",
		prometheus.CounterValue,
		[]string{"result"},
		func(s *Sources) Source { return s.KVReplays },
	},
	{
		"kv_engine_restarts_total", "Engines found to have started anew; their blocks were dropped.",
		prometheus.CounterValue,
		nil,
		func(s *Sources) Source { return s.KVRestarts },
	},
	{
		"kv_stream_changes_total", "Changes in the connections of KV event streams.",
		prometheus.CounterValue,
		[]string{"change"},
		func(s *Sources) Source { return s.KVConnections },
	},
	{
		"kv_streams", "KV event streams by state.",
		prometheus.GaugeValue,
		[]string{"state"},
		func(s *Sources) Source { return s.KVStreams },
	},
	{
		"index_blocks", "Blocks in the index by storage tier, counted once for each rank that holds them.",
		prometheus.GaugeValue,
		[]string{"tier"},
		func(s *Sources) Source { return s.IndexBlocks },
	},
	{
		"index_unique_blocks", "Distinct blocks in the index.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Source { return s.IndexUniqueBlocks },
	},
	{
		"index_orphan_blocks", "Blocks kept out of answers until their parent comes.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Source { return s.IndexOrphans },
	},
	{
		"index_bytes", "Memory of the index.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Source { return s.IndexBytes },
	},
	{
		"workers", "Registered workers by lifecycle.",
		prometheus.GaugeValue,
		[]string{"lifecycle"},
		func(s *Sources) Source { return s.Workers },
	},
	{
		"selections_total", "Selections by outcome.",
		prometheus.CounterValue,
		[]string{"outcome"},
		func(s *Sources) Source { return s.Selections },
	},
	{
		"reservations_live", "Reservations that are not freed.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Source { return s.ReservationsLive },
	},
	{
		"reservation_events_total", "Reservations booked and ended, by event.",
		prometheus.CounterValue,
		[]string{"event"},
		func(s *Sources) Source { return s.ReservationEvents },
	},
	{
		"queued_requests", "Selections that wait for a rank that is not busy.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Source { return s.QueuedRequests },
	},
	{
		"queued_tokens", "Prompt tokens of the selections that wait.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Source { return s.QueuedTokens },
	},
	{
		"replica_messages_sent_total", "Messages published to other replicas by kind.",
		prometheus.CounterValue,
		[]string{"kind"},
		func(s *Sources) Source { return s.ReplicaSent },
	},
	{
		"replica_messages_received_total", "Messages received from other replicas by kind.",
		prometheus.CounterValue,
		[]string{"kind"},
		func(s *Sources) Source { return s.ReplicaReceived },
	},
	{
		"replica_messages_lost_total", "Numbered messages of other replicas that were missing when later ones had come; a snapshot makes up for them.",
		prometheus.CounterValue,
		nil,
		func(s *Sources) Source { return s.ReplicaLost },
	},
	{
		"replica_messages_late_total", "Those of the lost messages that came after all.",
		prometheus.CounterValue,
		nil,
		func(s *Sources) Source { return s.ReplicaLate },
	},
	{
		"replica_messages_dropped_total", "Messages from and to other replicas that had no effect, by reason.",
		prometheus.CounterValue,
		[]string{"reason"},
		func(s *Sources) Source { return s.ReplicaDropped },
	},
	{
		"replica_peers", "Replicas whose bookings are followed, by state of the connection.",
		prometheus.GaugeValue,
		[]string{"state"},
		func(s *Sources) Source { return s.ReplicaPeers },
	},
	{
		"replica_snapshots_total", "Snapshots of other replicas' bookings by outcome; pages of our own that were served.",
		prometheus.CounterValue,
		[]string{"outcome"},
		func(s *Sources) Source { return s.ReplicaSnapshots },
	},
	{
		"replica_snapshot_changes_total", "Changes that snapshots of other replicas made to the bookings known here.",
		prometheus.CounterValue,
		[]string{"change"},
		func(s *Sources) Source { return s.ReplicaLearned },
	},
	{
		"recovery_stage", "1 for the present stage of the recovery of the index from peers, 0 for the others.",
		prometheus.GaugeValue,
		[]string{"stage"},
		func(s *Sources) Source { return s.RecoveryStage },
	},
	{
		"recovery_entries_total", "Dump entries of peers that were read to recover the index.",
		prometheus.CounterValue,
		nil,
		func(s *Sources) Source { return s.RecoveryEntries },
	},
	{
		"recovery_skipped_total", "Dump entries of peers that could not be used, by reason.",
		prometheus.CounterValue,
		[]string{"reason"},
		func(s *Sources) Source { return s.RecoverySkipped },
	},
	{
		"conductor_publishers", "KV event publishers registered through the Conductor API.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Source { return s.ConductorPublishers },
	},
	{
		"conductor_spaces", "Indexes of the Conductor API: one for each tenant, model, block size and hash seed in use.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Source { return s.ConductorSpaces },
	},
	{
		"conductor_namespaces", "LoRA adapters and salts in use in the indexes of the Conductor API.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Source { return s.ConductorNamespaces },
	},
	{
		"conductor_owners", "Owners of blocks in the indexes of the Conductor API.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Source { return s.ConductorOwners },
	},
	{
		"conductor_index_blocks", "Blocks in the indexes of the Conductor API by storage tier, counted once for each owner; a medium without a tier of its own counts under one that its owner has free.",
		prometheus.GaugeValue,
		[]string{"tier"},
		func(s *Sources) Source { return s.ConductorIndexBlocks },
	},
	{
		"conductor_index_unique_blocks", "Distinct blocks in the indexes of the Conductor API.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Source { return s.ConductorIndexUnique },
	},
	{
		"conductor_index_orphan_blocks", "Blocks of the Conductor API kept out of answers until their parent comes.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Source { return s.ConductorIndexOrphans },
	},
	{
		"conductor_index_bytes", "Memory of the indexes of the Conductor API.",
		prometheus.GaugeValue,
		nil,
		func(s *Sources) Source { return s.ConductorIndexBytes },
	},
	{
		"conductor_blocks_total", "Blocks that publishers of the Conductor API announced, by what their hashes are known to be; without tokens, unverified ones may never match a query.",
		prometheus.CounterValue,
		[]string{"hashes"},
		func(s *Sources) Source { return s.ConductorBlocks },
	},
	{
		"conductor_event_id_gaps_total", "Jumps in the event ids of publishers of the Conductor API.",
		prometheus.CounterValue,
		nil,
		func(s *Sources) Source { return s.ConductorEventGaps },
	},
	{
		"conductor_event_ids_missed_total", "Event ids left out by those jumps.",
		prometheus.CounterValue,
		nil,
		func(s *Sources) Source { return s.ConductorEventsMissed },
	},
	{
		"conductor_late_events_total", "Events dropped because their event id was not above the last one of their stream.",
		prometheus.CounterValue,
		nil,
		func(s *Sources) Source { return s.ConductorLateEvents },
	},
	{
		"conductor_stream_restarts_total", "Streams of event ids found to have started anew; their blocks were dropped.",
		prometheus.CounterValue,
		nil,
		func(s *Sources) Source { return s.ConductorStreamRestarts },
	},
	{
		"conductor_base_mismatches_total", "Events whose base_block_idx contradicts the depth known of their blocks.",
		prometheus.CounterValue,
		nil,
		func(s *Sources) Source { return s.ConductorBaseMismatches },
	},
}
