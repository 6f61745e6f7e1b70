package service

import (
	"github.com/select-service/select-service/internal/metrics"
	"github.com/select-service/select-service/pkg/conductor"
	"github.com/select-service/select-service/pkg/indexer"
)

// conductorMetrics sets the sources about Conductor's publishers and their
// index.
func (s *Service) conductorMetrics(m *metrics.Sources) {
	value := func(read func(*conductor.Stats) float64) metrics.Source {
		return metrics.Value(func() float64 {
			st := s.conductor.Counts()
			return read(&st)
		})
	}
	index := func(read func(*indexer.Stats) float64) metrics.Source {
		return metrics.Value(func() float64 {
			st := s.conductor.IndexStats()
			return read(&st)
		})
	}
	m.ConductorPublishers = value(func(st *conductor.Stats) float64 { return float64(st.Publishers) })
	m.ConductorSpaces = value(func(st *conductor.Stats) float64 { return float64(st.Spaces) })
	m.ConductorNamespaces = value(func(st *conductor.Stats) float64 { return float64(st.Namespaces) })
	m.ConductorOwners = value(func(st *conductor.Stats) float64 { return float64(st.Owners) })
	m.ConductorIndexUnique = index(func(st *indexer.Stats) float64 { return float64(st.Unique) })
	m.ConductorIndexOrphans = index(func(st *indexer.Stats) float64 { return float64(st.Orphans) })
	m.ConductorIndexBytes = index(func(st *indexer.Stats) float64 { return float64(st.Bytes) })
	m.ConductorIndexBlocks = func() []metrics.Sample { return tierSamples(s.conductor.IndexStats().Blocks) }
	m.ConductorBlocks = func() []metrics.Sample {
		st := s.conductor.Counts()
		return []metrics.Sample{
			sample(st.Tokens, "tokens"),
			sample(st.Confirmed, "standard"),
			sample(st.Resolved, "own"),
			sample(st.Unverified, "unverified"),
		}
	}
	m.ConductorEventGaps = value(func(st *conductor.Stats) float64 { return float64(st.Gaps) })
	m.ConductorEventsMissed = value(func(st *conductor.Stats) float64 { return float64(st.Missed) })
	m.ConductorLateEvents = value(func(st *conductor.Stats) float64 { return float64(st.Late) })
	m.ConductorStreamRestarts = value(func(st *conductor.Stats) float64 { return float64(st.Restarts) })
	m.ConductorBaseMismatches = value(func(st *conductor.Stats) float64 { return float64(st.BaseMismatches) })
}

func tierSamples(blocks [indexer.NumTiers]int) []metrics.Sample {
	out := make([]metrics.Sample, len(blocks))
	for t, n := range blocks {
		out[t] = sample(n, indexer.Tier(t).String())
	}
	return out
}
