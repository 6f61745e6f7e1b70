package approximate

import (
	"slices"
	"sync/atomic"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
)

// Predictions for a rank whose capacity is known can follow that capacity instead of time
// (router_approximate_cache_policy=lru of dynamo-kv-router 1.6.1). Like vLLM's block pool, the
// rank keeps all blocks of running requests, and evicts others only to make room: those
// released first go first, and of one request the last blocks first.
//
// A block in use by a request is in no list. When its last request ends, it goes to the
// newest end of its rank's list, after the blocks behind it. A request that uses a block uses
// all blocks before it, so a block in the list is never newer than its parent, and the index
// of a rank has no gap.

// leases is the part of an Index about running requests.
type leases struct {
	// ended has the leases that have ended and are not yet released, last one first.
	// Reservations end under locks of the ledger, which must not wait for mu.
	ended atomic.Pointer[Lease]
	inUse int      // blocks in use, each counted once per lease
	lists int      // number of ranks with a list of their own
	added []uint32 // scratch memory of acquireLocked
}

// Lease is a living reservation's use of its rank's blocks. A nil Lease is none.
type Lease struct {
	index *Index
	next  *Lease // next in leases.ended: the lease that ended before

	// Guarded by index.mu.
	rank    *rankBlocks // nil: nothing is used
	blocks  []uint32    // ids of the prompt's blocks, from the first one
	private int         // number of blocks not shared with other requests: incomplete, unknown and generated ones
	over    bool
}

// NewLease returns the lease of a new reservation, to be given to Book.
func (index *Index) NewLease() *Lease { return &Lease{index: index} }

// End marks that the reservation has ended. It may be called before Book, is called once, and
// does not wait.
func (l *Lease) End() {
	if l == nil {
		return
	}
	ended := &l.index.ended
	for {
		l.next = ended.Load()
		if ended.CompareAndSwap(l.next, l) {
			return
		}
	}
}

// AddOutput adds a block of generated tokens to the request.
func (l *Lease) AddOutput() {
	if l == nil {
		return
	}
	x := l.index
	x.mu.Lock()
	defer x.mu.Unlock()
	defer x.settleLocked()
	x.releaseEndedLocked()
	l.private++
	if l.rank != nil {
		l.rank.private++
		x.evictOverLocked(l.rank)
	}
}

// BookLeased is Book for a reservation with a lease. private is the number of its blocks
// besides those of local. If the rank's capacity is unknown, it is the same as Book.
func (s *Scope) BookLeased(e catalog.Entry, local []uint64, private int, l *Lease) {
	if total := e.Worker.TotalKVBlocks; l == nil || (total == nil || *total == 0) && !s.hasList(e.Slot) {
		s.Book(e, local)
		return
	}
	hashes := hashMemory.Get().(*[]uint64)
	*hashes = hashing.AppendSequence((*hashes)[:0], local)
	for start, more := 0, true; more; {
		end := min(start+maxAtOnce, len(local))
		more = s.acquirePart(e, (*hashes)[:end], local[:end], start, private, l) && end < len(local)
		start = end
	}
	if cap(*hashes) <= maxPooledHashes {
		hashMemory.Put(hashes)
	}
}

// hasList reports whether the rank of a slot is already followed by its capacity. It stays so
// even if the worker's record no longer has the capacity.
func (s *Scope) hasList(slot uint32) bool {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	r := s.ranks[slot]
	return r != nil && r.end != 0
}

// acquirePart adds the blocks of a prompt from start on; the lease has those before. It reports
// whether there was room for all.
func (s *Scope) acquirePart(e catalog.Entry, hashes, local []uint64, start, private int, l *Lease) bool {
	x := s.index
	x.mu.Lock()
	defer x.mu.Unlock()
	defer x.settleLocked()
	x.releaseEndedLocked()
	r := s.rankLocked(e)
	if r == nil || start > 0 && (l.over || l.rank != r) {
		return false
	}
	if r.end == 0 {
		r.end = x.newBlockLocked()
		*x.block(r.end) = block{older: r.end, newer: r.end, rank: r.number}
		x.lists++
	}
	if total := e.Worker.TotalKVBlocks; total != nil && *total > 0 {
		r.capacity = *total
	}
	if start == 0 {
		l.rank, l.blocks = r, make([]uint32, 0, len(hashes))
		l.private += private
		r.private += l.private
	}
	first, end := x.acquireLocked(r, l, hashes, start)
	if first < end {
		ev := indexer.Store{Slot: e.Slot, Tier: indexer.Device, EngineHashes: hashes[first:end], Local: local[first:end]}
		if first > 0 {
			ev.Parent, ev.HasParent = hashes[first-1], true
		}
		if s.gate.Store(&ev).Refused > 0 { // the account of the scope's index is full
			s.gate.Remove(e.Slot, indexer.Device, ev.EngineHashes)
			x.dropAddedLocked(l)
			end = first
		}
	}
	if l.over { // it ended before it was booked
		x.releaseLocked(l)
	}
	x.evictOverLocked(r)
	return end == len(hashes)
}

// acquireLocked adds the blocks of a prompt from start on to the lease. Blocks first to end-1
// must be stored in the index; there was no room for those from end on.
func (index *Index) acquireLocked(r *rankBlocks, l *Lease, hashes []uint64, start int) (first, end int) {
	first, index.added = len(hashes), index.added[:0]
	for i := start; i < len(hashes); i++ {
		id := r.blocks[hashes[i]]
		switch {
		case id == 0:
			if id = index.addLeasedLocked(r, hashes[i], uint32(i)); id == 0 {
				return min(first, i), i
			}
			first = min(first, i)
			index.added = append(index.added, id)
		case index.block(id).depth != uint32(i): // two blocks of the same hash
			return min(first, i), i
		case index.block(id).leases == 0:
			index.unlinkLocked(id)
		}
		index.block(id).leases++
		l.blocks = append(l.blocks, id)
		index.inUse++
	}
	return first, len(hashes)
}

// addLeasedLocked adds a block that is in no list; it returns 0 if there is no room.
func (index *Index) addLeasedLocked(r *rankBlocks, hash uint64, depth uint32) uint32 {
	always := func(uint32) bool { return true }
	if index.n >= index.limit && index.evictLocked(1+index.limit/maxAtOnce, always) == 0 && index.evictListLocked(r, 1) == 0 {
		return 0
	}
	return index.enterLocked(r, block{hash: hash, depth: depth, tick: dueTick})
}

// dropAddedLocked undoes acquireLocked for the blocks that it has created, and for those behind
// the first of these.
func (index *Index) dropAddedLocked(l *Lease) {
	keep := slices.Index(l.blocks, index.added[0])
	index.unuseLocked(l.rank, l.blocks[keep:])
	l.blocks = l.blocks[:keep]
	for _, id := range index.added {
		index.dropLocked(id)
	}
}

// releaseEndedLocked releases the leases that have ended, in order.
func (index *Index) releaseEndedLocked() {
	var first *Lease
	for l := index.ended.Swap(nil); l != nil; {
		l.next, first, l = first, l, l.next
	}
	for first != nil {
		l := first
		first, l.next = l.next, nil
		index.releaseLocked(l)
	}
}

// releaseLocked ends a lease's use of its rank's blocks.
func (index *Index) releaseLocked(l *Lease) {
	l.over = true
	r := l.rank
	if r == nil {
		return
	}
	r.private -= l.private
	index.unuseLocked(r, l.blocks)
	l.rank, l.blocks = nil, nil
	index.evictOverLocked(r)
}

// unuseLocked ends one use of consecutive blocks of a prompt.
func (index *Index) unuseLocked(r *rankBlocks, blocks []uint32) {
	index.inUse -= len(blocks)
	for _, id := range slices.Backward(blocks) {
		b := index.block(id)
		if b.leases--; b.leases > 0 {
			continue
		}
		if r.blocks != nil {
			index.linkLocked(id, r.end)
		} else { // the rank has left
			index.linkLocked(id, index.block(0).newer)
		}
	}
}

// evictOverLocked evicts unused blocks of a rank that has more than its capacity.
func (index *Index) evictOverLocked(r *rankBlocks) {
	if r.blocks == nil {
		return
	}
	if used := uint64(r.n + r.private); used > r.capacity {
		index.evictListLocked(r, int(min(used-r.capacity, uint64(r.n))))
	}
}

// evictListLocked evicts at most most of the oldest blocks of a rank's list, and returns their
// number.
func (index *Index) evictListLocked(r *rankBlocks, most int) (n int) {
	for ; n < most; n++ {
		id := index.block(r.end).newer
		if id == r.end {
			break
		}
		index.evicted = append(index.evicted, index.block(id).hash)
		index.dropLocked(id)
	}
	index.unindexEvictedLocked(r)
	return n
}

// dissolveListLocked moves the blocks of a rank that has left to the order by time, before all
// others.
func (index *Index) dissolveListLocked(r *rankBlocks) {
	if r.end == 0 {
		return
	}
	end := index.block(r.end)
	if first, last := end.newer, end.older; first != r.end {
		oldest := index.block(0).newer
		index.block(0).newer, index.block(first).older = first, 0
		index.block(last).newer, index.block(oldest).older = oldest, last
	}
	end.newer, index.free = index.free, r.end
	r.end = 0
	index.lists--
}
