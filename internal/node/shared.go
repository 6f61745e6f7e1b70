package node

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"time"

	"github.com/select-service/select-service/internal/fleet"
	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/overload"
	"github.com/select-service/select-service/pkg/catalog"
)

// SharedCatalog shares the workers of the API and of the workers file with the other replicas of a
// fleet, see fleet.Catalog.
type SharedCatalog interface {
	Edit(fleet.Change) (behind []string, err error)
	Try(fleet.Change) error
	EditFile(digest string, change fleet.Change) (behind []string, err error)
	EditSettings(change func(*fleet.Settings) error) (behind []string, err error)
	Submit(change fleet.Change, made func())
	Look()
	Awaited() bool
	// Settled reports whether the catalog was read, and every live replica of the fleet heard.
	Settled() bool
}

// edit makes a change of a worker of the API: in the catalog of the fleet, if there is one, else in
// that of this process.
func (s *Service) edit(change func(*catalog.Catalog) (*catalog.Worker, error)) (*catalog.Worker, error) {
	if s.config.Shared == nil {
		return s.register(func() (*catalog.Worker, error) { return change(s.catalog) })
	}
	var w *catalog.Worker
	behind, err := s.config.Shared.Edit(func(c *catalog.Catalog) (err error) {
		w, err = change(c)
		return err
	})
	if err != nil {
		return nil, asError(err)
	}
	if now := s.catalog.WorkerIn(catalog.ScopeFilter{}, w.ID); now != nil && w.Lifecycle != catalog.Unschedulable {
		w = now // as it is here
	}
	if len(behind) > 0 {
		late := *w
		late.Behind, w = behind, &late
	}
	return w, nil
}

// editSet is ReplaceWorkers for the workers that a fleet shares.
func (s *Service) editSet(set catalog.Set) (d catalog.Difference, err error) {
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
		behind, err = s.config.Shared.EditFile(hex.EncodeToString(sum[:]), change)
	} else {
		behind, err = s.config.Shared.Edit(change)
	}
	if err != nil {
		return catalog.Difference{}, asEntryError(err)
	}
	d.Behind = behind
	return d, nil
}

// ApplyShared makes a set the workers of the API and of the workers file. It is for the catalog of a
// fleet.
func (s *Service) ApplyShared(set catalog.Set) (catalog.Difference, error) {
	return s.replaceWorkers(set)
}

// removeDrained removes a worker that an operator drains and that is as it was, and calls removed if
// it has.
func (s *Service) removeDrained(w *catalog.Worker, removed func()) {
	is := false
	if s.config.Shared == nil {
		if s.scopes.Change(func() { is = s.catalog.RemoveDrained(w) }); is {
			removed()
		}
		return
	}
	s.config.Shared.Submit(func(c *catalog.Catalog) error {
		now := c.WorkerIn(catalog.ScopeFilter{}, w.ID)
		is = now != nil && now.Drain != nil && now.Drain.Deadline.Equal(w.Drain.Deadline) && c.RemoveDrained(now)
		return nil
	}, func() {
		if is {
			removed()
		}
	})
}

// managedHere reports whether a worker is of a source of this process alone, whatever the fleet has.
func (s *Service) managedHere(id uint64) bool {
	w := s.catalog.WorkerIn(catalog.ScopeFilter{}, id)
	return w != nil && w.Source.KindOrAPI().Discovered()
}

// sharedError returns the error of a catalog, the fleet's or this process's, that cannot be changed now, or
// where a limit is reached; nil for another one.
func sharedError(err error) error {
	if limit, is := errors.AsType[*catalog.LimitError](err); is {
		return contract.CatalogLimit(limit)
	}
	if errors.Is(err, catalog.ErrShuttingDown) {
		return contract.ErrShuttingDown
	}
	if !errors.Is(err, fleet.ErrAway) && !errors.Is(err, fleet.ErrBusy) {
		return nil
	}
	return &contract.Error{Kind: contract.Away, Text: err.Error(), Reason: "fleet_away", Err: err}
}

// drainOf returns the drain of a worker that begins now.
func drainOf(within *time.Duration) (d catalog.Drain) {
	if within != nil {
		d.Deadline, d.Within = time.Now().Add(*within), max(*within, 1)
	}
	return d
}

// SetBusyThreshold is selection.API's, for all replicas of a fleet that shares its settings.
func (s *Service) SetBusyThreshold(model string, given overload.Thresholds) (selection.ModelThresholds, error) {
	if !s.config.SharedSettings || !given.Any() {
		return s.API.SetBusyThreshold(model, given)
	}
	return s.editThresholds(func(t *overload.Table) (now selection.ModelThresholds, err error) {
		return s.SetBusyThresholdIn(t, model, given)
	})
}

// ClearBusyThreshold is selection.API's, for all replicas of a fleet that shares its settings.
func (s *Service) ClearBusyThreshold(model string, which *string) (selection.ModelThresholds, error) {
	if !s.config.SharedSettings {
		return s.API.ClearBusyThreshold(model, which)
	}
	return s.editThresholds(func(t *overload.Table) (selection.ModelThresholds, error) {
		return s.ClearBusyThresholdIn(t, model, which)
	})
}

func (s *Service) editThresholds(change func(*overload.Table) (selection.ModelThresholds, error)) (now selection.ModelThresholds, err error) {
	_, err = s.config.Shared.EditSettings(func(to *fleet.Settings) (err error) {
		now, err = change(to.Thresholds)
		return err
	})
	if shared := sharedError(err); shared != nil {
		err = shared
	}
	return now, err
}
