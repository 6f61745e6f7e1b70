package conductor

import (
	"fmt"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/diagnose"
	"github.com/select-service/select-service/pkg/catalog"
)

// Diagnose returns which instances hold each block of a prompt, where each rank's chain breaks
// and why, and whether the prompt would match under another identity of the tenant and model.
// It shows at most maxBlocks blocks; 0: diagnose.DefaultBlocks.
func (a *API) Diagnose(req *Query, maxBlocks int) (*diagnose.Diagnosis, error) {
	if a.selection.Closing() {
		return nil, contract.ErrShuttingDown
	}
	d := a.registry.diagnose(req, maxBlocks)
	scope := a.selection.Scope(catalog.Scope{Model: req.Model, Tenant: req.Tenant})
	if snap := scope.Snapshot; snap != nil && len(snap.Workers) > 0 {
		d.Find(selectionWorkers(req.Identity, snap))
	}
	a.findPublisherStreams(req, d)
	return d, nil
}

// selectionWorkers returns a finding about the workers of the selection service, which says why
// answers for an identity do not include them (decision C7).
func selectionWorkers(id Identity, snap *catalog.Snapshot) string {
	text := fmt.Sprintf("workers of the selection service for this model and tenant: %d, of block_size %d", len(snap.Workers), snap.BlockSize)
	switch {
	case snap.BlockSize != id.BlockSize:
		text += fmt.Sprintf(" while the query's is %d: it does not show them", id.BlockSize)
	case id.LoRA != "" || id.Salt != "":
		text += ": a query with a lora_name or cache_salt does not show them"
	}
	return text + "; the selection service's own /diagnose tells of them"
}

// findPublisherStreams adds findings about incomplete streams of the identity's publishers.
func (a *API) findPublisherStreams(req *Query, d *diagnose.Diagnosis) {
	owners := make(map[catalog.Rank]diagnose.CacheOwner)
	for _, p := range a.registry.Publishers() {
		if p.Identity == req.Identity && (req.Instance == "" || p.Instance == req.Instance) {
			owners[StreamRank(p)] = diagnose.CacheOwner{Instance: p.Instance, Rank: p.Rank}
		}
	}
	if len(owners) == 0 {
		return
	}
	d.FindStreams(a.streams.Streams(), func(rank catalog.Rank) (diagnose.CacheOwner, bool) {
		who, ok := owners[rank]
		return who, ok
	})
}
