package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"time"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/settings"
	"github.com/select-service/select-service/internal/workers"
	"github.com/select-service/select-service/pkg/catalog"
)

// Store is the workers.Store of a replica: a change is made in the fleet's catalog, which then makes it in
// every replica. It is refused with an error of the kind contract.Away while NATS is away.
type Store struct {
	catalog *Catalog
	here    *workers.Changes
	drains  drainClock
}

// Store returns the store of this replica's workers. There is one for a catalog, and it is attached before
// Run is called.
func (c *Catalog) Store() *Store { return &Store{catalog: c} }

// Attach implements workers.Store.
func (s *Store) Attach(here *workers.Changes) {
	s.here = here
	s.catalog.config.Local, s.catalog.config.Apply = here.Catalog, here.Replace
}

// Edit implements workers.Store.
func (s *Store) Edit(change workers.Change) (*catalog.Worker, error) {
	var w *catalog.Worker
	behind, err := s.catalog.Edit(func(c *catalog.Catalog) (err error) {
		w, err = change(c)
		return err
	})
	if err != nil {
		return nil, asError(err)
	}
	if now := s.here.Catalog().WorkerIn(catalog.ScopeFilter{}, w.ID); now != nil && w.Lifecycle != catalog.Unschedulable {
		w = now // as it is here
	}
	if len(behind) > 0 {
		late := *w
		late.Behind, w = behind, &late
	}
	return w, nil
}

// Replace implements workers.Store. The set of a workers file is not applied if it was the last one of a
// file that was, see Catalog.EditFile.
func (s *Store) Replace(set catalog.Set) (d catalog.Difference, err error) {
	d.Unchanged = len(set.Records) // if the file's set is not applied again
	change := func(c *catalog.Catalog) (err error) {
		d, err = c.Reconcile(set)
		return err
	}
	var behind []string
	if set.Kind == catalog.SourceFile {
		var text []byte
		if text, err = json.Marshal(struct {
			Scope   catalog.ScopeFilter
			Records []catalog.Record
		}{set.Scope, set.Records}); err != nil {
			return d, err
		}
		sum := sha256.Sum256(text)
		behind, err = s.catalog.EditFile(hex.EncodeToString(sum[:]), change)
	} else {
		behind, err = s.catalog.Edit(change)
	}
	if err != nil {
		return catalog.Difference{}, asError(err)
	}
	d.Behind = behind
	return d, nil
}

// Compare implements workers.Store.
func (s *Store) Compare(set catalog.Set) (d catalog.Difference, err error) {
	err = s.catalog.Try(func(c *catalog.Catalog) (err error) {
		d, err = c.Compare(set)
		return err
	})
	return d, asError(err)
}

// RemoveDrained implements workers.Store.
func (s *Store) RemoveDrained(w *catalog.Worker, removed func()) {
	is := false
	s.catalog.Submit(func(c *catalog.Catalog) error {
		now := c.WorkerIn(catalog.ScopeFilter{}, w.ID)
		is = now != nil && now.Drain != nil && now.Drain.Deadline.Equal(w.Drain.Deadline) && c.RemoveDrained(now)
		return nil
	}, func() {
		if is {
			removed()
		}
	})
}

// Deadlines implements workers.Store.
func (s *Store) Deadlines(drained []*catalog.Worker, now time.Time) []time.Time {
	return s.drains.deadlines(drained, now, s.catalog.Settled())
}

// Look implements workers.Store.
func (s *Store) Look() { s.catalog.Look() }

// Awaited implements workers.Store.
func (s *Store) Awaited() bool { return s.catalog.Awaited() }

// Settled implements workers.Store.
func (s *Store) Settled() bool { return s.catalog.Settled() }

// SettingsStore is the settings.Store of a replica whose settings are the fleet's.
type SettingsStore struct{ catalog *Catalog }

// SettingsStore returns the store of the settings that the replicas share. Without a call, each has its own.
// It is attached before Run is called.
func (c *Catalog) SettingsStore() *SettingsStore { return &SettingsStore{c} }

// Attach implements settings.Store.
func (s *SettingsStore) Attach(here settings.Process) {
	s.catalog.config.Thresholds, s.catalog.config.Policies = here.Thresholds, here.Apply
}

// Edit implements settings.Store.
func (s *SettingsStore) Edit(change func(*settings.Settings) error) (behind []string, err error) {
	behind, err = s.catalog.EditSettings(change)
	return behind, asError(err)
}

// Version implements settings.Store.
func (s *SettingsStore) Version() uint64 { return s.catalog.Status().Settings }

// asError converts the errors of a change that cannot be made, now or at all, to those of package contract,
// and returns the others.
func asError(err error) error {
	var limit *catalog.LimitError
	switch {
	case errors.As(err, &limit):
		return contract.CatalogLimit(limit)
	case errors.Is(err, catalog.ErrShuttingDown):
		return contract.ErrShuttingDown
	case errors.Is(err, ErrAway), errors.Is(err, ErrBusy):
		return &contract.Error{Kind: contract.Away, Text: err.Error(), Reason: "fleet_away", Err: err}
	}
	return err
}
