package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/select-service/select-service/internal/engines/load"
	"github.com/select-service/select-service/internal/engines/reports"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/diagnose"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/internal/telemetry"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/pkg/recovery"
)

// Collectors returns the collectors of the service's metrics. With dynamoAliases some numbers
// are also shown under the names that dynamo.indexer 1.6.1 has for them.
func (s *Service) Collectors(dynamoAliases bool) []prometheus.Collector {
	publishers := s.conductor.Registry()
	all := []prometheus.Collector{
		telemetry.Workers{Ready: s.Ready, Selections: s.Selections(), Thresholds: s.Thresholds(), Capacity: selection.CapacityOf},
		telemetry.Ranks{
			Catalog: s.catalog, Scopes: s.scopes, Ledger: s.ledger, Thresholds: s.Thresholds(),
			Overloaded: selection.OverloadedWorkers, Capacity: selection.CapacityOf,
		},
		telemetry.Scopes{Registry: s.scopes},
		telemetry.Decisions{Registry: s.scopes, Errors: s.TTFTErrors()},
		telemetry.Reservations{Ledger: s.ledger, Remembered: s.remembered},
		s.Selections(),
		telemetry.Events{Streams: s.allStreams(), Lag: s.streams.lag},
		telemetry.Conductor{Registry: publishers},
		load.Collector{Streams: s.loads.streams, Scraper: s.loads.scraper},
		telemetry.Engines{Counts: s.engineCounts},
		telemetry.Saturations{All: s.saturation},
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

func (s *Service) engineCounts() telemetry.EngineCounts {
	n := s.reports.Counts()
	return telemetry.EngineCounts{
		Fresh: n.Fresh, Stale: n.Stale,
		Stalled: n.Excluded[reports.Stalled], Silent: n.Excluded[reports.Silent],
		BecameStalled: n.Became[reports.Stalled], BecameSilent: n.Became[reports.Silent],
		AllExcluded: n.AllExcluded, Unused: n.Unused,
	}
}

func (s *Service) allStreams() telemetry.Streams {
	return telemetry.Streams{Workers: s.streams.Subscribers, Conductor: s.conductor.Streams()}
}

// newWatcher returns the log watcher that Run runs.
func (s *Service) newWatcher() *telemetry.Watcher {
	return telemetry.NewWatcher(s.catalog, s.scopes, s.allStreams(), s.conductor.Registry(), s.Selections(), s.log)
}

// remembered yields the number of entries of each kind of state that is kept for later
// requests, and of requests that wait for it.
func (s *Service) remembered(yield func(kind string, n int) bool) {
	r := s.Remembered()
	if !yield("answers", r.Answers) || !yield("selections", r.Pending) {
		return
	}
	if r.HasSessions && (!yield("sessions", r.Sessions) || !yield("session_waiters", r.SessionWaiters)) {
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

// selectionView is the Service as the Conductor API sees it.
type selectionView struct{ *Service }

// Closing implements conductor.Selection.
func (s selectionView) Closing() bool { return s.scopes.Closing() }

// Scope implements conductor.Selection.
func (s selectionView) Scope(sc catalog.Scope) diagnose.ScopeView {
	state := s.scopes.Of(sc) // before the snapshot; see scopes.Registry.Schedulable
	v := diagnose.ScopeView{Snapshot: s.catalog.Snapshot(sc)}
	if state != nil && v.Snapshot != nil && state.BlockSize == v.BlockSize {
		v.Index, v.Seeds, v.State = state.Space, state.Seeds, state
	}
	return v
}

// Unavailable implements conductor.Selection.
func (s selectionView) Unavailable(sc catalog.Scope) error {
	if _, _, err := s.scopes.Schedulable(sc); err != nil {
		return err
	}
	return scopes.NoWorkers(sc) // the scope has just become schedulable
}

// Diagnose returns where a prompt's match on the workers of a scope breaks, and why; see
// diagnose.Scopes.
func (s *Service) Diagnose(req *diagnose.Request, maxBlocks int) (*diagnose.Diagnosis, error) {
	var streams *kvevents.Subscribers
	if s.config.KVEvents {
		streams = s.streams.Subscribers
	}
	return diagnose.NewScopes(selectionView{s}, streams).Diagnose(req, maxBlocks)
}
