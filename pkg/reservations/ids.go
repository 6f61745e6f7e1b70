package reservations

import (
	"hash/maphash"
	"maps"
	"sync"
)

const (
	idShards = 64
	// shrinkAbove: a shard that has held more ids than this is copied into a
	// smaller map when few are left, because Go maps never shrink.
	shrinkAbove = 1024
)

// ids finds a live reservation by its id, over all scopes.
type ids struct {
	seed   maphash.Seed
	shards [idShards]idShard
}

type idShard struct {
	// mu guards the fields below. It is the innermost lock.
	mu   sync.Mutex
	live map[string]*reservation
	peak int // most ids since live was made
}

func newIDs() *ids {
	x := &ids{seed: maphash.MakeSeed()}
	for i := range x.shards {
		x.shards[i].live = make(map[string]*reservation)
	}
	return x
}

func (x *ids) shard(id string) *idShard {
	return &x.shards[maphash.String(x.seed, id)%idShards]
}

// claim enters r, or returns the reservation that has its id.
func (x *ids) claim(r *reservation) (holder *reservation) {
	sh := x.shard(r.id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if holder := sh.live[r.id]; holder != nil {
		return holder
	}
	sh.live[r.id] = r
	sh.peak = max(sh.peak, len(sh.live))
	return nil
}

// release makes the id of r, which must be entered, free again.
func (x *ids) release(r *reservation) {
	sh := x.shard(r.id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	delete(sh.live, r.id)
	if n := len(sh.live); sh.peak > shrinkAbove && 8*n < sh.peak {
		small := make(map[string]*reservation, 2*n)
		maps.Copy(small, sh.live)
		sh.live, sh.peak = small, n
	}
}

// get returns the live reservation of that id, or nil.
func (x *ids) get(id string) *reservation {
	sh := x.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.live[id]
}
