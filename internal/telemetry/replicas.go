package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/pkg/recovery"
	"github.com/select-service/select-service/pkg/replicasync"
)

var (
	replicaFamilies families

	replicaSent      = replicaFamilies.counter("replica_messages_sent_total", "Messages published to other replicas by kind.", "kind")
	replicaReceived  = replicaFamilies.counter("replica_messages_received_total", "Messages received from other replicas by kind.", "kind")
	replicaLost      = replicaFamilies.counter("replica_messages_lost_total", "Numbered messages of other replicas that were missing when later ones had come; a snapshot makes up for them.")
	replicaLate      = replicaFamilies.counter("replica_messages_late_total", "Those of the lost messages that came after all.")
	replicaDropped   = replicaFamilies.counter("replica_messages_dropped_total", "Messages from and to other replicas that had no effect, by reason.", "reason")
	replicaPeers     = replicaFamilies.gauge("replica_peers", "Replicas whose reservations are followed, by state of the connection.", "state")
	replicaSnapshots = replicaFamilies.counter("replica_snapshots_total", "Snapshots of other replicas' reservations by outcome; pages of our own that were served.", "outcome")
	replicaLearned   = replicaFamilies.counter("replica_snapshot_changes_total", "Changes that snapshots of other replicas made to the reservations known here.", "change")
)

// Replicas collects metrics of the messages between this replica and the others.
type Replicas struct {
	Replica *replicasync.Replica
	// Malformed, if set, returns how many received messages the transport could not parse.
	Malformed func() uint64
}

// Describe implements prometheus.Collector.
func (Replicas) Describe(ch chan<- *prometheus.Desc) { replicaFamilies.describe(ch) }

// Collect implements prometheus.Collector.
func (c Replicas) Collect(ch chan<- prometheus.Metric) {
	st := c.Replica.Stats()
	sendByName(ch, replicaSent, st.Sent)
	sendByName(ch, replicaReceived, st.Received)
	sendByName(ch, replicaDropped, st.Dropped)
	if c.Malformed != nil {
		send(ch, replicaDropped, c.Malformed(), "frames")
	}
	send(ch, replicaLate, st.Late)
	send(ch, replicaLost, st.Lost)
	send(ch, replicaPeers, st.Connected, "connected")
	send(ch, replicaPeers, st.Peers-st.Connected, "disconnected")
	send(ch, replicaSnapshots, st.Snapshots, "fetched")
	send(ch, replicaSnapshots, st.SnapshotsFailed, "failed")
	send(ch, replicaSnapshots, st.PagesServed, "pages_served")
	send(ch, replicaLearned, st.Added, "adopted")
	send(ch, replicaLearned, st.Completed, "completed")
	send(ch, replicaLearned, st.Ended, "ended")
}

func sendByName(ch chan<- prometheus.Metric, f family, counts map[string]uint64) {
	for name, n := range counts {
		send(ch, f, n, name)
	}
}

var (
	recoveryFamilies families

	recoveryStage   = recoveryFamilies.gauge("recovery_stage", "1 for the present stage of the recovery of the index from peers, 0 for the others.", "stage")
	recoveryEntries = recoveryFamilies.counter("recovery_entries_total", "Dump entries of peers that were read to recover the index.")
	recoverySkipped = recoveryFamilies.counter("recovery_skipped_total", "Dump entries of peers that could not be used, by reason.", "reason")
)

// Recovery collects the progress of the index's recovery from peers.
type Recovery struct {
	Stages []string // all stages
	// Progress returns the current stage, and the totals over the dumps of all peers so far.
	Progress func() (stage string, report recovery.Report)
}

// Describe implements prometheus.Collector.
func (Recovery) Describe(ch chan<- *prometheus.Desc) { recoveryFamilies.describe(ch) }

// Collect implements prometheus.Collector.
func (c Recovery) Collect(ch chan<- prometheus.Metric) {
	present, report := c.Progress()
	for _, stage := range c.Stages {
		send(ch, recoveryStage, oneIf(stage == present), stage)
	}
	send(ch, recoveryEntries, report.Events)
	for why, n := range report.Skipped {
		send(ch, recoverySkipped, n, recovery.Reason(why).String())
	}
}
