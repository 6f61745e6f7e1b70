package service

import (
	"iter"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/overload"
	"github.com/select-service/select-service/internal/telemetry"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/recovery"
	"github.com/select-service/select-service/pkg/reservations"
)

// Collectors returns the collectors of the service's metrics. With dynamoAliases
// numbers of this service are shown a second time, under the names that
// dynamo.indexer 1.6.1 has for them.
func (s *Service) Collectors(dynamoAliases bool) []prometheus.Collector {
	publishers := s.conductor.Registry()
	all := []prometheus.Collector{
		telemetry.Workers{Ready: s.Ready, Selections: s.selections, Thresholds: s.busy, Capacity: capacityOf},
		telemetry.Ranks{
			Catalog: s.catalog, Scopes: s.scopes, Ledger: s.ledger, Thresholds: s.busy,
			Overloaded: overloadedWorkers, Capacity: capacityOf,
		},
		telemetry.Scopes{Registry: s.scopes},
		telemetry.Reservations{Ledger: s.ledger, Remembered: s.remembered},
		s.selections,
		telemetry.Events{Streams: s.allStreams(), Lag: s.lag},
		telemetry.Conductor{Registry: publishers},
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

func (s *Service) allStreams() telemetry.Streams {
	return telemetry.Streams{Workers: s.streams, Conductor: s.conductor.Streams()}
}

// newWatcher returns the log watcher that Run runs.
func (s *Service) newWatcher() *telemetry.Watcher {
	return telemetry.NewWatcher(s.catalog, s.scopes, s.allStreams(), s.conductor.Registry(), s.selections, s.log)
}

// remembered yields how much of each kind is kept for callers that come back, and
// how many wait for that.
func (s *Service) remembered(yield func(kind string, n int) bool) {
	selections, _ := s.kept.Stats()
	if !yield("answers", s.first.count()) || !yield("selections", selections) {
		return
	}
	if s.sessions != nil && (!yield("sessions", s.sessions.Len()) || !yield("session_waiters", s.sessions.Waiting())) {
		return
	}
	if s.approximate != nil {
		yield("predicted_blocks", s.approximate.Blocks())
	}
}

// overloadedWorkers yields the workers of a list of ranks, which is in order, and
// whether each is overloaded. The ledger must be locked.
func overloadedWorkers(limits *overload.Thresholds, ranks []catalog.Entry, v *reservations.View) iter.Seq2[*catalog.Worker, bool] {
	return func(yield func(*catalog.Worker, bool) bool) {
		for of := range byWorker(ranks) {
			if !yield(of[0].Worker, overloadOf(limits, of, v) != 0) {
				return
			}
		}
	}
}

// collector shows how far the recovery has come.
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
