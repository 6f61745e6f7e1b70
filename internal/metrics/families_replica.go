package metrics

import "github.com/prometheus/client_golang/prometheus"

// replicaFamilies are about other replicas: their bookings, and their index at
// start.
var replicaFamilies = []family{
	{
		"replica_messages_sent_total", "Messages published to other replicas by kind.",
		prometheus.CounterValue,
		[]string{"kind"},
		func(s *Sources) Samples { return s.ReplicaSent },
	},
	{
		"replica_messages_received_total", "Messages received from other replicas by kind.",
		prometheus.CounterValue,
		[]string{"kind"},
		func(s *Sources) Samples { return s.ReplicaReceived },
	},
	{
		"replica_messages_lost_total", "Numbered messages of other replicas that were missing when later ones had come; a snapshot makes up for them.",
		prometheus.CounterValue,
		nil,
		func(s *Sources) Samples { return s.ReplicaLost },
	},
	{
		"replica_messages_late_total", "Those of the lost messages that came after all.",
		prometheus.CounterValue,
		nil,
		func(s *Sources) Samples { return s.ReplicaLate },
	},
	{
		"replica_messages_dropped_total", "Messages from and to other replicas that had no effect, by reason.",
		prometheus.CounterValue,
		[]string{"reason"},
		func(s *Sources) Samples { return s.ReplicaDropped },
	},
	{
		"replica_peers", "Replicas whose bookings are followed, by state of the connection.",
		prometheus.GaugeValue,
		[]string{"state"},
		func(s *Sources) Samples { return s.ReplicaPeers },
	},
	{
		"replica_snapshots_total", "Snapshots of other replicas' bookings by outcome; pages of our own that were served.",
		prometheus.CounterValue,
		[]string{"outcome"},
		func(s *Sources) Samples { return s.ReplicaSnapshots },
	},
	{
		"replica_snapshot_changes_total", "Changes that snapshots of other replicas made to the bookings known here.",
		prometheus.CounterValue,
		[]string{"change"},
		func(s *Sources) Samples { return s.ReplicaLearned },
	},
	{
		"recovery_stage", "1 for the present stage of the recovery of the index from peers, 0 for the others.",
		prometheus.GaugeValue,
		[]string{"stage"},
		func(s *Sources) Samples { return s.RecoveryStage },
	},
	{
		"recovery_entries_total", "Dump entries of peers that were read to recover the index.",
		prometheus.CounterValue,
		nil,
		func(s *Sources) Samples { return s.RecoveryEntries },
	},
	{
		"recovery_skipped_total", "Dump entries of peers that could not be used, by reason.",
		prometheus.CounterValue,
		[]string{"reason"},
		func(s *Sources) Samples { return s.RecoverySkipped },
	},
}
