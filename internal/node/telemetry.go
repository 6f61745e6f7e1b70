package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/engines/load"
	"github.com/select-service/select-service/internal/engines/reports"
	"github.com/select-service/select-service/internal/telemetry"
	"github.com/select-service/select-service/pkg/recovery"
)

// Collectors returns the collectors of the service's metrics. With dynamoAliases some numbers
// are also shown under the names that dynamo.indexer 1.6.1 has for them.
func (s *Service) Collectors(dynamoAliases bool) []prometheus.Collector {
	uses, publishers := &s.UseCases, s.conductor.Registry()
	full := saturations{core: s.core, thresholds: uses.Thresholds(), reports: s.reports}
	all := []prometheus.Collector{
		telemetry.Workers{Ready: uses.Ready, Selections: uses.Selections(), Thresholds: uses.Thresholds()},
		telemetry.Ranks{Catalog: s.catalog, Scopes: s.scopes, Ledger: s.ledger, Thresholds: uses.Thresholds()},
		telemetry.Scopes{Registry: s.scopes},
		telemetry.Decisions{Registry: s.scopes, Errors: uses.TTFTErrors()},
		telemetry.Reservations{Ledger: s.ledger, Remembered: s.remembered, SessionsFull: s.UseCases.SessionsFull},
		uses.Selections(),
		telemetry.Events{Streams: s.allStreams(), Lag: s.lag},
		telemetry.Conductor{Registry: publishers},
		load.Collector{Streams: s.loads.streams, Scraper: s.loads.scraper},
		telemetry.Engines{Counts: func() telemetry.EngineCounts { return engineCounts(s.reports) }},
		telemetry.Saturations{All: full.all},
		telemetry.Fairness{Registry: s.scopes},
		telemetry.Predictions{Catalog: s.catalog, Learners: s.learners.All},
	}
	if s.describer != nil {
		all = append(all, telemetry.Descriptions{Asked: s.describer.counts})
	}
	if s.replica != nil {
		all = append(all, telemetry.Replicas{Replica: s.replica, Malformed: s.config.Replication.Malformed})
	}
	if s.recovery != nil {
		all = append(all, s.recovery.collector())
	}
	if dynamoAliases {
		all = append(all, telemetry.DynamoIndexer{Catalog: s.catalog, Scopes: s.scopes, Conductor: publishers, Streams: s.allStreams()})
	}
	return all
}

func engineCounts(of *reports.Reports) telemetry.EngineCounts {
	n := of.Counts()
	return telemetry.EngineCounts{
		Fresh: n.Fresh, Stale: n.Stale,
		Stalled: n.Excluded[reports.Stalled], Silent: n.Excluded[reports.Silent],
		BecameStalled: n.Became[reports.Stalled], BecameSilent: n.Became[reports.Silent],
		AllExcluded: n.AllExcluded, Unused: n.Unused,
	}
}

func (s *Service) allStreams() telemetry.Streams {
	return telemetry.Streams{Workers: s.streams, Conductor: s.conductor.Streams()}
}

// newWatcher returns the log watcher that Run runs.
func (s *Service) newWatcher() *telemetry.Watcher {
	return telemetry.NewWatcher(s.catalog, s.scopes, s.allStreams(), &s.observer, s.conductor.Registry(), s.UseCases.Selections(), s.log)
}

// remembered yields the number of entries of each kind of state that is kept for later
// requests, and of requests that wait for it.
func (s *Service) remembered(yield func(kind string, n int) bool) {
	r := s.UseCases.Remembered()
	if !yield("answers", r.Answers) || !yield("selections", r.Pending) {
		return
	}
	if r.HasSessions && (!yield("sessions", r.Sessions) || !yield("session_groups", r.Groups) || !yield("session_waiters", r.SessionWaiters)) {
		return
	}
	if x := s.scopes.Approximate(); x != nil {
		yield("predicted_blocks", x.Blocks())
	}
}

// collector returns the collector of the recovery's progress.
func (r *indexRecovery) collector() telemetry.Recovery {
	stages := make([]string, numRecoveryStages)
	for stage := range stages {
		stages[stage] = RecoveryStage(stage).String()
	}
	return telemetry.Recovery{Stages: stages, Progress: func() (string, recovery.Report) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.status.Stage.String(), r.reportLocked()
	}}
}
