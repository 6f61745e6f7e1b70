package service

import (
	"sync"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/conductorapi"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
)

// selectionView is the Service as the Conductor API sees it.
type selectionView struct{ *Service }

// Closing implements conductorapi.Selection.
func (s selectionView) Closing() bool { return s.closing.Load() }

// Scope implements conductorapi.Selection.
func (s selectionView) Scope(sc catalog.Scope) conductorapi.ScopeView {
	p := (*s.pools.Load())[sc] // before the snapshot; see schedulable
	v := conductorapi.ScopeView{Snapshot: s.catalog.Snapshot(sc)}
	if p != nil && v.Snapshot != nil && p.blockSize == v.BlockSize {
		v.Index, v.Seeds, v.Gone = p.space, &p.seeds, &p.gone
	}
	return v
}

// Unavailable implements conductorapi.Selection.
func (s selectionView) Unavailable(sc catalog.Scope) error {
	if _, _, err := s.schedulable(sc); err != nil {
		return err
	}
	return noWorkers(sc) // it has become schedulable just now
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

// maxSeedNames bounds the block seeds of a pool whose names are kept.
const maxSeedNames = 4096

// seedNames remembers what the block seeds of a pool stand for, as events tell
// it. Salts keep customers apart: only that there is one is kept.
type seedNames struct {
	mu sync.Mutex // guards of
	of map[uint64]seedName
}

type seedName struct {
	lora   string
	salted bool
}

// NameSeed notes a seed; see kvevents.SeedNames. Once there are too many it
// notes no more.
func (n *seedNames) NameSeed(seed uint64, lora, salt string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.of) >= maxSeedNames {
		return
	}
	if n.of == nil {
		n.of = make(map[uint64]seedName)
	}
	n.of[seed] = seedName{lora: lora, salted: salt != ""}
}

// SeedName implements conductorapi.SeedLookup.
func (n *seedNames) SeedName(seed uint64) (lora string, salted, ok bool) {
	if seed == hashing.Seed {
		return "", false, true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	name, ok := n.of[seed]
	return name.lora, name.salted, ok
}
