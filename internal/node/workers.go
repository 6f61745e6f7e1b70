package node

import (
	"errors"
	"fmt"
	"slices"

	"github.com/select-service/select-service/internal/selection"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// PutWorker registers a worker or replaces its record.
func (s *Service) PutWorker(r catalog.Record) (*catalog.Worker, error) {
	return s.PutWorkerIn(catalog.ScopeFilter{}, r)
}

// PatchWorker changes the given fields of a worker.
func (s *Service) PatchWorker(id uint64, p catalog.Patch) (*catalog.Worker, error) {
	return s.PatchWorkerIn(catalog.ScopeFilter{}, id, p)
}

// DeleteWorker removes a worker, its blocks and its reservations.
func (s *Service) DeleteWorker(id uint64) (*catalog.Worker, error) {
	return s.DeleteWorkerIn(catalog.ScopeFilter{}, id)
}

// PutWorkerIn is PutWorker for a caller that may change only the workers of matching scopes,
// see catalog.Catalog.PutIn.
func (s *Service) PutWorkerIn(own catalog.ScopeFilter, r catalog.Record) (*catalog.Worker, error) {
	return s.edit(func(c *catalog.Catalog) (*catalog.Worker, error) { return c.PutIn(own, r) })
}

// PatchWorkerIn is PatchWorker among the workers of matching scopes.
func (s *Service) PatchWorkerIn(own catalog.ScopeFilter, id uint64, p catalog.Patch) (*catalog.Worker, error) {
	return s.edit(func(c *catalog.Catalog) (*catalog.Worker, error) { return c.PatchIn(own, id, p) })
}

// DeleteWorkerIn is DeleteWorker among the workers of matching scopes.
func (s *Service) DeleteWorkerIn(own catalog.ScopeFilter, id uint64) (*catalog.Worker, error) {
	return s.edit(func(c *catalog.Catalog) (*catalog.Worker, error) { return c.DeleteIn(own, id) })
}

// register changes one worker of this process's catalog.
func (s *Service) register(change func() (*catalog.Worker, error)) (w *catalog.Worker, err error) {
	s.scopes.Change(func() {
		if w, err = change(); w != nil {
			s.Selections().Add(w.Scope.Model)
		}
	})
	s.describer.look()
	return w, asError(err)
}

// Workers lists the catalog by model, tenant and id; nil matches all.
func (s *Service) Workers(model, tenant *string) []*catalog.Worker {
	return s.catalog.List(model, tenant)
}

// EventsBlockSize returns the block size of the KV events of a worker's engine if it is another one
// than the worker's, so that none of them can be used; else 0.
func (s *Service) EventsBlockSize(w *catalog.Worker) uint32 {
	for i := range w.RankCount() {
		if st, ok := s.streams.Stream(catalog.Rank{Worker: w.ID, DP: w.FirstRank() + i}); ok && st.OtherBlockSize > 0 {
			return st.OtherBlockSize
		}
	}
	return 0
}

// Excluded lists the ranks of a worker that get no new requests because their engines give no sign
// of life, by rank.
func (s *Service) Excluded(w *catalog.Worker) (list []selection.ExcludedRank) {
	for of, x := range s.reports.Excluded(w.Scope) {
		if of.Worker == w.ID {
			list = append(list, selection.ExcludedRank{Rank: of, Why: selection.Exclusion(x.State.String())})
		}
	}
	slices.SortFunc(list, func(a, b selection.ExcludedRank) int { return a.Rank.Compare(b.Rank) })
	return list
}

// Ready reports whether requests can be served: at least one worker of any scope is schedulable,
// no recovery or snapshot on disk is awaited, and the service is not shutting down.
func (s *Service) Ready() (ready bool, schedulable int, workers []*catalog.Worker) {
	settled, schedulable := s.settled()
	return settled && schedulable > 0, schedulable, s.catalog.List(nil, nil)
}

// Settled is Ready without the condition on workers: there may be none yet, and requests are
// then refused for that reason.
func (s *Service) Settled() bool {
	settled, _ := s.settled()
	return settled
}

func (s *Service) settled() (settled bool, schedulable int) {
	schedulable = s.catalog.CountSchedulable()
	awaited := s.config.Shared != nil && s.config.Shared.Awaited() || s.recovery.awaited(schedulable) || s.state.Awaited()
	return !s.scopes.Closing() && !awaited, schedulable
}

// WorkersFileError refuses a set of workers because a file defines them.
type WorkersFileError struct{ Path string }

// Error names the file.
func (e *WorkersFileError) Error() string {
	return "workers are managed by --workers-file " + e.Path
}

// TakesSet returns a Conflict if ReconcileWorkers cannot replace the set of workers because a
// workers file or a list of engines defines it, else nil.
func (s *Service) TakesSet() error {
	switch {
	case s.config.WorkersFile != "":
	case s.config.EngineList:
		return contract.Errorf(contract.Conflict, "workers are managed by --engines")
	default:
		return nil
	}
	err := &WorkersFileError{s.config.WorkersFile}
	return &contract.Error{Kind: contract.Conflict, Text: err.Error(), Err: err}
}

// ReconcileWorkers replaces all workers of the chosen scopes by the given ones (decision E5),
// see catalog.Catalog.Reconcile. The error of an entry names the entry; nothing is changed
// then. See TakesSet.
func (s *Service) ReconcileWorkers(records []catalog.Record, scope catalog.ScopeFilter) (catalog.Difference, error) {
	if err := s.TakesSet(); err != nil {
		return catalog.Difference{}, err
	}
	return s.ReplaceWorkers(catalog.Set{Kind: catalog.SourceAPI, Records: records, Scope: scope})
}

// CompareWorkers returns what ReconcileWorkers would return, and changes nothing.
func (s *Service) CompareWorkers(records []catalog.Record, scope catalog.ScopeFilter) (catalog.Difference, error) {
	if err := s.TakesSet(); err != nil {
		return catalog.Difference{}, err
	}
	set := catalog.Set{Kind: catalog.SourceAPI, Records: records, Scope: scope}
	if s.config.Shared == nil {
		d, err := s.catalog.Compare(set)
		return d, asEntryError(err)
	}
	var d catalog.Difference
	err := s.config.Shared.Try(func(c *catalog.Catalog) (err error) {
		d, err = c.Compare(set)
		return err
	})
	return d, asEntryError(err)
}

// ReplaceWorkers replaces the workers of a source, see catalog.Catalog.Reconcile. It is
// workers.Apply.
func (s *Service) ReplaceWorkers(set catalog.Set) (catalog.Difference, error) {
	if s.config.Shared != nil && !set.Kind.Discovered() {
		return s.editSet(set)
	}
	return s.replaceWorkers(set)
}

// replaceWorkers is ReplaceWorkers in this process's catalog.
func (s *Service) replaceWorkers(set catalog.Set) (d catalog.Difference, err error) {
	s.scopes.Change(func() {
		if d, err = s.catalog.Reconcile(set); err != nil {
			return
		}
		last := ""
		for i := range set.Records {
			if model := set.Records[i].Scope.Model; model != last {
				s.Selections().Add(model)
				last = model
			}
		}
	})
	s.describer.look()
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

// ScopeLoads is one scope of GET /loads.
type ScopeLoads struct {
	Scope            catalog.Scope
	Loads            []selection.RankLoad // by rank
	PendingCount     int
	PendingISLTokens uint64
}

// Loads returns the load of every rank of the matching scopes; nil matches all. A scope whose
// workers have left stays in the list, without rows.
func (s *Service) Loads(model, tenant *string) []ScopeLoads {
	var out []ScopeLoads
	for _, sc := range s.scopes.Known() {
		if !sc.Matches(model, tenant) {
			continue
		}
		row := ScopeLoads{Scope: sc, Loads: []selection.RankLoad{}}
		for _, l := range s.ledger.Loads(sc) {
			row.Loads = append(row.Loads, rankLoad(l))
		}
		s.addReports(sc, row.Loads)
		if state := s.scopes.Of(sc); state != nil {
			row.PendingCount, row.PendingISLTokens = state.Rules().Queue.Pending()
		}
		out = append(out, row)
	}
	slices.SortFunc(out, func(a, b ScopeLoads) int { return a.Scope.Compare(b.Scope) })
	return out
}

// addReports adds to the loads of a scope what its engines say.
func (s *Service) addReports(sc catalog.Scope, rows []selection.RankLoad) {
	s.ledger.Look(sc, nil, func(v *reservations.View) {
		for i := range rows {
			slot, ok := v.Slot(rows[i].Rank)
			if !ok || v.Engine(slot) == nil {
				continue
			}
			if f := v.Engine(slot).Foreign; f != (reservations.Foreign{}) {
				rows[i].Foreign = &f
			}
		}
	})
	for i := range rows {
		st, ok := s.reports.Status(sc, rows[i].Rank)
		if !ok {
			continue
		}
		rows[i].Reported = &st
		if rows[i].Foreign == nil {
			rows[i].Foreign = new(reservations.Foreign)
		}
	}
}

// BlockSize returns the block size, in tokens, of a scope that has workers. It
// takes no lock.
func (s *Service) BlockSize(sc catalog.Scope) (blockSize uint32, known bool) {
	if snap := s.catalog.Snapshot(sc); snap != nil {
		return snap.BlockSize, true
	}
	return 0, false
}
