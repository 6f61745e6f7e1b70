package service

import (
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/recovery"
)

// recoveryTarget finds the places for what dumps bring.
type recoveryTarget struct{ s *Service }

func (t recoveryTarget) Fits(sc catalog.Scope, blockSize uint32) bool {
	p := (*t.s.pools.Load())[sc]
	return p == nil || p.blockSize == blockSize
}

// Place holds a slot for a rank whose worker has not come. The pool may have
// been replaced since; then the gate that is found has another rank in the slot,
// or blocks are cut differently.
func (t recoveryTarget) Place(sc catalog.Scope, blockSize uint32, r catalog.Rank) (*recovery.Gate, uint32, bool) {
	slot, ok := t.s.catalog.Hold(sc, blockSize, r)
	if !ok {
		return nil, 0, false
	}
	p := (*t.s.pools.Load())[sc]
	if p == nil || p.blockSize != blockSize {
		return nil, 0, false
	}
	return p.gate, slot, true
}

// maxSpared bounds the pools that are spared.
const maxSpared = 1024

// spareLocked keeps what a pool that goes knows of ranks that left, should its
// scope come back while dumps are merged.
func (s *Service) spareLocked(sc catalog.Scope, p *pool) {
	if s.merging && len(s.spared) < maxSpared {
		s.spared[sc] = p
	}
}

// furnishLocked gives a new pool its index.
func (s *Service) furnishLocked(sc catalog.Scope, p *pool) {
	if old := s.spared[sc]; old != nil && old.blockSize == p.blockSize {
		p.space, p.gate = old.space, old.gate
	} else {
		p.gate = recovery.NewGate(p.space, s.merging)
	}
	delete(s.spared, sc)
}

// endMerging ends the merging of dumps with live events.
func (s *Service) endMerging() {
	s.mu.Lock()
	s.merging, s.spared = false, nil
	pools := *s.pools.Load()
	s.mu.Unlock()
	for _, p := range pools {
		p.gate.EndRecovery()
	}
}
