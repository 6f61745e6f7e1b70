package service

import (
	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/conductorapi"
	"github.com/select-service/select-service/internal/scopes"
	"github.com/select-service/select-service/pkg/catalog"
)

// selectionView is the Service as the Conductor API sees it.
type selectionView struct{ *Service }

// Closing implements conductorapi.Selection.
func (s selectionView) Closing() bool { return s.scopes.Closing() }

// Scope implements conductorapi.Selection.
func (s selectionView) Scope(sc catalog.Scope) conductorapi.ScopeView {
	state := s.scopes.Of(sc) // before the snapshot; see scopes.Registry.Schedulable
	v := conductorapi.ScopeView{Snapshot: s.catalog.Snapshot(sc)}
	if state != nil && v.Snapshot != nil && state.BlockSize == v.BlockSize {
		v.Index, v.Seeds, v.State = state.Space, state.Seeds, state
	}
	return v
}

// Unavailable implements conductorapi.Selection.
func (s selectionView) Unavailable(sc catalog.Scope) error {
	if _, _, err := s.scopes.Schedulable(sc); err != nil {
		return err
	}
	return scopes.NoWorkers(sc) // it has become schedulable just now
}

// newDiagnoser returns the diagnoser of the selection service's own workers.
func (s *Service) newDiagnoser() *conductorapi.ScopeDiagnoser {
	streams := s.streams
	if !s.config.KVEvents {
		streams = nil
	}
	return conductorapi.NewScopeDiagnoser(selectionView{s}, streams)
}

// Diagnose says where a prompt's match on the workers of a scope breaks, and why;
// see conductorapi.ScopeDiagnoser.
func (s *Service) Diagnose(req *conductorapi.DiagnoseRequest, maxBlocks int) (*conductor.Diagnosis, error) {
	return s.diagnoser.Diagnose(req, maxBlocks)
}
