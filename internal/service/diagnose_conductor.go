package service

import (
	"fmt"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/conductor"
)

// ConductorDiagnose tells for each block of a prompt which instances hold it,
// where each rank's chain breaks and why, and whether the prompt would match
// under another identity of the tenant and model. At most maxBlocks blocks are
// shown; 0 is conductor.DefaultDiagnosedBlocks.
func (s *Service) ConductorDiagnose(req *ConductorQuery, maxBlocks int) (*Diagnosis, error) {
	if s.closing.Load() {
		return nil, errClosing
	}
	d := s.conductor.Diagnose(&conductor.Question{
		Identity: req.Identity,
		Instance: req.Instance,
		Tokens:   req.Tokens,
		Rolling:  req.Hashes,
		ByHash:   req.ByHash,
	}, maxBlocks)
	snap := s.catalog.Snapshot(catalog.Scope{Model: req.Identity.Model, Tenant: req.Identity.Tenant})
	if snap != nil && len(snap.Workers) > 0 {
		d.Find(fmt.Sprintf("workers of the selection service for this model and tenant: %d; its own /diagnose tells of them", len(snap.Workers)))
	}
	return d, nil
}
