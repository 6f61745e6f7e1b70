package service

import (
	"cmp"
	"slices"
	"strconv"
	"sync"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
)

// ConductorQuery fills a with how much of a prompt every instance has: those of
// Conductor's publishers, and the selection service's workers under their
// decimal id where they can answer.
func (s *Service) ConductorQuery(req *ConductorQuery, a *conductor.Answer) error {
	if s.closing.Load() {
		return errClosing
	}
	if req.ByHash {
		s.conductor.QueryHashes(req.Identity, req.Hashes, req.Instance, a)
	} else {
		s.conductor.QueryTokens(req.Identity, req.Tokens, req.Instance, a)
	}
	if snap, p := s.conductorPool(req.Identity); p != nil {
		addWorkers(req, a, snap, p)
	}
	return nil
}

// conductorPool returns the selection pool whose blocks are those of an
// identity, and its workers; nil if there is none. A pool's workers hold blocks
// with adapters and salts, too, but under hashes that only prompts with them
// have: they answer for the base model without a salt (decision C7).
func (s *Service) conductorPool(id conductor.Identity) (*catalog.Snapshot, *pool) {
	if id.LoRA != "" || id.Salt != "" {
		return nil, nil
	}
	sc := catalog.Scope{Model: id.Model, Tenant: id.Tenant}
	p := (*s.pools.Load())[sc] // before the snapshot; see schedulable
	snap := s.catalog.Snapshot(sc)
	if p == nil || snap == nil || p.blockSize != id.BlockSize || snap.BlockSize != id.BlockSize {
		return nil, nil
	}
	return snap, p
}

// walk is scratch memory to ask a pool in Conductor's terms.
type walk struct {
	local []uint64
	match indexer.Match
	ranks []conductor.Holder
}

var walks = sync.Pool{New: func() any { return new(walk) }}

// addWorkers adds the pool's workers to an answer. A publisher's instance with
// the same name goes before.
func addWorkers(req *ConductorQuery, a *conductor.Answer, snap *catalog.Snapshot, p *pool) {
	known := ranksOf(snap, req.Instance)
	if len(known) == 0 {
		return
	}
	w := walks.Get().(*walk)
	defer w.recycle()
	w.follow(req, snap, p)
	if p.gone.Load() {
		return // the scope had no workers for a moment; slots of a later pool mean others
	}
	for len(known) > 0 {
		worker := known[0].Worker
		w.ranks = w.ranks[:0]
		for len(known) > 0 && known[0].Rank.Worker == worker.ID {
			w.ranks = append(w.ranks, conductor.Holder{Slot: known[0].Slot, Rank: known[0].DP})
			known = known[1:]
		}
		if name := strconv.FormatUint(worker.ID, 10); !worker.Tracked && !a.Has(name) {
			a.AddRanks(name, w.ranks, &w.match, snap.BlockSize)
		}
	}
	a.Sort()
}

// ranksOf returns the attached ranks of the worker that an instance names, of
// all workers for "".
func ranksOf(snap *catalog.Snapshot, instance string) []catalog.Entry {
	if instance == "" {
		return snap.Known
	}
	id, err := strconv.ParseUint(instance, 10, 64)
	if err != nil || strconv.FormatUint(id, 10) != instance {
		return nil // 007 is another name
	}
	from, _ := slices.BinarySearchFunc(snap.Known, id, func(e catalog.Entry, id uint64) int { return cmp.Compare(e.Rank.Worker, id) })
	to := from
	for to < len(snap.Known) && snap.Known[to].Rank.Worker == id {
		to++
	}
	return snap.Known[from:to]
}

// follow looks the prompt up in the pool's index.
func (w *walk) follow(req *ConductorQuery, snap *catalog.Snapshot, p *pool) {
	if req.ByHash {
		p.space.MatchSequence(req.Hashes, &w.match)
		return
	}
	layout := hashing.Layout{BlockSize: int(snap.BlockSize), Eagle: snap.Eagle}
	w.local = layout.AppendLocal(w.local[:0], req.Tokens, hashing.Seed, nil)
	p.space.Match(w.local, &w.match)
}

func (w *walk) recycle() {
	if cap(w.local) <= maxPooled && w.match.Bytes() <= 8*maxPooled {
		walks.Put(w)
	}
}
