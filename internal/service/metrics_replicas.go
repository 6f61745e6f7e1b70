package service

import (
	"github.com/select-service/select-service/internal/metrics"
	"github.com/select-service/select-service/pkg/recovery"
)

// replicaMetrics sets what is known of other replicas, if there can be any.
func (s *Service) replicaMetrics(m *metrics.Sources) {
	if s.replica == nil {
		return
	}
	st := s.replica.Stats()
	m.ReplicaSent, m.ReplicaReceived, m.ReplicaDropped = byName(st.Sent), byName(st.Received), byName(st.Dropped)
	if malformed := s.config.Replication.Malformed; malformed != nil {
		m.ReplicaDropped = append(m.ReplicaDropped, sample(malformed(), "frames"))
	}
	m.ReplicaLate, m.ReplicaLost = metrics.Value(st.Late), metrics.Value(st.Lost)
	m.ReplicaPeers = metrics.Samples{sample(st.Connected, "connected"), sample(st.Peers-st.Connected, "disconnected")}
	m.ReplicaSnapshots = metrics.Samples{
		sample(st.Snapshots, "fetched"), sample(st.SnapshotsFailed, "failed"), sample(st.PagesServed, "pages_served"),
	}
	m.ReplicaLearned = metrics.Samples{sample(st.Adopted, "adopted"), sample(st.Completed, "completed"), sample(st.Ended, "ended")}
}

func byName(counts map[string]uint64) (out metrics.Samples) {
	for name, n := range counts {
		out = append(out, sample(n, name))
	}
	return out
}

// recoveryMetrics sets how far the recovery of the index is, if one is
// configured.
func (s *Service) recoveryMetrics(m *metrics.Sources) {
	r := s.recovery
	if r == nil {
		return
	}
	shown := r.show()
	for stage := range numRecoveryStages {
		m.RecoveryStage = append(m.RecoveryStage, sample(flag(stage == shown.Stage), stage.String()))
	}
	m.RecoveryEntries = metrics.Value(shown.Entries)
	all := r.report()
	for why, n := range all.Skipped {
		m.RecoverySkipped = append(m.RecoverySkipped, sample(n, recovery.Reason(why).String()))
	}
}
