package catalog

import "slices"

// Lifecycle tells whether a worker may be chosen; its values are the words of
// the wire contract.
type Lifecycle = string

// The states of a worker.
const (
	Incomplete    Lifecycle = "incomplete"    // something is missing or in conflict: see Reasons
	Schedulable   Lifecycle = "schedulable"   // its ranks are candidates
	Draining      Lifecycle = "draining"      // its ranks are being taken away
	Unschedulable Lifecycle = "unschedulable" // deleted
)

// Worker is a registered worker at one moment. It never changes: the next
// change of the catalog makes a new one.
type Worker struct {
	Record
	Lifecycle Lifecycle
	// Reasons tell why the worker is incomplete; empty in every other state.
	Reasons []string
	// Tracked: registered through the slot tracker. Such a worker is always
	// incomplete, with a reason that says so.
	Tracked bool
}

// HasTaint tells whether the worker has the taint. It searches a sorted list
// and does not allocate.
func (w *Worker) HasTaint(taint string) bool {
	_, ok := slices.BinarySearch(w.Taints, taint)
	return ok
}

// withLifecycle returns the worker in another state, without reasons.
func (w *Worker) withLifecycle(l Lifecycle) *Worker {
	return &Worker{Record: w.Record, Lifecycle: l}
}
