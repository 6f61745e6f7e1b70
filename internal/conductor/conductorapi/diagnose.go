package conductorapi

import (
	"fmt"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
)

// Diagnose returns which instances hold each block of a prompt, where each rank's chain breaks
// and why, and whether the prompt would match under another identity of the tenant and model.
// It shows at most maxBlocks blocks; 0: conductor.DefaultDiagnosedBlocks.
func (a *API) Diagnose(req *conductor.Query, maxBlocks int) (*conductor.Diagnosis, error) {
	if a.selection.Closing() {
		return nil, contract.ErrShuttingDown
	}
	d := a.registry.Diagnose(req, maxBlocks)
	scope := a.selection.Scope(catalog.Scope{Model: req.Model, Tenant: req.Tenant})
	if snap := scope.Snapshot; snap != nil && len(snap.Workers) > 0 {
		d.Find(selectionWorkers(req.Identity, snap))
	}
	a.findPublisherStreams(req, d)
	return d, nil
}

// selectionWorkers returns a finding that there are workers of the selection service, and why
// answers for an identity do not include them (decision C7).
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

// findPublisherStreams adds findings about incomplete streams of the identity's publishers.
func (a *API) findPublisherStreams(req *conductor.Query, d *conductor.Diagnosis) {
	owners := make(map[catalog.Rank]conductor.CacheOwner)
	for _, p := range a.registry.Publishers() {
		if p.Identity == req.Identity && (req.Instance == "" || p.Instance == req.Instance) {
			owners[StreamRank(p)] = conductor.CacheOwner{Instance: p.Instance, Rank: p.Rank}
		}
	}
	if len(owners) == 0 {
		return
	}
	findStreams(d, a.streams.Streams(), func(rank catalog.Rank) (conductor.CacheOwner, bool) {
		who, ok := owners[rank]
		return who, ok
	})
}

// findStreams adds findings about incomplete streams of a diagnosis' owners.
func findStreams(d *conductor.Diagnosis, streams []kvevents.StreamStatus, owner func(catalog.Rank) (conductor.CacheOwner, bool)) {
	for i := range streams {
		st := &streams[i]
		text := streamTrouble(st)
		if text == "" {
			continue
		}
		if who, ok := owner(st.Rank); ok {
			d.Find(fmt.Sprintf("%s: %s", who, text))
		}
	}
}

// streamTrouble returns what is missing of a stream's messages, "" for nothing.
func streamTrouble(st *kvevents.StreamStatus) string {
	const effect = "some blocks may be missing, others long gone"
	lost := ""
	if st.Lost > 0 {
		lost = fmt.Sprintf(", and messages of its stream were lost before (%d so far): %s", st.Lost, effect)
	}
	switch {
	case st.State == kvevents.Connecting && st.HasLast:
		return fmt.Sprintf("the connection to %s is lost: what happens there is not seen%s", st.Endpoint, lost)
	case st.State == kvevents.Connecting:
		return "not connected to " + st.Endpoint + " yet"
	case st.State == kvevents.Replaying && st.Lost > 0:
		return "a replay is under way" + lost
	case st.State == kvevents.Replaying:
		return ""
	case st.State == kvevents.Stale && st.Lost > 0:
		return fmt.Sprintf("messages of its stream were lost (%d so far) and no replay had them: %s", st.Lost, effect)
	case st.State == kvevents.Stale:
		return "no replay has shown that it is the same engine as before the connection was lost: " + effect
	}
	// Some messages may have been applied twice, so this is a lower bound of the numbers up to the
	// last that were never seen. Lost ones are reported above, and a restart begins a new count.
	if n := st.Applied + st.Lost; st.HasLast && n <= st.Last {
		return fmt.Sprintf("at least the first %d messages of its stream were never seen: what was announced in them alone is not indexed; "+
			"a replay endpoint that still has them helps", st.Last-n+1)
	}
	return ""
}
