package service

import "github.com/select-service/select-service/pkg/catalog"

// PutWorker registers a worker or replaces its record.
func (s *Service) PutWorker(r catalog.Record) (*catalog.Worker, error) {
	w, err := s.catalog.Put(r)
	s.workersChanged()
	return w, asError(err)
}

// PatchWorker changes the given fields of a worker.
func (s *Service) PatchWorker(id uint64, p catalog.Patch) (*catalog.Worker, error) {
	w, err := s.catalog.Patch(id, p)
	s.workersChanged()
	return w, asError(err)
}

// DeleteWorker removes a worker, its blocks and its reservations.
func (s *Service) DeleteWorker(id uint64) (*catalog.Worker, error) {
	w, err := s.catalog.Delete(id)
	s.workersChanged()
	return w, asError(err)
}

// Workers lists the catalog by model, tenant and id; nil matches all.
func (s *Service) Workers(model, tenant *string) []*catalog.Worker {
	return s.catalog.List(model, tenant)
}

// Ready tells whether requests can be served: at least one worker of any scope
// is schedulable and the service is not shutting down.
func (s *Service) Ready() (ready bool, schedulable int, workers []*catalog.Worker) {
	schedulable = s.catalog.Ready()
	return schedulable > 0 && !s.closing.Load(), schedulable, s.catalog.List(nil, nil)
}

// The peer routes of the contract answer as if replica synchronisation were not
// configured.
var errSyncDisabled = &Error{Kind: Conflict, Text: "replica sync is disabled"}

// Peers lists the replicas whose bookings are followed.
func (s *Service) Peers() []string { return []string{} }

// RegisterPeer follows one more replica.
func (s *Service) RegisterPeer(string) (bool, error) { return false, errSyncDisabled }

// DeregisterPeer stops following a replica.
func (s *Service) DeregisterPeer(string) error { return errSyncDisabled }
