package workers

import (
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// Change changes one worker of a catalog and returns it; nil: it is removed. It may be called several
// times, each time with a catalog as if the times before had not been.
type Change func(c *catalog.Catalog) (*catalog.Worker, error)

// Store keeps the workers of the API and of the workers file: for a process alone, see NewAlone, or for
// all replicas of a fleet, see package fleet. Its methods but Attach and Deadlines are safe for concurrent
// use.
type Store interface {
	// Attach gives the store the workers of this process. It is called once, before any other method.
	Attach(here *Changes)
	// Edit makes a change of one worker and returns it as it is in this process. Its field Behind names
	// the live replicas that do not have it yet.
	Edit(change Change) (*catalog.Worker, error)
	// Replace replaces the workers of a source that is not catalog.SourceKind.Discovered, see
	// catalog.Catalog.Reconcile.
	Replace(set catalog.Set) (catalog.Difference, error)
	// Compare returns what Replace would return, and changes nothing.
	Compare(set catalog.Set) (catalog.Difference, error)
	// RemoveDrained removes a worker that drains and is as it was, and calls removed once it has.
	RemoveDrained(w *catalog.Worker, removed func())
	// Deadlines returns when each of all workers that drain is removed at the latest, by the clock of this
	// process; zero: when it is empty. Only one goroutine calls it.
	Deadlines(drained []*catalog.Worker, now time.Time) []time.Time
	// Look says that workers of this process have changed by themselves, so that others may contradict
	// them now.
	Look()
	// Awaited reports whether a start still waits for the workers.
	Awaited() bool
	// Settled reports whether the workers are those that all live replicas have.
	Settled() bool
}

// alone is the Store of a process whose workers are its own.
type alone struct{ *Changes }

// NewAlone returns the Store of a process whose workers are its own.
func NewAlone() Store { return new(alone) }

func (a *alone) Attach(here *Changes) { a.Changes = here }

func (a *alone) Compare(set catalog.Set) (catalog.Difference, error) { return a.catalog.Compare(set) }

func (a *alone) RemoveDrained(w *catalog.Worker, removed func()) {
	if a.Changes.RemoveDrained(w) {
		removed()
	}
}

func (a *alone) Deadlines(drained []*catalog.Worker, _ time.Time) []time.Time {
	all := make([]time.Time, len(drained))
	for i, w := range drained {
		all[i] = w.Drain.Deadline
	}
	return all
}

func (a *alone) Look() {}

func (a *alone) Awaited() bool { return false }

func (a *alone) Settled() bool { return true }
