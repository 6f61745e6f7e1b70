package service

import (
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/recovery"
)

// recoveryTarget finds the places for what dumps bring.
type recoveryTarget struct{ s *Service }

func (t recoveryTarget) Fits(sc catalog.Scope, blockSize uint32) bool {
	state := t.s.scopes.Of(sc)
	return state == nil || state.BlockSize == blockSize
}

// Place holds a slot for a rank whose worker has not come. The scope's state may
// have been replaced since; then the gate that is found has another rank in the slot,
// or blocks are cut differently.
func (t recoveryTarget) Place(sc catalog.Scope, blockSize uint32, r catalog.Rank) (*recovery.Gate, uint32, bool) {
	slot, ok := t.s.catalog.Hold(sc, blockSize, r)
	if !ok {
		return nil, 0, false
	}
	state := t.s.scopes.Of(sc)
	if state == nil || state.BlockSize != blockSize {
		return nil, 0, false
	}
	return state.Gate, slot, true
}
