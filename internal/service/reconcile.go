package service

import (
	"errors"
	"fmt"

	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/pkg/catalog"
)

// WorkersFileError refuses a set of workers because a file has the say.
type WorkersFileError struct{ Path string }

// Error names the file.
func (e *WorkersFileError) Error() string {
	return "workers are managed by --workers-file " + e.Path
}

// TakesSet tells whether ReconcileWorkers can take any set of workers: with a
// workers file the error is a Conflict.
func (s *Service) TakesSet() error {
	if s.config.WorkersFile == "" {
		return nil
	}
	err := &WorkersFileError{s.config.WorkersFile}
	return &contract.Error{Kind: contract.Conflict, Text: err.Error(), Err: err}
}

// ReconcileWorkers makes the given workers all those of the chosen scopes
// (decision E5), see catalog.Catalog.Reconcile. An error of one entry names it and
// leaves everything as it was. See TakesSet.
func (s *Service) ReconcileWorkers(records []catalog.Record, scope catalog.ScopeFilter) (catalog.Difference, error) {
	if err := s.TakesSet(); err != nil {
		return catalog.Difference{}, err
	}
	return s.ReplaceWorkers(records, scope)
}

// ReplaceWorkers is ReconcileWorkers for the workers file.
func (s *Service) ReplaceWorkers(records []catalog.Record, scope catalog.ScopeFilter) (d catalog.Difference, err error) {
	s.changeWorkers(func() {
		if d, err = s.catalog.Reconcile(records, scope); err != nil {
			return
		}
		last := ""
		for i := range records {
			if model := records[i].Scope.Model; model != last {
				s.selections.Add(model)
				last = model
			}
		}
	})
	return d, asEntryError(err)
}

// asEntryError is asError for errors that may be about one entry of a set.
func asEntryError(err error) error {
	entry, ok := errors.AsType[*catalog.EntryError](err)
	if !ok {
		return asError(err)
	}
	cause, ok := errors.AsType[*contract.Error](asError(entry.Err))
	if !ok {
		return asError(err)
	}
	e := *cause
	e.Text = fmt.Sprintf("workers[%d]: %s", entry.Index, cause.Text)
	e.Err = err
	return &e
}
