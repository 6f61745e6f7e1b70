package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/telemetry/metrics"
	"github.com/select-service/select-service/pkg/recovery"
	"github.com/select-service/select-service/pkg/replicasync"
)

var (
	replicaFamilies metrics.Families

	replicaSent      = replicaFamilies.Counter("replica_messages_sent_total", "Messages published to other replicas by kind.", "kind")
	replicaReceived  = replicaFamilies.Counter("replica_messages_received_total", "Messages received from other replicas by kind.", "kind")
	replicaLost      = replicaFamilies.Counter("replica_messages_lost_total", "Numbered messages of other replicas that were missing when later ones had come; a snapshot makes up for them.")
	replicaLate      = replicaFamilies.Counter("replica_messages_late_total", "Those of the lost messages that came after all.")
	replicaDropped   = replicaFamilies.Counter("replica_messages_dropped_total", "Messages from and to other replicas that had no effect, by reason.", "reason")
	replicaPeers     = replicaFamilies.Gauge("replica_peers", "Replicas whose reservations are followed, by state of the connection.", "state")
	replicaSnapshots = replicaFamilies.Counter("replica_snapshots_total", "Snapshots of other replicas' reservations by outcome; pages of our own that were served.", "outcome")
	replicaLearned   = replicaFamilies.Counter("replica_snapshot_changes_total", "Changes that snapshots of other replicas made to the reservations known here.", "change")
)

// Replicas collects metrics of the messages between this replica and the others.
type Replicas struct {
	Replica *replicasync.Replica
	// Malformed, if set, returns how many received messages the transport could not parse.
	Malformed func() uint64
}

// Describe implements prometheus.Collector.
func (Replicas) Describe(ch chan<- *prometheus.Desc) { replicaFamilies.Describe(ch) }

// Collect implements prometheus.Collector.
func (r Replicas) Collect(ch chan<- prometheus.Metric) {
	st := r.Replica.Stats()
	sendByName(ch, replicaSent, st.Sent)
	sendByName(ch, replicaReceived, st.Received)
	sendByName(ch, replicaDropped, st.Dropped)
	if r.Malformed != nil {
		metrics.Send(ch, replicaDropped, r.Malformed(), "frames")
	}
	metrics.Send(ch, replicaLate, st.Late)
	metrics.Send(ch, replicaLost, st.Lost)
	metrics.Send(ch, replicaPeers, st.Connected, "connected")
	metrics.Send(ch, replicaPeers, st.Peers-st.Connected, "disconnected")
	metrics.Send(ch, replicaSnapshots, st.Snapshots, "fetched")
	metrics.Send(ch, replicaSnapshots, st.SnapshotsFailed, "failed")
	metrics.Send(ch, replicaSnapshots, st.PagesServed, "pages_served")
	metrics.Send(ch, replicaLearned, st.Added, "adopted")
	metrics.Send(ch, replicaLearned, st.Completed, "completed")
	metrics.Send(ch, replicaLearned, st.Ended, "ended")
}

func sendByName(ch chan<- prometheus.Metric, f metrics.Family, counts map[string]uint64) {
	for name, n := range counts {
		metrics.Send(ch, f, n, name)
	}
}

var (
	recoveryFamilies metrics.Families

	recoveryStage   = recoveryFamilies.Gauge("recovery_stage", "1 for the present stage of the recovery of the index from peers, 0 for the others.", "stage")
	recoveryEntries = recoveryFamilies.Counter("recovery_entries_total", "Dump entries of peers that were read to recover the index.")
	recoverySkipped = recoveryFamilies.Counter("recovery_skipped_total", "Dump entries of peers that could not be used, by reason.", "reason")
)

// Recovery collects the progress of the index's recovery from peers.
type Recovery struct {
	Stages []string // all stages
	// Progress returns the current stage, and the totals over the dumps of all peers so far.
	Progress func() (stage string, report recovery.Report)
}

// Describe implements prometheus.Collector.
func (Recovery) Describe(ch chan<- *prometheus.Desc) { recoveryFamilies.Describe(ch) }

// Collect implements prometheus.Collector.
func (r Recovery) Collect(ch chan<- prometheus.Metric) {
	present, report := r.Progress()
	for _, stage := range r.Stages {
		metrics.Send(ch, recoveryStage, metrics.OneIf(stage == present), stage)
	}
	metrics.Send(ch, recoveryEntries, report.Events)
	for why, n := range report.Skipped {
		metrics.Send(ch, recoverySkipped, n, recovery.Reason(why).String())
	}
}
