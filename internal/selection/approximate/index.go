package approximate

import (
	"context"
	"sort"
	"sync"
	"time"
	"unsafe"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/pkg/recovery"
)

const (
	// MaxBlocks bounds the blocks of all ranks of the process, about 400 MB with the scopes'
	// indexes. The oldest blocks make room.
	MaxBlocks = 1 << 22
	// BlockBytes is the approximate memory of a block here and in its scope's index.
	BlockBytes = 128
	// entryBytes is the approximate memory of a block in rankBlocks.blocks.
	entryBytes = 32
	// maxAtOnce is how many blocks are added or removed in one hold of the lock.
	maxAtOnce = 4096
	// ticksPerTTL divides the TTL into ticks. A further reservation in the same tick extends
	// nothing, so that very common prefixes cost next to nothing. A block therefore stays for
	// up to a tick too long.
	ticksPerTTL = 64
	// Due blocks are evicted once per tick, within these bounds.
	minSweep, maxSweep = 10 * time.Millisecond, time.Second
	// maxPooledHashes is the largest prompt, in blocks, whose memory for rolling hashes is pooled.
	maxPooledHashes = 1 << 17
)

// Index has the blocks that reservations have put into the indexes of all scopes, in order
// of eviction: by last reservation, and a block before its parent. The index of a rank
// therefore never has a gap.
//
// The place where blocks enter the order ensures both. The blocks of a reservation go, as a
// chain, right before the block that they follow, or to the end if they begin a prompt. A
// block that is not moved was already booked in the same tick, so all blocks behind it in the
// order are as recent.
type Index struct {
	ttl, tick time.Duration
	limit     int
	account   *memory.Account // of the order and the ranks; nil: not counted
	now       func() time.Time
	epoch     time.Time

	// mu guards order, and the ranks of all scopes. It is taken before the locks of gates and
	// indexes.
	mu sync.Mutex
	order
	leases
	counted int64 // bytes counted in account
}

// order is a linked list of blocks in chunks of memory, with the ranks that they
// belong to.
type order struct {
	chunks      []*[chunk]block // block 0 is the end of the order
	used        uint32          // used blocks of chunks, including free ones
	free        uint32          // first free block; they are linked by newer
	n           int             // blocks in the order
	ranks       []*rankBlocks   // by number
	freeNumbers []uint32        // unused rank numbers
	evicted     []uint64        // scratch memory of evictLocked
}

// chunk is the number of blocks that are allocated at once.
const chunk = 1 << 12

// block is one block in the cache of one rank.
type block struct {
	hash         uint64 // rolling hash
	tick         int64  // tick of the last reservation
	older, newer uint32 // neighbours in the order; 0 is the end
	rank         uint32 // number
	depth        uint32 // blocks before it
	leases       uint32 // number of leases that use it
}

// dueTick is the tick of blocks kept by their rank's capacity; once the rank has left,
// they are due at once.
const dueTick = -2 * ticksPerTTL

// rankBlocks has the blocks that were booked on one rank while it has a slot of a scope's index.
type rankBlocks struct {
	gate   *recovery.Gate
	slot   uint32
	rank   catalog.Rank
	number uint32            // in order.ranks
	blocks map[uint64]uint32 // by rolling hash; nil once the rank has left
	n      int               // number of its blocks, also after the rank has left
	// For a rank that is followed by its capacity (else 0): the end of its list, the capacity
	// in blocks, and the number of its requests' blocks that are not in blocks.
	end      uint32
	capacity uint64
	private  int
}

// New returns an index of at most limit blocks, each of which stays for ttl after its last
// reservation. account (may be nil) counts its memory, without that of the scopes' indexes.
// now returns the time.
func New(ttl time.Duration, limit int, account *memory.Account, now func() time.Time) *Index {
	x := &Index{
		ttl: ttl, tick: max(ttl/ticksPerTTL, time.Millisecond), limit: limit,
		account: account, now: now, epoch: now(),
	}
	x.resetLocked()
	x.settleLocked()
	return x
}

// Scope has the ranks of one scope in an Index.
type Scope struct {
	index *Index
	gate  *recovery.Gate
	ranks map[uint32]*rankBlocks // by slot, from the first booking on; guarded by index.mu
}

// NewScope returns the part of a new scope; gate writes the scope's index.
func (index *Index) NewScope(gate *recovery.Gate) *Scope {
	return &Scope{index: index, gate: gate, ranks: make(map[uint32]*rankBlocks)}
}

// AssignSlot assigns a slot to a rank, here and in the scope's index. It does nothing if the
// rank has it already.
func (s *Scope) AssignSlot(slot uint32, r catalog.Rank) {
	s.remove(slot, &r)
	s.gate.AssignSlot(slot, r)
}

// ReleaseSlot empties a slot whose rank has left, here and in the scope's index.
func (s *Scope) ReleaseSlot(slot uint32) {
	s.remove(slot, nil)
	s.gate.ReleaseSlot(slot)
	s.remove(slot, nil) // a booking may have added the rank again meanwhile
}

// Clear drops the predictions for the rank of a slot, whose cache is now empty. It must not run
// concurrently with AssignSlot or ReleaseSlot of the same slot.
func (s *Scope) Clear(slot uint32) {
	s.index.mu.Lock()
	r := s.ranks[slot]
	s.index.mu.Unlock()
	if r != nil {
		s.ReleaseSlot(slot)
		s.gate.AssignSlot(slot, r.rank)
	}
}

// hashMemory pools memory for rolling hashes. The caller's rolling hashes cannot be used: if
// they do not follow from the local ones, a hash could stand for two blocks.
var hashMemory = sync.Pool{New: func() any { return new([]uint64) }}

// Book predicts that a rank will have a prompt cached that was sent to it. It does nothing if
// the rank has left. The local hashes are borrowed.
func (s *Scope) Book(e catalog.Entry, local []uint64) {
	if len(local) == 0 {
		return
	}
	hashes := hashMemory.Get().(*[]uint64)
	*hashes = hashing.AppendSequence((*hashes)[:0], local)
	s.book(e, *hashes, local)
	if cap(*hashes) <= maxPooledHashes {
		hashMemory.Put(hashes)
	}
}

// book adds the blocks of a prompt. A long prompt is added in parts, so that other callers need
// not wait for all of it. A part just added is still recent when the next part follows it.
func (s *Scope) book(e catalog.Entry, hashes, local []uint64) {
	for end := 0; end < len(hashes); {
		end = min(end+maxAtOnce, len(hashes))
		if !s.bookPart(e, hashes[:end], local[:end]) {
			return
		}
	}
}

// bookPart reports whether there was room for all blocks.
func (s *Scope) bookPart(e catalog.Entry, hashes, local []uint64) bool {
	x := s.index
	x.mu.Lock()
	defer x.mu.Unlock()
	defer x.settleLocked()
	r := s.rankLocked(e)
	if r == nil {
		return false
	}
	first, end := x.touchLocked(r, hashes)
	if first == end {
		return end == len(hashes)
	}
	ev := indexer.Store{Slot: e.Slot, Tier: indexer.Device, EngineHashes: hashes[first:end], Local: local[first:end]}
	if first > 0 {
		ev.Parent, ev.HasParent = hashes[first-1], true
	}
	if s.gate.Store(&ev).Refused > 0 { // the account of the scope's index is full
		s.gate.Remove(e.Slot, indexer.Device, ev.EngineHashes)
		for _, hash := range ev.EngineHashes {
			x.dropLocked(r.blocks[hash])
		}
		return false
	}
	return end == len(hashes)
}

// rankLocked returns the blocks of a rank, nil if it has left between choice and reservation.
func (s *Scope) rankLocked(e catalog.Entry) *rankBlocks {
	r := s.ranks[e.Slot]
	if r == nil && s.gate.Has(e.Slot, e.Rank) {
		r = s.index.addRankLocked(s.gate, e.Slot, e.Rank)
		s.ranks[e.Slot] = r
	}
	if r == nil || r.rank != e.Rank {
		return nil
	}
	return r
}

// remove drops the rank of a slot, unless it is *stay. Afterwards no block is added for the
// rank, and the scope's index can be emptied.
func (s *Scope) remove(slot uint32, stay *catalog.Rank) {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	defer s.index.settleLocked()
	r := s.ranks[slot]
	if r == nil || stay != nil && r.rank == *stay {
		return
	}
	delete(s.ranks, slot)
	s.index.removeRankLocked(r)
}

// resetLocked releases the memory of an empty order.
func (index *Index) resetLocked() {
	index.chunks = []*[chunk]block{new([chunk]block)}
	index.used, index.free = 1, 0
}

// settleLocked brings the account up to date.
func (index *Index) settleLocked() {
	bytes := int64(len(index.chunks))*chunk*int64(unsafe.Sizeof(block{})) + int64(index.n)*entryBytes + 4*int64(index.inUse)
	index.account.Add(bytes - index.counted)
	index.counted = bytes
}

func (index *Index) block(id uint32) *block { return &index.chunks[id/chunk][id%chunk] }

// touchLocked records that the blocks of a prompt were booked now. Blocks first to end-1 are
// new; there was no room for those from end on.
func (index *Index) touchLocked(r *rankBlocks, hashes []uint64) (first, end int) {
	tick := int64(index.now().Sub(index.epoch) / index.tick)
	// A parent was booked no earlier than its child, so these are a prefix.
	fresh := sort.Search(len(hashes), func(i int) bool {
		id := r.blocks[hashes[i]]
		return id == 0 || index.block(id).depth != uint32(i) || index.block(id).tick != tick
	})
	at := uint32(0)
	if fresh > 0 {
		at = r.blocks[hashes[fresh-1]]
	}
	first = len(hashes)
	for i := fresh; i < len(hashes); i++ {
		id := r.blocks[hashes[i]]
		switch {
		case id == 0:
			first = min(first, i)
			if id = index.addBlockLocked(r, hashes[i], uint32(i), at); id == 0 {
				return first, i
			}
		case index.block(id).depth != uint32(i): // two blocks of the same hash
			return min(first, i), i
		default:
			index.unlinkLocked(id)
		}
		index.block(id).tick = tick
		index.linkLocked(id, at)
		at = id
	}
	return first, len(hashes)
}

// addBlockLocked adds a block before its parent. It returns 0 if there is no room, which means
// that all blocks are as recent as the parent.
func (index *Index) addBlockLocked(r *rankBlocks, hash uint64, depth, parent uint32) uint32 {
	if index.n >= index.limit && index.evictLocked(1+index.limit/maxAtOnce, func(id uint32) bool { return id != parent }) == 0 {
		return 0
	}
	return index.enterLocked(r, block{hash: hash, depth: depth})
}

// enterLocked creates a block of a rank, in no list.
func (index *Index) enterLocked(r *rankBlocks, b block) uint32 {
	id := index.newBlockLocked()
	b.rank = r.number
	*index.block(id) = b
	r.blocks[b.hash] = id
	r.n++
	index.n++
	return id
}

// newBlockLocked returns memory for a block.
func (index *Index) newBlockLocked() uint32 {
	if id := index.free; id != 0 {
		index.free = index.block(id).newer
		return id
	}
	if index.used%chunk == 0 {
		index.chunks = append(index.chunks, new([chunk]block))
	}
	index.used++
	return index.used - 1
}

// linkLocked puts a block into the order, right before another or at its end.
func (index *Index) linkLocked(id, before uint32) {
	b, next := index.block(id), index.block(before)
	b.older, b.newer = next.older, before
	index.block(b.older).newer = id
	next.older = id
}

func (index *Index) unlinkLocked(id uint32) {
	b := index.block(id)
	index.block(b.older).newer = b.newer
	index.block(b.newer).older = b.older
}

// Run evicts due blocks until ctx ends.
func (index *Index) Run(ctx context.Context) error {
	due := time.NewTicker(min(max(index.tick, minSweep), maxSweep))
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-due.C:
			index.Sweep()
		}
	}
}

// Sweep evicts the blocks whose last reservation is too old. It releases the lock in between.
func (index *Index) Sweep() {
	for index.sweepPart() == maxAtOnce {
	}
}

func (index *Index) sweepPart() int {
	index.mu.Lock()
	defer index.mu.Unlock()
	defer index.settleLocked()
	index.releaseEndedLocked()
	now := index.now().Sub(index.epoch)
	n := index.evictLocked(maxAtOnce, func(id uint32) bool {
		return time.Duration(index.block(id).tick+1)*index.tick+index.ttl <= now
	})
	if index.n == 0 && index.lists == 0 && n > 0 {
		index.resetLocked()
	}
	return n
}

// evictLocked evicts the oldest blocks while they are due, at most most of them, and
// returns their number.
func (index *Index) evictLocked(most int, due func(id uint32) bool) (n int) {
	var of *rankBlocks // rank of the blocks in evicted
	for ; n < most; n++ {
		id := index.block(0).newer
		if id == 0 || !due(id) {
			break
		}
		b := index.block(id)
		r := index.ranks[b.rank]
		if r != of {
			index.unindexEvictedLocked(of)
			of = r
		}
		index.evicted = append(index.evicted, b.hash)
		index.dropLocked(id)
	}
	index.unindexEvictedLocked(of)
	return n
}

// dropLocked removes a block from the order and from its rank.
func (index *Index) dropLocked(id uint32) {
	b := index.block(id)
	r := index.ranks[b.rank]
	delete(r.blocks, b.hash)
	index.unlinkLocked(id)
	b.newer, b.hash = index.free, 0
	index.free = id
	index.n--
	if r.n--; r.n == 0 {
		index.emptiedLocked(r)
	}
}

// unindexEvictedLocked removes the evicted blocks from a rank's index, unless the rank has left
// and its index slot with it.
func (index *Index) unindexEvictedLocked(r *rankBlocks) {
	if r != nil && r.blocks != nil {
		r.gate.Remove(r.slot, indexer.Device, index.evicted)
	}
	index.evicted = index.evicted[:0]
}

func (index *Index) addRankLocked(gate *recovery.Gate, slot uint32, rank catalog.Rank) *rankBlocks {
	r := &rankBlocks{gate: gate, slot: slot, rank: rank, blocks: make(map[uint64]uint32)}
	if n := len(index.freeNumbers); n > 0 {
		r.number, index.freeNumbers = index.freeNumbers[n-1], index.freeNumbers[:n-1]
		index.ranks[r.number] = r
	} else {
		r.number = uint32(len(index.ranks))
		index.ranks = append(index.ranks, r)
	}
	return r
}

// removeRankLocked removes a rank that has left. It may have very many blocks: they stay in the
// order, without effect, until they are evicted in turn.
func (index *Index) removeRankLocked(r *rankBlocks) {
	r.blocks = nil
	index.dissolveListLocked(r)
	if r.n == 0 {
		index.emptiedLocked(r)
	}
}

// emptiedLocked releases the memory of a rank without blocks.
func (index *Index) emptiedLocked(r *rankBlocks) {
	if r.blocks != nil {
		r.blocks = make(map[uint64]uint32) // maps do not shrink
		return
	}
	index.ranks[r.number] = nil
	index.freeNumbers = append(index.freeNumbers, r.number)
}

// Blocks returns the number of blocks, including those of ranks that have left.
func (index *Index) Blocks() int {
	index.mu.Lock()
	defer index.mu.Unlock()
	return index.n
}
