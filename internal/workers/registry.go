package workers

import (
	"errors"
	"fmt"
	"time"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
)

// Registry has the use cases about workers: who registers, changes, drains and removes them. Errors are
// of package contract.
type Registry struct {
	store Store
	here  *Changes
	given Given
}

// Given says what defines the workers, so that nobody replaces their whole set over the API.
type Given struct {
	File string // path of the workers file, "" for none
	List bool   // a list of engines
}

// NewRegistry returns the registry of a process. It attaches the store.
func NewRegistry(store Store, here *Changes, given Given) *Registry {
	store.Attach(here)
	return &Registry{store: store, here: here, given: given}
}

// PutWorker registers a worker or replaces its record.
func (r *Registry) PutWorker(of catalog.Record) (*catalog.Worker, error) {
	return r.PutWorkerIn(catalog.ScopeFilter{}, of)
}

// PatchWorker changes the given fields of a worker.
func (r *Registry) PatchWorker(id uint64, p catalog.Patch) (*catalog.Worker, error) {
	return r.PatchWorkerIn(catalog.ScopeFilter{}, id, p)
}

// DeleteWorker removes a worker, its blocks and its reservations.
func (r *Registry) DeleteWorker(id uint64) (*catalog.Worker, error) {
	return r.DeleteWorkerIn(catalog.ScopeFilter{}, id)
}

// PutWorkerIn is PutWorker for a caller that may change only the workers of matching scopes,
// see catalog.Catalog.PutIn.
func (r *Registry) PutWorkerIn(own catalog.ScopeFilter, of catalog.Record) (*catalog.Worker, error) {
	return r.edit(func(c *catalog.Catalog) (*catalog.Worker, error) { return c.PutIn(own, of) })
}

// PatchWorkerIn is PatchWorker among the workers of matching scopes.
func (r *Registry) PatchWorkerIn(own catalog.ScopeFilter, id uint64, p catalog.Patch) (*catalog.Worker, error) {
	return r.edit(func(c *catalog.Catalog) (*catalog.Worker, error) { return c.PatchIn(own, id, p) })
}

// DeleteWorkerIn is DeleteWorker among the workers of matching scopes.
func (r *Registry) DeleteWorkerIn(own catalog.ScopeFilter, id uint64) (*catalog.Worker, error) {
	return r.edit(func(c *catalog.Catalog) (*catalog.Worker, error) { return c.DeleteIn(own, id) })
}

// DrainWorkerIn makes a worker among those of matching scopes drain: it gets no new work. A
// worker of the API is removed once it has had no reservation for a second, and at the latest
// after the given time; nil: there is no such limit. See catalog.Catalog.Drain.
func (r *Registry) DrainWorkerIn(own catalog.ScopeFilter, id uint64, within *time.Duration) (*catalog.Worker, error) {
	var d catalog.Drain
	if within != nil {
		d.Deadline, d.Within = time.Now().Add(*within), max(*within, 1)
	}
	return r.editDrain(id, func(c *catalog.Catalog) (*catalog.Worker, error) { return c.Drain(own, id, d) })
}

// UndrainWorkerIn takes DrainWorkerIn back.
func (r *Registry) UndrainWorkerIn(own catalog.ScopeFilter, id uint64) (*catalog.Worker, error) {
	return r.editDrain(id, func(c *catalog.Catalog) (*catalog.Worker, error) { return c.Undrain(own, id) })
}

// editDrain changes whether a worker drains. A discovered one is none of the store's.
func (r *Registry) editDrain(id uint64, change Change) (*catalog.Worker, error) {
	if w := r.here.catalog.WorkerIn(catalog.ScopeFilter{}, id); w != nil && w.Source.KindOrAPI().Discovered() {
		return r.editHere(change)
	}
	return r.edit(change)
}

func (r *Registry) edit(change Change) (*catalog.Worker, error) {
	w, err := r.store.Edit(change)
	return w, AsError(err)
}

// editHere makes a change of a worker that no store keeps.
func (r *Registry) editHere(change Change) (*catalog.Worker, error) {
	w, err := r.here.Edit(change)
	return w, AsError(err)
}

// PutTracked adds a worker that carries load but is never selected.
func (r *Registry) PutTracked(of catalog.TrackedRecord) error {
	_, err := r.editHere(func(c *catalog.Catalog) (*catalog.Worker, error) { return c.PutTracked(of) })
	return err
}

// DeleteTracked removes such a worker and its reservations.
func (r *Registry) DeleteTracked(sc catalog.Scope, worker uint64) error {
	_, err := r.editHere(func(c *catalog.Catalog) (*catalog.Worker, error) { return nil, c.DeleteTracked(sc, worker) })
	return err
}

// Workers lists the catalog by model, tenant and id; nil matches all.
func (r *Registry) Workers(model, tenant *string) []*catalog.Worker {
	return r.here.catalog.List(model, tenant)
}

// FileError refuses a set of workers because a file defines them.
type FileError struct{ Path string }

// Error names the file.
func (e *FileError) Error() string { return "workers are managed by --workers-file " + e.Path }

// TakesSet returns a Conflict if ReconcileWorkers cannot replace the set of workers because a
// workers file or a list of engines defines it, else nil.
func (r *Registry) TakesSet() error {
	switch {
	case r.given.File != "":
	case r.given.List:
		return contract.Errorf(contract.Conflict, "workers are managed by --engines")
	default:
		return nil
	}
	err := &FileError{r.given.File}
	return &contract.Error{Kind: contract.Conflict, Text: err.Error(), Err: err}
}

// ReconcileWorkers replaces all workers of the chosen scopes by the given ones (decision E5),
// see catalog.Catalog.Reconcile. The error of an entry names the entry; nothing is changed
// then. See TakesSet.
func (r *Registry) ReconcileWorkers(records []catalog.Record, scope catalog.ScopeFilter) (catalog.Difference, error) {
	if err := r.TakesSet(); err != nil {
		return catalog.Difference{}, err
	}
	return r.ReplaceWorkers(catalog.Set{Kind: catalog.SourceAPI, Records: records, Scope: scope})
}

// CompareWorkers returns what ReconcileWorkers would return, and changes nothing.
func (r *Registry) CompareWorkers(records []catalog.Record, scope catalog.ScopeFilter) (catalog.Difference, error) {
	if err := r.TakesSet(); err != nil {
		return catalog.Difference{}, err
	}
	d, err := r.store.Compare(catalog.Set{Kind: catalog.SourceAPI, Records: records, Scope: scope})
	return d, asEntryError(err)
}

// ReplaceWorkers replaces the workers of a source, see catalog.Catalog.Reconcile. Discovered ones are of
// this process alone. It is Apply.
func (r *Registry) ReplaceWorkers(set catalog.Set) (d catalog.Difference, err error) {
	if set.Kind.Discovered() {
		d, err = r.here.Replace(set)
	} else {
		d, err = r.store.Replace(set)
	}
	return d, asEntryError(err)
}

// Describe gives a worker what its engine says of itself, see catalog.Catalog.Describe.
func (r *Registry) Describe(w *catalog.Worker, reported *catalog.Description, fault string) (now *catalog.Worker, changed bool) {
	if now, changed = r.here.Describe(w, reported, fault); changed {
		r.store.Look()
	}
	return now, changed
}

// CorrectBlockSize gives a worker the block size of its engine's events, see
// catalog.Catalog.CorrectBlockSize.
func (r *Registry) CorrectBlockSize(w *catalog.Worker, size uint32) (changed bool) {
	if changed = r.here.CorrectBlockSize(w, size); changed {
		r.store.Look()
	}
	return changed
}

// AsError converts errors of catalogs to contract errors with a kind.
func AsError(err error) error {
	var bad *catalog.InvalidError
	var exists *catalog.ExistsError
	var mismatch *catalog.BlockSizeError
	var untracked *catalog.NotTrackedError
	var managed *catalog.ManagedError
	var limit *catalog.LimitError
	var ready *contract.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &ready):
		return err
	case errors.As(err, &limit):
		return contract.CatalogLimit(limit)
	case errors.Is(err, catalog.ErrShuttingDown):
		return contract.ErrShuttingDown
	case errors.As(err, &untracked):
		return &contract.Error{Kind: contract.NotFound, Text: fmt.Sprintf("worker %d not found", untracked.ID), Scope: new(untracked.Scope.Short()), Err: err}
	case errors.Is(err, catalog.ErrNotFound):
		return &contract.Error{Kind: contract.NotFound, Text: err.Error(), Err: err}
	case errors.As(err, &exists):
		return &contract.Error{Kind: contract.Conflict, Text: fmt.Sprintf("worker %d already registered", exists.ID), Scope: &exists.Scope, Err: err}
	case errors.As(err, &mismatch):
		return &contract.Error{
			Kind: contract.Conflict, Text: "block_size mismatch", Scope: &mismatch.Scope,
			Tail: fmt.Sprintf(": existing=%d, requested=%d", mismatch.Existing, mismatch.Requested), Err: err,
		}
	case errors.As(err, &managed):
		return &contract.Error{Kind: contract.Managed, Text: err.Error(), Err: err}
	case errors.As(err, &bad):
		return &contract.Error{Kind: contract.BadRequest, Text: err.Error(), Err: err}
	}
	return &contract.Error{Kind: contract.Internal, Text: "internal error", Err: err}
}

// asEntryError is AsError for errors that may be about one entry of a set.
func asEntryError(err error) error {
	entry, ok := errors.AsType[*catalog.EntryError](err)
	if !ok {
		return AsError(err)
	}
	cause, ok := errors.AsType[*contract.Error](AsError(entry.Err))
	if !ok {
		return AsError(err)
	}
	e := *cause
	e.Text = fmt.Sprintf("workers[%d]: %s", entry.Index, cause.Text)
	e.Err = err
	return &e
}
