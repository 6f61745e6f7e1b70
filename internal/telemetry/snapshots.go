package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/telemetry/metrics"
)

var (
	snapshotFamilies metrics.Families

	snapshotAge      = snapshotFamilies.Gauge("snapshot_age_seconds", "Time since the last snapshot was written to disk, if one was.")
	snapshotBytes    = snapshotFamilies.Gauge("snapshot_bytes", "Size of the last snapshot that was written to disk.")
	snapshotSeconds  = snapshotFamilies.Gauge("snapshot_seconds", "Time that it took to write the last snapshot, with its pauses.")
	snapshotFailures = snapshotFamilies.Counter("snapshot_failures_total", "Snapshots that could not be written or, at start, used; what did not fit into one.", "reason")
	snapshotRanks    = snapshotFamilies.Gauge("snapshot_ranks", "Ranks of the snapshot that was read at start, by what became of their blocks.", "state")
)

// SnapshotStats has the state of the snapshots on disk.
type SnapshotStats struct {
	Written bool // there is a last snapshot; Age, Took and Bytes are its
	Age     time.Duration
	Took    time.Duration
	Bytes   int64
	// Failures (by reason) and Ranks (by state) have all possible keys.
	Failures, Ranks map[string]uint64
}

// Snapshots collects metrics of the snapshots on disk; without Read there are none.
type Snapshots struct{ Read func() SnapshotStats }

// Describe implements prometheus.Collector.
func (Snapshots) Describe(ch chan<- *prometheus.Desc) { snapshotFamilies.Describe(ch) }

// Collect implements prometheus.Collector.
func (s Snapshots) Collect(ch chan<- prometheus.Metric) {
	if s.Read == nil {
		return
	}
	st := s.Read()
	if st.Written {
		metrics.Send(ch, snapshotAge, st.Age.Seconds())
		metrics.Send(ch, snapshotBytes, st.Bytes)
		metrics.Send(ch, snapshotSeconds, st.Took.Seconds())
	}
	sendByName(ch, snapshotFailures, st.Failures)
	sendByName(ch, snapshotRanks, st.Ranks)
}
