package service

import "github.com/select-service/select-service/pkg/catalog"

// PutWorker registers a worker or replaces its record.
func (s *Service) PutWorker(r catalog.Record) (*catalog.Worker, error) {
	return s.register(func() (*catalog.Worker, error) { return s.catalog.Put(r) })
}

// PatchWorker changes the given fields of a worker.
func (s *Service) PatchWorker(id uint64, p catalog.Patch) (*catalog.Worker, error) {
	return s.register(func() (*catalog.Worker, error) { return s.catalog.Patch(id, p) })
}

// DeleteWorker removes a worker, its blocks and its reservations.
func (s *Service) DeleteWorker(id uint64) (*catalog.Worker, error) {
	return s.register(func() (*catalog.Worker, error) { return s.catalog.Delete(id) })
}

// register changes one worker of the catalog.
func (s *Service) register(change func() (*catalog.Worker, error)) (w *catalog.Worker, err error) {
	s.changeWorkers(func() {
		if w, err = change(); w != nil {
			s.selections.Add(w.Scope.Model)
		}
	})
	return w, asError(err)
}

// changeWorkers makes a change of the catalog and tells whoever waits for it.
// Taking a worker away can let others in, too.
func (s *Service) changeWorkers(change func()) {
	s.registering.Add(1)
	defer s.registering.Add(-1)
	before := s.rankPuts.Load()
	change()
	s.scopes.WorkersChanged()
	if s.ranksAdded != nil && s.rankPuts.Load() != before {
		s.ranksAdded() // perhaps for ranks of another call, too
	}
}

// Workers lists the catalog by model, tenant and id; nil matches all.
func (s *Service) Workers(model, tenant *string) []*catalog.Worker {
	return s.catalog.List(model, tenant)
}

// Ready tells whether requests can be served: at least one worker of any scope
// is schedulable, no recovery is waited for, and the service is not shutting
// down.
func (s *Service) Ready() (ready bool, schedulable int, workers []*catalog.Worker) {
	schedulable = s.catalog.CountSchedulable()
	return schedulable > 0 && !s.scopes.Closing() && !s.awaited(schedulable), schedulable, s.catalog.List(nil, nil)
}
