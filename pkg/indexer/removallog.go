package indexer

import "math/bits"

// Removal is a block's leaving of a slot and tier: by a removal, or because
// the slot, or its stream, was cleared.
type Removal struct {
	Slot    uint32
	Tier    Tier
	Cleared bool
}

// maxRemovalLog is how many departures an index remembers; a clear adds at most
// maxCleared.
const (
	maxRemovalLog = 65536
	maxClearedLog = 16384
)

// removalLog is a ring of the latest departures, for explanations.
type removalLog struct {
	ring []removal
	head int // next to overwrite once the ring is full
	n    int
}

type removal struct {
	key     uint64
	by      holder
	cleared bool
}

func (d *removalLog) push(m *memory, e removal) {
	if d.n == len(d.ring) && d.n < maxRemovalLog {
		d.grow(m)
	}
	d.ring[d.head] = e
	d.head = (d.head + 1) & (len(d.ring) - 1)
	d.n = min(d.n+1, len(d.ring))
}

// grow doubles the ring, whose size is a power of two; the oldest comes first.
func (d *removalLog) grow(m *memory) {
	bigger := makeFlat[removal](m, max(64, 2*len(d.ring)))
	k := copy(bigger, d.ring[d.head:])
	copy(bigger[k:], d.ring[:d.head])
	freeFlat(m, d.ring)
	d.ring, d.head = bigger, d.n
}

// at returns the i-th departure, the oldest first.
func (d *removalLog) at(i int) *removal {
	return &d.ring[(d.head-d.n+i)&(len(d.ring)-1)]
}

// forget drops what is remembered of a slot: it may become another rank's.
func (d *removalLog) forget(m *memory, slot uint32) {
	var left removalLog
	for i := range d.n {
		if e := d.at(i); e.by.slot() != slot {
			left.push(m, *e)
		}
	}
	freeFlat(m, d.ring)
	*d = left
}

// removalKey finds a block again: a value says all; of a local hash the one
// before it and the depth go with it.
func (s *Space) removalKey(local, before uint64, depth uint32) uint64 {
	if s.sequence {
		return local
	}
	return local ^ bits.RotateLeft64(before, 29)*0x9e3779b97f4a7c15 ^ uint64(depth)*0xc4ceb9fe1a85ec53
}

// removalKeyAt returns the key of the at-th block of a run.
func (s *Space) removalKeyAt(nd *node, at uint32) uint64 {
	t := &s.tree
	before := uint64(0)
	if s.sequence {
		// The value is enough.
	} else if at > 0 {
		before = t.cells.local(nd.off + at - 1)
	} else if p := t.node(nd.parent); p.n > 0 {
		before = t.cells.local(p.off + p.n - 1)
	}
	return s.removalKey(t.cells.local(nd.off+at), before, nd.depth+at)
}

// logCleared remembers that by is being cleared of a run, up to maxCleared blocks
// a clear.
func (s *Space) logCleared(by holder, nd *node, told *int) {
	for at := uint32(0); at < nd.n && *told < maxClearedLog; at++ {
		s.removals.push(&s.mem, removal{key: s.removalKeyAt(nd, at), by: by, cleared: true})
		*told++
	}
}

// Removals appends to dst the latest departure of the chain's block number at
// from each slot and tier, as far as the index remembers: the latest 65,536 of
// all blocks. chain is as for Follow. It looks at all that is remembered.
func (s *Space) Removals(chain []uint64, at int, dst []Removal) []Removal {
	if at < 0 || at >= len(chain) {
		return dst
	}
	before := uint64(0)
	if at > 0 {
		before = chain[at-1]
	}
	key := s.removalKey(chain[at], before, uint32(at))
	seen := make(map[holder]bool)
	s.mu.RLock()
	defer s.mu.RUnlock()
	for i := s.removals.n - 1; i >= 0; i-- {
		e := s.removals.at(i)
		if e.key != key || seen[e.by] {
			continue
		}
		seen[e.by] = true
		dst = append(dst, Removal{e.by.slot(), e.by.tier(), e.cleared})
	}
	return dst
}
