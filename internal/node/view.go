package node

import (
	"github.com/select-service/select-service/internal/selection/diagnose"
	"github.com/select-service/select-service/internal/selection/scopes"
	"github.com/select-service/select-service/pkg/catalog"
)

// selectionView is the selection service as the Conductor API sees it.
type selectionView struct {
	catalog *catalog.Catalog
	scopes  *scopes.Registry
}

// Closing implements conductor.Selection.
func (s selectionView) Closing() bool { return s.scopes.Closing() }

// Workers implements conductor.Selection.
func (s selectionView) Workers(model, tenant *string) []*catalog.Worker {
	return s.catalog.List(model, tenant)
}

// Scope implements conductor.Selection.
func (s selectionView) Scope(sc catalog.Scope) diagnose.ScopeView {
	state := s.scopes.Of(sc) // before the snapshot; see scopes.Registry.Schedulable
	v := diagnose.ScopeView{Snapshot: s.catalog.Snapshot(sc)}
	if state != nil && v.Snapshot != nil && state.BlockSize == v.BlockSize {
		v.Index, v.Seeds, v.State = state.Space, state.Seeds, state
	}
	return v
}

// Unavailable implements conductor.Selection.
func (s selectionView) Unavailable(sc catalog.Scope) error {
	if _, _, err := s.scopes.Schedulable(sc); err != nil {
		return err
	}
	return scopes.NoWorkers(sc) // the scope has just become schedulable
}
