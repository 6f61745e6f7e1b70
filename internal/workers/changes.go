package workers

import (
	"github.com/select-service/select-service/pkg/catalog"
)

// Scopes has what belongs to the workers of a catalog: their blocks, their reservations, their event
// streams and their loads. See scopes.Registry.
type Scopes interface {
	// Change makes a change of the catalog's workers.
	Change(change func())
}

// Changes applies changes of workers to this process: to its catalog, which has the scopes attach and
// detach what belongs to a worker, and then to those who follow the workers. All changes pass here. Its
// methods are safe for concurrent use.
type Changes struct {
	catalog *catalog.Catalog
	scopes  Scopes
	model   func(name string)
	changed func()
}

// NewChanges returns the changes of a catalog with its scopes. model is called with the model of every
// worker that a change has given, and changed after every change.
func NewChanges(c *catalog.Catalog, scopes Scopes, model func(name string), changed func()) *Changes {
	return &Changes{catalog: c, scopes: scopes, model: model, changed: changed}
}

// Catalog returns the catalog of this process, for reading.
func (c *Changes) Catalog() *catalog.Catalog { return c.catalog }

// Edit makes a change of one worker and returns it; nil: it is removed. Errors are those of the change.
func (c *Changes) Edit(change Change) (w *catalog.Worker, err error) {
	c.scopes.Change(func() {
		if w, err = change(c.catalog); w != nil {
			c.model(w.Scope.Model)
		}
	})
	c.changed()
	return w, err
}

// Replace replaces the workers of a source, see catalog.Catalog.Reconcile.
func (c *Changes) Replace(set catalog.Set) (d catalog.Difference, err error) {
	c.scopes.Change(func() {
		if d, err = c.catalog.Reconcile(set); err != nil {
			return
		}
		last := ""
		for i := range set.Records {
			if model := set.Records[i].Scope.Model; model != last {
				c.model(model)
				last = model
			}
		}
	})
	c.changed()
	return d, err
}

// Describe gives a worker what its engine says of itself, see catalog.Catalog.Describe.
func (c *Changes) Describe(w *catalog.Worker, reported *catalog.Description, fault string) (now *catalog.Worker, changed bool) {
	c.scopes.Change(func() {
		if now, changed = c.catalog.Describe(w, reported, fault); changed {
			c.model(now.Scope.Model)
		}
	})
	return now, changed
}

// CorrectBlockSize gives a worker the block size of its engine's events, see
// catalog.Catalog.CorrectBlockSize.
func (c *Changes) CorrectBlockSize(w *catalog.Worker, size uint32) (changed bool) {
	c.scopes.Change(func() { _, changed = c.catalog.CorrectBlockSize(w, size) })
	return changed
}

// RemoveDrained removes a worker that an operator drains, and reports whether it was as it is given.
func (c *Changes) RemoveDrained(w *catalog.Worker) (removed bool) {
	c.scopes.Change(func() { removed = c.catalog.RemoveDrained(w) })
	return removed
}
