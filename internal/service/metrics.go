package service

import (
	"github.com/select-service/select-service/internal/metrics"
	"github.com/select-service/select-service/internal/scopes"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
)

// Metrics returns what the metric families that opt asks for show now. Everything
// is looked at once, part after part, and no lock is held from one to the next:
// families may differ by what happens meanwhile.
func (s *Service) Metrics(opt metrics.Options) metrics.Sources {
	var m metrics.Sources
	ready, _, workers := s.Ready()
	m.Ready = metrics.Value(flag(ready))
	pools := s.scopes.All()
	conductor := s.conductor.Registry().Counts()
	streams, events := s.streamStates(), s.tally()
	s.eventMetrics(&m, &streams, &events)
	s.workerMetrics(&m, workers)
	s.indexMetrics(&m, pools)
	s.selectionMetrics(&m, pools)
	s.modelMetrics(&m)
	s.rankMetrics(&m, pools)
	s.replicaMetrics(&m)
	s.recoveryMetrics(&m)
	s.conductorMetrics(&m, &conductor)
	if opt.DynamoAliases {
		c := indexerCounts{models: len(pools) + conductor.Spaces, workers: conductor.Publishers, streams: &streams, events: &events}
		for _, w := range workers {
			c.workers += flag(!w.Tracked)
		}
		c.show(&m)
	}
	return m
}

func sample[N uint64 | int64 | int](n N, labels ...string) metrics.Sample {
	return metrics.Sample{Labels: labels, Value: float64(n)}
}

// flag is 1 for true.
func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (s *Service) indexMetrics(m *metrics.Sources, pools map[catalog.Scope]*scopes.State) {
	var sum indexer.Stats
	for _, p := range pools {
		st := p.Space.Stats()
		for t, n := range st.Blocks {
			sum.Blocks[t] += n
		}
		sum.Unique += st.Unique
		sum.Orphans += st.Orphans
		sum.Bytes += st.Bytes
	}
	m.IndexBlocks = tierSamples(sum.Blocks)
	m.IndexUniqueBlocks = metrics.Value(sum.Unique)
	m.IndexOrphans = metrics.Value(sum.Orphans)
	m.IndexBytes = metrics.Value(sum.Bytes)
}

func (s *Service) selectionMetrics(m *metrics.Sources, pools map[catalog.Scope]*scopes.State) {
	st := s.ledger.Stats()
	m.ReservationsLive = metrics.Value(st.Live)
	m.ReservationEvents = metrics.Samples{
		sample(st.Booked, "booked"),
		sample(st.Freed, "freed"),
		sample(st.Expired, "expired"),
		sample(st.LeasesExpired, "lease_expired"),
		sample(st.Dropped, "dropped"),
		sample(st.Late, "freed_late"),
	}
	s.rememberedMetrics(m)
	var requests, tokens float64
	for _, p := range pools {
		r, t := p.Queue.Pending()
		requests += float64(r)
		tokens += float64(t)
	}
	m.QueuedRequests, m.QueuedTokens = metrics.Value(requests), metrics.Value(tokens)
}

// rememberedMetrics shows what is kept for callers that come back, and who waits
// for that.
func (s *Service) rememberedMetrics(m *metrics.Sources) {
	kept, _ := s.kept.Stats()
	m.Remembered = metrics.Samples{sample(s.first.count(), "answers"), sample(kept, "selections")}
	if s.sessions != nil {
		m.Remembered = append(m.Remembered, sample(s.sessions.Len(), "sessions"), sample(s.sessions.Waiting(), "session_waiters"))
	}
	if s.approximate != nil {
		m.Remembered = append(m.Remembered, sample(s.approximate.Blocks(), "predicted_blocks"))
	}
}
