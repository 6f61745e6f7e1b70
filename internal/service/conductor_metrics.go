package service

import (
	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/metrics"
	"github.com/select-service/select-service/pkg/indexer"
)

// conductorMetrics sets what is known of Conductor's publishers and their index.
func (s *Service) conductorMetrics(m *metrics.Sources, st *conductor.Stats) {
	index := s.conductor.Registry().IndexStats()
	m.ConductorPublishers = metrics.Value(st.Publishers)
	m.ConductorSpaces = metrics.Value(st.Spaces)
	m.ConductorNamespaces = metrics.Value(st.Namespaces)
	m.ConductorOwners = metrics.Value(st.Owners)
	m.ConductorIndexBlocks = tierSamples(index.Blocks)
	m.ConductorIndexUnique = metrics.Value(index.Unique)
	m.ConductorIndexOrphans = metrics.Value(index.Orphans)
	m.ConductorIndexBytes = metrics.Value(index.Bytes)
	m.ConductorBlocks = metrics.Samples{
		sample(st.Tokens, "tokens"),
		sample(st.Confirmed, "standard"),
		sample(st.Resolved, "own"),
		sample(st.Unverified, "unverified"),
	}
	m.ConductorEventGaps = metrics.Value(st.Gaps)
	m.ConductorEventsMissed = metrics.Value(st.Missed)
	m.ConductorLateEvents = metrics.Value(st.Late)
	m.ConductorStreamRestarts = metrics.Value(st.Restarts)
	m.ConductorBaseMismatches = metrics.Value(st.BaseMismatches)
}

func tierSamples(blocks [indexer.NumTiers]int) metrics.Samples {
	out := make(metrics.Samples, len(blocks))
	for t, n := range blocks {
		out[t] = sample(n, indexer.Tier(t).String())
	}
	return out
}
