package conductor

import (
	"strconv"
	"sync"

	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/diagnose"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
)

// maxPooled is the largest prompt, in blocks, whose scratch memory is pooled.
const maxPooled = 1 << 17

// Query fills in how much of a prompt every instance has: the publishers' instances, and the
// selection service's workers under their decimal ids if these can answer.
func (a *API) Query(req *Query, answer *Answer) error {
	if a.selection.Closing() {
		return contract.ErrShuttingDown
	}
	if req.ByHash {
		a.registry.queryHashes(req.Identity, req.Hashes, req.Instance, answer)
	} else {
		a.registry.queryTokens(req.Identity, req.Tokens, req.Instance, answer)
	}
	if scope, ok := a.scopeOf(req.Identity); ok {
		addWorkers(req, answer, scope)
	}
	return nil
}

// scopeOf returns the selection scope with the blocks of an identity. It answers only for the
// base model without a salt (decision C7): a scope's index has blocks with adapters and salts
// too, but under hashes that only prompts with these have.
func (a *API) scopeOf(id Identity) (diagnose.ScopeView, bool) {
	if id.LoRA != "" || id.Salt != "" {
		return diagnose.ScopeView{}, false
	}
	scope := a.selection.Scope(catalog.Scope{Model: id.Model, Tenant: id.Tenant})
	return scope, scope.Index != nil && scope.BlockSize == id.BlockSize
}

// walk is scratch memory for looking up a prompt in a scope's index.
type walk struct {
	local []uint64
	match indexer.Match
	ranks []holder
}

var walks = sync.Pool{New: func() any { return new(walk) }}

// addWorkers adds a scope's workers to an answer. A publisher's instance of the same name takes
// precedence.
func addWorkers(req *Query, a *Answer, scope diagnose.ScopeView) {
	known := ranksOf(scope.Snapshot, req.Instance)
	if len(known) == 0 {
		return
	}
	w := walks.Get().(*walk)
	defer w.recycle()
	w.follow(req, scope)
	if scope.State.Gone() {
		return // the scope lost all workers meanwhile; its slots may belong to other ranks now
	}
	for len(known) > 0 {
		worker := known[0].Worker
		w.ranks = w.ranks[:0]
		for len(known) > 0 && known[0].Rank.Worker == worker.ID {
			w.ranks = append(w.ranks, holder{Slot: known[0].Slot, Rank: known[0].DP})
			known = known[1:]
		}
		if name := strconv.FormatUint(worker.ID, 10); !worker.Tracked && !a.has(name) {
			a.addRanks(name, w.ranks, &w.match, scope.BlockSize)
		}
	}
	a.sort()
}

// ranksOf returns the attached ranks of the worker that instance names, of all workers for "".
func ranksOf(snap *catalog.Snapshot, instance string) []catalog.Entry {
	if instance == "" {
		return snap.Known()
	}
	id, err := strconv.ParseUint(instance, 10, 64)
	if err != nil || strconv.FormatUint(id, 10) != instance {
		return nil // "007" does not name worker 7
	}
	return snap.KnownOf(id)
}

// follow looks up the prompt in the scope's index.
func (w *walk) follow(req *Query, scope diagnose.ScopeView) {
	if req.ByHash {
		scope.Index.MatchSequence(req.Hashes, &w.match)
		return
	}
	layout := hashing.Layout{BlockSize: int(scope.BlockSize), Eagle: scope.Eagle}
	w.local = layout.AppendLocal(w.local[:0], req.Tokens, hashing.Seed, nil)
	scope.Index.Match(w.local, &w.match)
}

func (w *walk) recycle() {
	if cap(w.local) <= maxPooled && w.match.Bytes() <= 8*maxPooled {
		walks.Put(w)
	}
}
