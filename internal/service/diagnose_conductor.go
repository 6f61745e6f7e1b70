package service

import (
	"fmt"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/pkg/catalog"
)

// ConductorDiagnose tells for each block of a prompt which instances hold it,
// where each rank's chain breaks and why, and whether the prompt would match
// under another identity of the tenant and model. At most maxBlocks blocks are
// shown; 0 is conductor.DefaultDiagnosedBlocks.
func (s *Service) ConductorDiagnose(req *ConductorQuery, maxBlocks int) (*Diagnosis, error) {
	if s.closing.Load() {
		return nil, errClosing
	}
	d := s.conductor.Diagnose(req, maxBlocks)
	snap := s.catalog.Snapshot(catalog.Scope{Model: req.Model, Tenant: req.Tenant})
	if snap != nil && len(snap.Workers) > 0 {
		d.Find(selectionWorkers(req.Identity, snap))
	}
	s.findPublisherStreams(req, d)
	return d, nil
}

// selectionWorkers says that there are workers of the selection service, and what
// keeps them out of answers for an identity (decision C7).
func selectionWorkers(id conductor.Identity, snap *catalog.Snapshot) string {
	text := fmt.Sprintf("workers of the selection service for this model and tenant: %d, of block_size %d", len(snap.Workers), snap.BlockSize)
	switch {
	case snap.BlockSize != id.BlockSize:
		text += fmt.Sprintf(" while the query's is %d: it does not show them", id.BlockSize)
	case id.LoRA != "" || id.Salt != "":
		text += ": a query with a lora_name or cache_salt does not show them"
	}
	return text + "; the selection service's own /diagnose tells of them"
}

// findPublisherStreams says which streams of the identity's publishers are not
// whole.
func (s *Service) findPublisherStreams(req *ConductorQuery, d *Diagnosis) {
	owners := make(map[catalog.Rank]conductor.CacheOwner)
	for _, p := range s.conductor.Publishers() {
		if p.Identity == req.Identity && (req.Instance == "" || p.Instance == req.Instance) {
			owners[streamKey(p)] = conductor.CacheOwner{Instance: p.Instance, Rank: p.Rank}
		}
	}
	if len(owners) == 0 {
		return
	}
	findStreams(d, s.conductorStreams.Streams(), func(rank catalog.Rank) (conductor.CacheOwner, bool) {
		who, ok := owners[rank]
		return who, ok
	})
}
