package reservations

import (
	"slices"
	"unsafe"

	"github.com/select-service/select-service/pkg/catalog"
)

// Pin keeps the hashes of a prompt for a request that may be booked later. It is no load. Those
// that are among the active prompts of its scope when it is made are not copied: they stay there
// until Unpin, on the account of reservations.
type Pin struct {
	scope  *scope // nil: nothing stands there
	tail   uint32 // see prefixes.pin
	blocks uint32 // how many stand there
	locals bool   // with their local hashes
	// local and sequence have the others.
	local, sequence []uint64
}

// minPinned is the least number of active blocks that are not copied.
const minPinned = 16

// KeepLocalHashes makes room for a local hash with each active block, so that a Pin copies none of
// these either. A block takes a third more memory then. It must be called before the ledger is used.
func (l *Ledger) KeepLocalHashes() { l.room.keepLocal = true }

// Pin keeps the hashes of a prompt's complete blocks: their sequence hashes and, if not nil, as
// many local ones. Unpin must be called, once.
func (l *Ledger) Pin(sc catalog.Scope, local, sequence []uint64) *Pin {
	p := new(Pin)
	if s := l.scope(sc); s != nil && len(sequence) >= minPinned {
		p.take(s, local, sequence)
	}
	sequence = sequence[p.blocks:]
	if p.locals {
		local = local[p.blocks:]
	}
	both := slices.Concat(local, sequence)
	p.local, p.sequence = both[:len(local):len(local)], both[len(local):]
	return p
}

// take pins what of a prompt is active in the scope, if that is enough.
func (p *Pin) take(s *scope, local, sequence []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.blocks.walk(match{}, sequence)
	locals := s.ledger.room.keepLocal && len(local) == len(sequence)
	if locals {
		m = s.blocks.learn(m, local)
	}
	if m.n < minPinned || s.dropped {
		return
	}
	p.scope, p.tail, p.blocks, p.locals = s, s.blocks.pin(m), uint32(m.n), locals
	s.pins++
	s.settle(0)
}

// AppendTo appends the local and the sequence hashes. It must not be called after Unpin.
func (p *Pin) AppendTo(local, sequence []uint64) (locals, sequences []uint64) {
	if s := p.scope; s != nil {
		s.mu.RLock()
		m := s.blocks.end(p.tail, int(p.blocks))
		sequence = s.blocks.appendAfter(sequence, m, 0)
		if p.locals {
			local = s.blocks.appendLocals(local, m)
		}
		s.mu.RUnlock()
	}
	return append(local, p.local...), append(sequence, p.sequence...)
}

// Blocks returns the number of sequence hashes.
func (p *Pin) Blocks() int { return int(p.blocks) + len(p.sequence) }

// Bytes returns what the pin takes itself, in bytes, without what it shares.
func (p *Pin) Bytes() int {
	return int(unsafe.Sizeof(*p)) + 8*(len(p.local)+len(p.sequence))
}

// Unpin ends the pin.
func (p *Pin) Unpin() {
	s := p.scope
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blocks.unpin(p.tail)
	if s.pins--; s.dropped && s.pins == 0 {
		s.blocks.free()
	}
	s.settle(0)
}
