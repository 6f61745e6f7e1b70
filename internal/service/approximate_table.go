package service

import (
	"sort"
	"sync"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/recovery"
)

// Bounds of what is predicted.
const (
	// maxPredicted bounds the blocks of all ranks of the process; about 400 MB
	// with the index. The oldest make room.
	maxPredicted = 1 << 22
	// maxAtOnce is how many blocks come or go before others get the lock.
	maxAtOnce = 4096
	// ticksPerTTL: a second booking in the same part of the TTL prolongs nothing,
	// so that prefixes that everybody has cost next to nothing. A block stays for
	// up to that part too long.
	ticksPerTTL = 64
)

// predictions are the blocks that bookings put into the indexes of all pools, in
// the order in which they leave: by the last booking, and a block before its
// parent. The index of a rank therefore never has a hole.
//
// Both hold by where blocks enter the order: those of a booking go, as a chain,
// right before the block that they follow, or to the end if they begin a prompt.
// All that is not moved was booked in the same tick already, so whatever stands
// behind it is as new.
type predictions struct {
	ttl, tick time.Duration
	limit     int
	now       func() time.Time
	epoch     time.Time

	// mu guards what follows and the seats of all pools. It comes before the locks
	// of gates and indexes.
	mu     sync.Mutex
	chunks []*[chunk]predicted // block 0 is the end of the order
	used   uint32              // blocks of chunks, the free ones too
	free   uint32              // the first of those that are free, linked by next
	n      int                 // in the order
	seats  []*seat             // by number
	vacant []uint32            // numbers of no seat
	gone   []uint64            // scratch of evictLocked
}

// chunk is how many blocks get their memory at once.
const chunk = 1 << 12

// predicted is one block in the cache of one rank.
type predicted struct {
	name         uint64 // rolling hash
	tick         int64  // of the last booking
	older, newer uint32 // in the order; 0 is the end
	seat         uint32
	depth        uint32 // blocks before it
}

// seat is the time of one rank in one slot of an index.
type seat struct {
	gate   *recovery.Gate
	slot   uint32
	rank   catalog.Rank
	number uint32
	blocks map[uint64]uint32 // by name; nil once the rank has left
	n      int               // blocks in the order, also then
}

// newPredictions returns a table of at most limit blocks, each of which stays
// for ttl behind its last booking. The time comes from now.
func newPredictions(ttl time.Duration, limit int, now func() time.Time) *predictions {
	t := &predictions{ttl: ttl, tick: max(ttl/ticksPerTTL, time.Millisecond), limit: limit, now: now, epoch: now()}
	t.resetLocked()
	return t
}

// resetLocked gives the memory of an empty table back.
func (t *predictions) resetLocked() {
	t.chunks = []*[chunk]predicted{new([chunk]predicted)}
	t.used, t.free = 1, 0
}

func (t *predictions) block(id uint32) *predicted { return &t.chunks[id/chunk][id%chunk] }

// touchLocked notes that the blocks of a prompt were booked now. Blocks first to
// end-1 are new; those from end on could not be entered.
func (t *predictions) touchLocked(st *seat, names []uint64) (first, end int) {
	tick := int64(t.now().Sub(t.epoch) / t.tick)
	// A parent was booked no earlier than its child, so these are a prefix.
	fresh := sort.Search(len(names), func(i int) bool {
		id := st.blocks[names[i]]
		return id == 0 || t.block(id).depth != uint32(i) || t.block(id).tick != tick
	})
	at := uint32(0)
	if fresh > 0 {
		at = st.blocks[names[fresh-1]]
	}
	first = len(names)
	for i := fresh; i < len(names); i++ {
		id := st.blocks[names[i]]
		switch {
		case id == 0:
			first = min(first, i)
			if id = t.enterLocked(st, names[i], uint32(i), at); id == 0 {
				return first, i
			}
		case t.block(id).depth != uint32(i): // two blocks of the same hash
			return min(first, i), i
		default:
			t.unlinkLocked(id)
		}
		t.block(id).tick = tick
		t.linkLocked(id, at)
		at = id
	}
	return first, len(names)
}

// enterLocked makes a block, 0 if there is no room: everything is as new as the
// block it would follow.
func (t *predictions) enterLocked(st *seat, name uint64, depth, behind uint32) uint32 {
	if t.n >= t.limit && t.evictLocked(1+t.limit/maxAtOnce, func(id uint32) bool { return id != behind }) == 0 {
		return 0
	}
	id := t.free
	switch {
	case id != 0:
		t.free = t.block(id).newer
	default:
		if t.used%chunk == 0 {
			t.chunks = append(t.chunks, new([chunk]predicted))
		}
		id = t.used
		t.used++
	}
	*t.block(id) = predicted{name: name, seat: st.number, depth: depth}
	st.blocks[name] = id
	st.n++
	t.n++
	return id
}

// linkLocked puts a block into the order, right before another or at its end.
func (t *predictions) linkLocked(id, before uint32) {
	b, next := t.block(id), t.block(before)
	b.older, b.newer = next.older, before
	t.block(b.older).newer = id
	next.older = id
}

func (t *predictions) unlinkLocked(id uint32) {
	b := t.block(id)
	t.block(b.older).newer = b.newer
	t.block(b.newer).older = b.older
}

// sweep takes out what was booked too long ago, and lets others in between.
func (t *predictions) sweep() {
	for t.sweepPart() == maxAtOnce {
	}
}

func (t *predictions) sweepPart() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now().Sub(t.epoch)
	n := t.evictLocked(maxAtOnce, func(id uint32) bool {
		return time.Duration(t.block(id).tick+1)*t.tick+t.ttl <= now
	})
	if t.n == 0 && n > 0 {
		t.resetLocked()
	}
	return n
}

// evictLocked takes the oldest blocks out while they are due, at most so many. It
// returns how many these were.
func (t *predictions) evictLocked(most int, due func(id uint32) bool) (n int) {
	var run *seat // whose blocks gone has
	for ; n < most; n++ {
		id := t.block(0).newer
		if id == 0 || !due(id) {
			break
		}
		b := t.block(id)
		st := t.seats[b.seat]
		if st != run {
			t.removeGoneLocked(run)
			run = st
		}
		t.gone = append(t.gone, b.name)
		delete(st.blocks, b.name)
		t.unlinkLocked(id)
		b.newer, b.name = t.free, 0
		t.free = id
		t.n--
		if st.n--; st.n == 0 {
			t.emptiedLocked(st)
		}
	}
	t.removeGoneLocked(run)
	return n
}

// removeGoneLocked takes blocks out of a rank's index, unless it left with it.
func (t *predictions) removeGoneLocked(st *seat) {
	if st != nil && st.blocks != nil {
		st.gate.Remove(st.slot, indexer.Device, t.gone)
	}
	t.gone = t.gone[:0]
}

// seatLocked makes a seat.
func (t *predictions) seatLocked(gate *recovery.Gate, slot uint32, r catalog.Rank) *seat {
	st := &seat{gate: gate, slot: slot, rank: r, blocks: make(map[uint64]uint32)}
	if n := len(t.vacant); n > 0 {
		st.number, t.vacant = t.vacant[n-1], t.vacant[:n-1]
		t.seats[st.number] = st
	} else {
		st.number = uint32(len(t.seats))
		t.seats = append(t.seats, st)
	}
	return st
}

// vacateLocked: the rank has left. Its blocks stay in the order until their turn
// comes, of no account: a rank may have very many.
func (t *predictions) vacateLocked(st *seat) {
	st.blocks = nil
	if st.n == 0 {
		t.emptiedLocked(st)
	}
}

// emptiedLocked gives the memory of a seat without blocks back.
func (t *predictions) emptiedLocked(st *seat) {
	if st.blocks != nil {
		st.blocks = make(map[uint64]uint32) // maps do not shrink
		return
	}
	t.seats[st.number] = nil
	t.vacant = append(t.vacant, st.number)
}

// blocks returns how many there are in the order.
func (t *predictions) blocks() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}
