package service

import (
	"github.com/select-service/select-service/internal/metrics"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
)

// Metrics returns the sources of the service's metric families.
func (s *Service) Metrics() metrics.Sources {
	n := s.streams.Counters() // Conductor's streams count there, too
	index := func(read func(indexer.Stats) float64) metrics.Source {
		return metrics.Value(func() (sum float64) {
			for _, p := range *s.pools.Load() {
				sum += read(p.space.Stats())
			}
			return sum
		})
	}
	m := metrics.Sources{
		KVEvents:      s.eventSamples,
		KVEventBlocks: s.blockSamples,
		KVMessages: func() []metrics.Sample {
			return []metrics.Sample{
				sample(n.Messages.Load(), "received"),
				sample(n.Replayed.Load(), "replayed"),
				sample(n.Applied.Load(), "applied"),
				sample(n.FrameErrors.Load(), "bad_frames"),
				sample(n.Undecodable.Load(), "undecodable"),
				sample(n.Duplicates.Load(), "duplicate"),
				sample(n.Foreign.Load(), "foreign_rank"),
				sample(n.Held.Load(), "held"),
			}
		},
		KVMessagesLost: metrics.Value(func() float64 { return float64(n.MessagesLost.Load()) }),
		KVGaps: func() []metrics.Sample {
			return []metrics.Sample{sample(n.Gaps.Load(), "seen"), sample(n.GapsLost.Load(), "unrepaired")}
		},
		KVReplays: func() []metrics.Sample {
			out := []metrics.Sample{sample(n.ReplayStarts.Load(), "started"), sample(n.ReplaysAgain.Load(), "asked_again")}
			for r := range n.ReplayResults {
				out = append(out, sample(n.ReplayResults[r].Load(), kvevents.ReplayResult(r).String()))
			}
			return out
		},
		KVRestarts: metrics.Value(func() float64 { return float64(n.Restarts.Load()) }),
		KVConnections: func() []metrics.Sample {
			return []metrics.Sample{
				sample(n.Connects.Load(), "connected"),
				sample(n.Disconnects.Load(), "disconnected"),
				sample(n.Pauses.Load(), "paused"),
			}
		},
		KVStreams:         s.streamSamples,
		IndexBlocks:       s.indexSamples,
		IndexUniqueBlocks: index(func(st indexer.Stats) float64 { return float64(st.Unique) }),
		IndexOrphans:      index(func(st indexer.Stats) float64 { return float64(st.Orphans) }),
		IndexBytes:        index(func(st indexer.Stats) float64 { return float64(st.Bytes) }),
		Workers:           s.workerSamples,
		Selections: func() []metrics.Sample {
			var out []metrics.Sample
			for o := range s.outcomes {
				out = append(out, sample(s.outcomes[o].Load(), Outcome(o).String()))
			}
			return out
		},
		ReservationsLive: metrics.Value(func() float64 { return float64(s.ledger.Stats().Live) }),
		ReservationEvents: func() []metrics.Sample {
			st := s.ledger.Stats()
			return []metrics.Sample{sample(st.Booked, "booked"), sample(st.Freed, "freed"), sample(st.Expired, "expired"), sample(st.Dropped, "dropped")}
		},
		QueuedRequests: metrics.Value(func() float64 { requests, _ := s.queued(); return requests }),
		QueuedTokens:   metrics.Value(func() float64 { _, tokens := s.queued(); return tokens }),
	}
	s.replicaMetrics(&m)
	s.recoveryMetrics(&m)
	s.conductorMetrics(&m)
	return m
}

func sample[N uint64 | int](n N, labels ...string) metrics.Sample {
	return metrics.Sample{Labels: labels, Value: float64(n)}
}

// tally is what the events of all streams came to.
func (s *Service) tally() kvevents.Tally {
	sum, more := s.streams.Tally(), s.conductorStreams.Tally()
	sum.Add(&more)
	return sum
}

// eventSamples leaves out combinations that never occurred: most cannot.
func (s *Service) eventSamples() []metrics.Sample {
	var out []metrics.Sample
	tally := s.tally()
	for kind := range tally.Events {
		for tier := range tally.Events[kind] {
			for reason, n := range tally.Events[kind][tier] {
				if n > 0 {
					out = append(out, sample(n, kvevents.Kind(kind).String(), kvevents.TierLabel(tier), kvevents.Reason(reason).String()))
				}
			}
		}
	}
	return out
}

func (s *Service) blockSamples() []metrics.Sample {
	var out []metrics.Sample
	tally := s.tally()
	for tier := range tally.Blocks {
		for o, n := range tally.Blocks[tier] {
			if n > 0 {
				out = append(out, sample(n, kvevents.TierLabel(tier), kvevents.BlockOutcome(o).String()))
			}
		}
	}
	return out
}

func (s *Service) streamSamples() []metrics.Sample {
	var states [kvevents.NumStreamStates]int
	for _, subscribers := range []*kvevents.Subscribers{s.streams, s.conductorStreams} {
		for _, st := range subscribers.Streams() {
			states[st.State]++
		}
	}
	var out []metrics.Sample
	for state, n := range states {
		out = append(out, sample(n, kvevents.StreamState(state).String()))
	}
	return out
}

func (s *Service) indexSamples() []metrics.Sample {
	var blocks [indexer.NumTiers]int
	for _, p := range *s.pools.Load() {
		for t, n := range p.space.Stats().Blocks {
			blocks[t] += n
		}
	}
	return tierSamples(blocks)
}

func (s *Service) workerSamples() []metrics.Sample {
	schedulable, incomplete, tracked := 0, 0, 0
	for _, w := range s.catalog.List(nil, nil) {
		switch {
		case w.Tracked:
			tracked++
		case w.Lifecycle == catalog.Schedulable:
			schedulable++
		default:
			incomplete++
		}
	}
	return []metrics.Sample{
		sample(schedulable, catalog.Schedulable),
		sample(incomplete, catalog.Incomplete),
		sample(tracked, "tracked"), // complete as it is: of the slot tracker
	}
}

func (s *Service) queued() (requests, tokens float64) {
	for _, p := range *s.pools.Load() {
		r, t := p.line.pending()
		requests += float64(r)
		tokens += float64(t)
	}
	return requests, tokens
}
