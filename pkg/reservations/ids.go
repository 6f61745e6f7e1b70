package reservations

import (
	"hash/maphash"
	"maps"
	"sync"

	"github.com/select-service/select-service/pkg/catalog"
)

const (
	idShards = 64
	// shrinkAbove is the number of ids from which on a shard is copied into a smaller
	// map when few are left, because Go maps never shrink.
	shrinkAbove = 1024
)

// ids finds live reservations by their id, over all scopes. Those of one id form
// a chain in the order of their entry; nearly every chain has one member.
//
// A chain is walked without the locks of its members' scopes. Unless the lock of its
// scope is held, only the fields of a member that never change may be read, and of
// its origin only the process.
type ids struct {
	seed   maphash.Seed
	shards [idShards]idShard
}

type idShard struct {
	// mu guards the fields below and entry.next. It is an innermost lock.
	mu   sync.Mutex
	live map[string]*entry // the heads of the chains
	peak int               // most ids since live was made
}

func newIDs() *ids {
	x := &ids{seed: maphash.MakeSeed()}
	for i := range x.shards {
		x.shards[i].live = make(map[string]*entry)
	}
	return x
}

func (i *ids) shard(id string) *idShard {
	return &i.shards[maphash.String(i.seed, id)%idShards]
}

// claim enters r, or returns the reservation that has its id already.
func (i *ids) claim(r *entry) (holder *entry) {
	sh := i.shard(r.id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	head := sh.live[r.id]
	for m := head; m != nil; m = m.next {
		if m.scope == r.scope || !r.perScope && !m.perScope {
			return m
		}
	}
	sh.enter(r, head)
	return nil
}

// enter enters r beside all others of its id.
func (i *ids) enter(r *entry) {
	sh := i.shard(r.id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.enter(r, sh.live[r.id])
}

// enter appends r to the chain that starts with head, which may be nil.
func (sh *idShard) enter(r, head *entry) {
	if head == nil {
		sh.live[r.id] = r
		sh.peak = max(sh.peak, len(sh.live))
		return
	}
	for head.next != nil {
		head = head.next
	}
	head.next = r
}

// release removes r, which must be entered.
func (i *ids) release(r *entry) {
	sh := i.shard(r.id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if head := sh.live[r.id]; head != r {
		for head.next != r {
			head = head.next
		}
		head.next = r.next
		return
	}
	if r.next != nil {
		sh.live[r.id] = r.next
		return
	}
	delete(sh.live, r.id)
	if n := len(sh.live); sh.peak > shrinkAbove && 8*n < sh.peak {
		small := make(map[string]*entry, 2*n)
		maps.Copy(small, sh.live)
		sh.live, sh.peak = small, n
	}
}

// find returns the live reservation that a call by id means, or nil: see calls.go.
// in, if not nil, is the scope to look in.
func (i *ids) find(id string, in *scope, own uint64) (best *entry) {
	sh := i.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for m := sh.live[id]; m != nil; m = m.next {
		if in != nil && m.scope != in {
			continue
		}
		if best == nil || m.preferredTo(best, in != nil, own) {
			best = m
		}
	}
	return best
}

// preferredTo reports whether a call by id, in one scope or not, means r rather than
// o, which was entered earlier.
func (e *entry) preferredTo(o *entry, inScope bool, own uint64) bool {
	mine, others := e.origin.Process == own, o.origin.Process == own
	switch {
	case mine != others && (inScope || e.perScope == o.perScope):
		return mine
	case e.perScope != o.perScope:
		return e.perScope == inScope
	}
	return false
}

// byOrigin returns the live reservation with that origin and id, or nil; any reports
// whether the id is live in s at all. It needs s.mu.
func (i *ids) byOrigin(o Origin, s *scope, id string) (r *entry, any bool) {
	sh := i.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for m := sh.live[id]; m != nil; m = m.next {
		if m.scope != s {
			continue
		}
		any = true
		if m.origin == o {
			return m, true
		}
	}
	return nil, any
}

// onRank returns the live reservation on that rank of s that is meant by an event
// without origin: one that the sender accepted, else the oldest. any reports whether
// the id is live in s at all. It needs s.mu.
func (i *ids) onRank(s *scope, id string, rank catalog.Rank, sender uint64) (best *entry, any bool) {
	sh := i.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for m := sh.live[id]; m != nil; m = m.next {
		if m.scope != s {
			continue
		}
		any = true
		if m.rank != rank {
			continue
		}
		if best == nil || m.origin.Process == sender && best.origin.Process != sender {
			best = m
		}
	}
	return best, any
}
