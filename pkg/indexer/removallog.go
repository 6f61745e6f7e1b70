package indexer

import (
	"math/bits"

	"github.com/select-service/select-service/internal/container/offheap"
)

// Removal says that a block left a slot and tier: by a removed event, or because
// the slot, or its stream, was cleared.
type Removal struct {
	Slot    uint32
	Tier    Tier
	Cleared bool
}

// maxRemovalLog is how many removals an index remembers. One clear adds at most
// maxClearedLog of them, so that it does not push out all others.
const (
	maxRemovalLog = 65536
	maxClearedLog = 16384
)

// removalLog has the latest removals of all slots. It serves explanations of
// answers (Removals) and nothing else.
type removalLog struct{ ring[removal] }

type removal struct {
	key     uint64 // see removalKey
	by      holder
	cleared bool
}

func (l *removalLog) add(m *offheap.Memory, e removal) {
	l.reserve(m, maxRemovalLog)
	l.push(e)
}

// forget drops what is remembered of a slot: it may become another rank's.
func (l *removalLog) forget(m *offheap.Memory, slot uint32) {
	var rest removalLog
	for i := range l.n {
		if e := l.rows[l.position(i)]; e.by.slot() != slot {
			rest.add(m, e)
		}
	}
	l.free(m)
	*l = rest
}

// removalKey identifies a block after it has left the tree. In a sequence Space
// the value alone does; a local hash is mixed with that of the block before it
// and with its depth.
func (s *Space) removalKey(local, previous uint64, depth uint32) uint64 {
	if s.sequence {
		return local
	}
	return local ^ bits.RotateLeft64(previous, 29)*0x9e3779b97f4a7c15 ^ uint64(depth)*0xc4ceb9fe1a85ec53
}

// removalKeyAt returns the key of the at-th block of a run.
func (s *Space) removalKeyAt(nd *node, at uint32) uint64 {
	t := &s.tree
	previous := uint64(0)
	switch {
	case s.sequence: // the value is enough
	case at > 0:
		previous = t.cells.local(nd.off + at - 1)
	default:
		if p := t.node(nd.parent); p.n > 0 {
			previous = t.cells.local(p.off + p.n - 1)
		}
	}
	return s.removalKey(t.cells.local(nd.off+at), previous, nd.depth+at)
}

// logCleared records that by loses a run in a clear. logged counts the blocks that
// this clear has recorded, up to maxClearedLog.
func (s *Space) logCleared(by holder, nd *node, logged *int) {
	for at := uint32(0); at < nd.n && *logged < maxClearedLog; at++ {
		s.removals.add(&s.mem, removal{key: s.removalKeyAt(nd, at), by: by, cleared: true})
		*logged++
	}
}

// Removals appends to dst the latest removal of the chain's block number at from
// each slot and tier, as far as the index remembers: the latest 65,536 removals of
// all blocks. chain is as for Match. The cost is proportional to the length of the
// log.
func (s *Space) Removals(chain []uint64, at int, dst []Removal) []Removal {
	if at < 0 || at >= len(chain) {
		return dst
	}
	previous := uint64(0)
	if at > 0 {
		previous = chain[at-1]
	}
	key := s.removalKey(chain[at], previous, uint32(at))
	seen := make(map[holder]bool)
	s.mu.RLock()
	defer s.mu.RUnlock()
	for i := s.removals.n - 1; i >= 0; i-- {
		e := &s.removals.rows[s.removals.position(i)]
		if e.key != key || seen[e.by] {
			continue
		}
		seen[e.by] = true
		dst = append(dst, Removal{e.by.slot(), e.by.tier(), e.cleared})
	}
	return dst
}

// ring keeps the latest entries in flat memory that grows on demand.
type ring[T any] struct {
	rows []T // a power of two, or none
	head int // position of the next entry
	n    int // entries
}

const minRing = 64

// reserve makes room for one more entry if the ring has fewer than limit, a power
// of two. It reports whether entries have moved: the i-th, oldest first, is then
// at position i.
func (r *ring[T]) reserve(m *offheap.Memory, limit int) (moved bool) {
	if r.n < len(r.rows) || r.n >= limit {
		return false
	}
	grown := offheap.Make[T](m, min(max(minRing, 2*len(r.rows)), limit))
	k := copy(grown, r.rows[r.head:])
	copy(grown[k:], r.rows[:r.head])
	offheap.Free(m, r.rows)
	r.rows, r.head = grown, r.n
	return true
}

// push adds an entry and returns its position. In a full ring it replaces the
// oldest entry, which is at head.
func (r *ring[T]) push(e T) (position int) {
	position = r.head
	r.rows[position] = e
	r.head = (position + 1) & (len(r.rows) - 1)
	r.n = min(r.n+1, len(r.rows))
	return position
}

// position returns where the i-th entry is, the oldest first.
func (r *ring[T]) position(i int) int { return (r.head - r.n + i) & (len(r.rows) - 1) }

func (r *ring[T]) full() bool { return r.n == len(r.rows) }

// free gives the memory back; the ring is then empty.
func (r *ring[T]) free(m *offheap.Memory) {
	offheap.Free(m, r.rows)
	*r = ring[T]{}
}
