package node

import (
	"github.com/select-service/select-service/internal/node/statefile"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/internal/workers"
	"github.com/select-service/select-service/pkg/catalog"
)

// readiness has the use cases about the start of a process: when it serves, and what it waits for.
type readiness struct {
	catalog  *catalog.Catalog
	scopes   *scopes.Registry
	store    workers.Store
	recovery *indexRecovery   // nil: none is configured
	state    *statefile.State // nil: there is none on disk
}

// Ready reports whether requests can be served: at least one worker of any scope is schedulable,
// no recovery or snapshot on disk is awaited, and the service is not shutting down.
func (r *readiness) Ready() (ready bool, schedulable int, workers []*catalog.Worker) {
	settled, schedulable := r.settled()
	return settled && schedulable > 0, schedulable, r.catalog.List(nil, nil)
}

// Settled is Ready without the condition on workers: there may be none yet, and requests are
// then refused for that reason.
func (r *readiness) Settled() bool {
	settled, _ := r.settled()
	return settled
}

func (r *readiness) settled() (settled bool, schedulable int) {
	schedulable = r.catalog.CountSchedulable()
	awaited := r.store.Awaited() || r.recovery.awaited(schedulable) || r.state.Awaited()
	return !r.scopes.Closing() && !awaited, schedulable
}

// Recovery returns the progress of the recovery, and false if none is configured.
func (r *readiness) Recovery() (RecoveryStatus, bool) {
	if r.recovery == nil {
		return RecoveryStatus{}, false
	}
	status := r.recovery.show()
	status.Loads = LoadsStage(r.recovery.loads.Load())
	return status, true
}

// Recovering reports whether blocks may still come from peers.
func (r *readiness) Recovering() bool {
	if r.recovery == nil {
		return false
	}
	stage := r.recovery.show().Stage
	return stage == RecoveryFetching || stage == RecoveryDeadline
}
