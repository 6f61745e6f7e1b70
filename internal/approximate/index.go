// Package approximate predicts what engines have cached from what was booked on them,
// as dynamo-kv-router 1.6.1 does: where engines publish no KV events, instead of
// their index, and beside it for the time until the first event of a prompt comes.
// The blocks of a booked prompt stand in an index like those of an engine, under
// their rolling hashes, until their last reservation was too long ago.
package approximate

import (
	"context"
	"sort"
	"sync"
	"time"
	"unsafe"

	"github.com/select-service/select-service/internal/budget"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/recovery"
)

const (
	// MaxBlocks bounds the blocks of all ranks of the process; about 400 MB
	// with the scopes' indexes. The oldest make room.
	MaxBlocks = 1 << 22
	// BlockBytes is about what a block takes here and in its scope's index.
	BlockBytes = 128
	// entryBytes is about what a block takes in rankBlocks.blocks.
	entryBytes = 32
	// maxAtOnce is how many blocks come or go before others get the lock.
	maxAtOnce = 4096
	// ticksPerTTL: a second reservation in the same part of the TTL prolongs
	// nothing, so that very common prefixes cost next to nothing. A block stays
	// for up to that part too long.
	ticksPerTTL = 64
	// Blocks that are due are looked for once in a tick, within these bounds.
	minSweep, maxSweep = 10 * time.Millisecond, time.Second
	// maxPooledHashes is the largest prompt, in blocks, whose memory for rolling
	// hashes is used again.
	maxPooledHashes = 1 << 17
)

// Index has the blocks that reservations put into the indexes of all scopes, in
// the order in which they are evicted: by the last reservation, and a block
// before its parent. The index of a rank therefore never has a hole.
//
// Both hold by where blocks enter the order: those of a reservation go, as a
// chain, right before the block that they follow, or to the end if they begin a
// prompt. A block that is not moved was booked in the same tick already, so
// all blocks behind it in the order are as new.
type Index struct {
	ttl, tick time.Duration
	limit     int
	account   *budget.Account // of the order and the ranks; nil: not counted
	now       func() time.Time
	epoch     time.Time

	// mu guards order, and the ranks of all scopes. It comes before the locks of
	// gates and indexes.
	mu sync.Mutex
	order
	leases
	counted int64 // bytes that the account has counted
}

// order is a linked list of blocks in chunks of memory, with the ranks that they
// belong to.
type order struct {
	chunks      []*[chunk]block // block 0 is the end of the order
	used        uint32          // blocks of chunks, the free ones too
	free        uint32          // the first of those that are free, linked by newer
	n           int             // blocks in the order
	ranks       []*rankBlocks   // by number
	freeNumbers []uint32        // numbers of no rank
	evicted     []uint64        // scratch of evictLocked
}

// chunk is how many blocks get their memory at once.
const chunk = 1 << 12

// block is one block in the cache of one rank.
type block struct {
	hash         uint64 // rolling hash
	tick         int64  // of the last reservation
	older, newer uint32 // in the order; 0 is the end
	rank         uint32 // number
	depth        uint32 // blocks before it
	leases       uint32 // that use it
}

// dueTick is the tick of a block that is kept for its rank's capacity: when the rank
// has left it is due.
const dueTick = -2 * ticksPerTTL

// rankBlocks is what one rank has been booked for while it has a slot of a
// scope's index.
type rankBlocks struct {
	gate   *recovery.Gate
	slot   uint32
	rank   catalog.Rank
	number uint32            // in order.ranks
	blocks map[uint64]uint32 // by rolling hash; nil once the rank has left
	n      int               // its blocks, also after the rank has left
	// For a rank that is followed by its capacity: the end of its list, else 0; the
	// capacity in blocks; and how many blocks its requests have that are not in blocks.
	end      uint32
	capacity uint64
	private  int
}

// New returns an index of at most limit blocks, each of which stays for ttl after
// its last reservation. Its memory is counted in account, if there is one, beside
// that of the scopes' indexes. The time comes from now.
func New(ttl time.Duration, limit int, account *budget.Account, now func() time.Time) *Index {
	x := &Index{
		ttl: ttl, tick: max(ttl/ticksPerTTL, time.Millisecond), limit: limit,
		account: account, now: now, epoch: now(),
	}
	x.resetLocked()
	x.settleLocked()
	return x
}

// Scope is the ranks of one scope in an Index.
type Scope struct {
	index *Index
	gate  *recovery.Gate
	ranks map[uint32]*rankBlocks // by slot, from the first booking on; guarded by index.mu
}

// NewScope returns the part of a new scope, whose index is written through gate.
func (x *Index) NewScope(gate *recovery.Gate) *Scope {
	return &Scope{index: x, gate: gate, ranks: make(map[uint32]*rankBlocks)}
}

// AssignSlot gives a slot to a rank, in the scope's index, too. It does nothing if
// the rank has it.
func (s *Scope) AssignSlot(slot uint32, r catalog.Rank) {
	s.remove(slot, &r)
	s.gate.AssignSlot(slot, r)
}

// ReleaseSlot empties a slot whose rank has left, in the scope's index, too.
func (s *Scope) ReleaseSlot(slot uint32) {
	s.remove(slot, nil)
	s.gate.ReleaseSlot(slot)
	s.remove(slot, nil) // a booking may have come in between
}

// Clear forgets what was predicted for the rank of a slot, whose cache is empty now. It
// must not run at the same time as AssignSlot or ReleaseSlot of the same slot.
func (s *Scope) Clear(slot uint32) {
	s.index.mu.Lock()
	r := s.ranks[slot]
	s.index.mu.Unlock()
	if r != nil {
		s.ReleaseSlot(slot)
		s.gate.AssignSlot(slot, r.rank)
	}
}

// hashMemory is memory for rolling hashes. The caller's own cannot be used: a
// hash that does not follow from the blocks before could stand for two of them.
var hashMemory = sync.Pool{New: func() any { return new([]uint64) }}

// Book notes that a prompt was sent to a rank, whose cache will have it. It does
// nothing if the rank has left. The local hashes are borrowed.
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

// book enters the blocks of a prompt. A long one is entered in parts, so that
// others need not wait for all of it: a part that was just entered is fresh when
// the next one looks at it.
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

// rankLocked returns what a rank has been booked for, nil if it has left between choice
// and reservation.
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

// remove forgets the rank of a slot, but for the one to stay. After it no block
// is entered for the rank, and the scope's index can be emptied.
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

// resetLocked gives the memory of an empty order back.
func (x *Index) resetLocked() {
	x.chunks = []*[chunk]block{new([chunk]block)}
	x.used, x.free = 1, 0
}

// settleLocked brings the account up to date.
func (x *Index) settleLocked() {
	bytes := int64(len(x.chunks))*chunk*int64(unsafe.Sizeof(block{})) + int64(x.n)*entryBytes + 4*int64(x.inUse)
	x.account.Add(bytes - x.counted)
	x.counted = bytes
}

func (x *Index) block(id uint32) *block { return &x.chunks[id/chunk][id%chunk] }

// touchLocked notes that the blocks of a prompt were booked now. Blocks first to
// end-1 are new; those from end on could not be entered.
func (x *Index) touchLocked(r *rankBlocks, hashes []uint64) (first, end int) {
	tick := int64(x.now().Sub(x.epoch) / x.tick)
	// A parent was booked no earlier than its child, so these are a prefix.
	fresh := sort.Search(len(hashes), func(i int) bool {
		id := r.blocks[hashes[i]]
		return id == 0 || x.block(id).depth != uint32(i) || x.block(id).tick != tick
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
			if id = x.addBlockLocked(r, hashes[i], uint32(i), at); id == 0 {
				return first, i
			}
		case x.block(id).depth != uint32(i): // two blocks of the same hash
			return min(first, i), i
		default:
			x.unlinkLocked(id)
		}
		x.block(id).tick = tick
		x.linkLocked(id, at)
		at = id
	}
	return first, len(hashes)
}

// addBlockLocked makes a block, 0 if there is no room: everything is as new as
// its parent.
func (x *Index) addBlockLocked(r *rankBlocks, hash uint64, depth, parent uint32) uint32 {
	if x.n >= x.limit && x.evictLocked(1+x.limit/maxAtOnce, func(id uint32) bool { return id != parent }) == 0 {
		return 0
	}
	return x.enterLocked(r, block{hash: hash, depth: depth})
}

// enterLocked makes a block of a rank. It is in no list.
func (x *Index) enterLocked(r *rankBlocks, b block) uint32 {
	id := x.newBlockLocked()
	b.rank = r.number
	*x.block(id) = b
	r.blocks[b.hash] = id
	r.n++
	x.n++
	return id
}

// newBlockLocked returns memory for a block.
func (x *Index) newBlockLocked() uint32 {
	if id := x.free; id != 0 {
		x.free = x.block(id).newer
		return id
	}
	if x.used%chunk == 0 {
		x.chunks = append(x.chunks, new([chunk]block))
	}
	x.used++
	return x.used - 1
}

// linkLocked puts a block into the order, right before another or at its end.
func (x *Index) linkLocked(id, before uint32) {
	b, next := x.block(id), x.block(before)
	b.older, b.newer = next.older, before
	x.block(b.older).newer = id
	next.older = id
}

func (x *Index) unlinkLocked(id uint32) {
	b := x.block(id)
	x.block(b.older).newer = b.newer
	x.block(b.newer).older = b.older
}

// Run evicts blocks when they are due until ctx ends.
func (x *Index) Run(ctx context.Context) error {
	due := time.NewTicker(min(max(x.tick, minSweep), maxSweep))
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-due.C:
			x.Sweep()
		}
	}
}

// Sweep evicts the blocks whose last reservation was too long ago. It lets others
// have the lock in between.
func (x *Index) Sweep() {
	for x.sweepPart() == maxAtOnce {
	}
}

func (x *Index) sweepPart() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	defer x.settleLocked()
	x.releaseEndedLocked()
	now := x.now().Sub(x.epoch)
	n := x.evictLocked(maxAtOnce, func(id uint32) bool {
		return time.Duration(x.block(id).tick+1)*x.tick+x.ttl <= now
	})
	if x.n == 0 && x.lists == 0 && n > 0 {
		x.resetLocked()
	}
	return n
}

// evictLocked evicts the oldest blocks while they are due, at most so many. It
// returns how many these were.
func (x *Index) evictLocked(most int, due func(id uint32) bool) (n int) {
	var of *rankBlocks // whose blocks evicted has
	for ; n < most; n++ {
		id := x.block(0).newer
		if id == 0 || !due(id) {
			break
		}
		b := x.block(id)
		r := x.ranks[b.rank]
		if r != of {
			x.unindexEvictedLocked(of)
			of = r
		}
		x.evicted = append(x.evicted, b.hash)
		x.dropLocked(id)
	}
	x.unindexEvictedLocked(of)
	return n
}

// dropLocked takes a block out of the order and its rank.
func (x *Index) dropLocked(id uint32) {
	b := x.block(id)
	r := x.ranks[b.rank]
	delete(r.blocks, b.hash)
	x.unlinkLocked(id)
	b.newer, b.hash = x.free, 0
	x.free = id
	x.n--
	if r.n--; r.n == 0 {
		x.emptiedLocked(r)
	}
}

// unindexEvictedLocked takes the evicted blocks out of a rank's index, unless the
// rank has left and its index with it.
func (x *Index) unindexEvictedLocked(r *rankBlocks) {
	if r != nil && r.blocks != nil {
		r.gate.Remove(r.slot, indexer.Device, x.evicted)
	}
	x.evicted = x.evicted[:0]
}

func (x *Index) addRankLocked(gate *recovery.Gate, slot uint32, rank catalog.Rank) *rankBlocks {
	r := &rankBlocks{gate: gate, slot: slot, rank: rank, blocks: make(map[uint64]uint32)}
	if n := len(x.freeNumbers); n > 0 {
		r.number, x.freeNumbers = x.freeNumbers[n-1], x.freeNumbers[:n-1]
		x.ranks[r.number] = r
	} else {
		r.number = uint32(len(x.ranks))
		x.ranks = append(x.ranks, r)
	}
	return r
}

// removeRankLocked: the rank has left. There may be very many blocks of it: they
// stay in the order, without effect, until it is their turn to be evicted.
func (x *Index) removeRankLocked(r *rankBlocks) {
	r.blocks = nil
	x.dissolveListLocked(r)
	if r.n == 0 {
		x.emptiedLocked(r)
	}
}

// emptiedLocked gives the memory of a rank without blocks back.
func (x *Index) emptiedLocked(r *rankBlocks) {
	if r.blocks != nil {
		r.blocks = make(map[uint64]uint32) // maps do not shrink
		return
	}
	x.ranks[r.number] = nil
	x.freeNumbers = append(x.freeNumbers, r.number)
}

// Blocks returns how many blocks there are, those of ranks that left included.
func (x *Index) Blocks() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.n
}
