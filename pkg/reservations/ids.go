package reservations

import (
	"hash/maphash"
	"maps"
	"strings"
	"sync"

	"github.com/select-service/select-service/pkg/catalog"
)

const (
	idShards = 64
	// shrinkAbove is the number of ids from which on a shard is copied into a smaller
	// map when few are left, because Go maps never shrink.
	shrinkAbove = 1024
)

// ids finds live reservations by their id, over all scopes. Those of one id, and of the ids of
// the sides of a pair of that id, form a chain in the order of their entry; nearly every chain
// has one member.
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
	live map[string]*entry // the heads of the chains, by chainName
	peak int               // most ids since live was made
}

func newIDs() *ids {
	x := &ids{seed: maphash.MakeSeed()}
	for i := range x.shards {
		x.shards[i].live = make(map[string]*entry)
	}
	return x
}

// The ends of the ids of a pair's reservations: see Ledger.BookPair.
const (
	prefillEnd = ".prefill"
	decodeEnd  = ".decode"
)

// chainName returns the name of the chain that an id is in: the id without the end that names a side
// of a pair.
func chainName(id string) string {
	if parent, is := strings.CutSuffix(id, prefillEnd); is {
		return parent
	}
	return strings.TrimSuffix(id, decodeEnd)
}

func (i *ids) shard(chain string) *idShard {
	return &i.shards[maphash.String(i.seed, chain)%idShards]
}

// claim enters r, or returns the reservation that has its id already.
func (i *ids) claim(r *entry) (holder *entry) {
	chain := chainName(r.id)
	sh := i.shard(chain)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	head := sh.live[chain]
	for m := head; m != nil; m = m.next {
		if m.excludes(r) && (m.id == r.id || m.pair != r.pair && (m.id == chain || r.id == chain)) {
			return m
		}
	}
	sh.enter(r, chain)
	return nil
}

// claimPair enters the sides of a pair, the prefill one unless it is nil, or returns a reservation
// that has the pair's id or that of one of its sides.
func (i *ids) claimPair(decode, prefill *entry) (holder *entry) {
	chain := chainName(decode.id)
	sh := i.shard(chain)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for m := sh.live[chain]; m != nil; m = m.next {
		if m.excludes(decode) {
			return m
		}
	}
	sh.enter(decode, chain)
	if prefill != nil {
		sh.enter(prefill, chain)
	}
	return nil
}

// excludes reports whether r, which one caller books beside e, must have another id than e.
func (e *entry) excludes(r *entry) bool { return e.scope == r.scope || !r.perScope && !e.perScope }

// enter enters r beside all others of its id.
func (i *ids) enter(r *entry) {
	chain := chainName(r.id)
	sh := i.shard(chain)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.enter(r, chain)
}

// enter appends r to its chain.
func (sh *idShard) enter(r *entry, chain string) {
	head := sh.live[chain]
	if head == nil {
		sh.live[chain] = r
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
	chain := chainName(r.id)
	sh := i.shard(chain)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if head := sh.live[chain]; head != r {
		for head.next != r {
			head = head.next
		}
		head.next = r.next
		return
	}
	if r.next != nil {
		delete(sh.live, chain) // the key may be part of r's id
		sh.live[chainName(r.next.id)] = r.next
		return
	}
	delete(sh.live, chain)
	if n := len(sh.live); sh.peak > shrinkAbove && 8*n < sh.peak {
		small := make(map[string]*entry, 2*n)
		maps.Copy(small, sh.live)
		sh.live, sh.peak = small, n
	}
}

// find returns the live reservation that a call by id means, or nil: see calls.go.
// in, if not nil, is the scope to look in.
func (i *ids) find(id string, in *scope, own uint64) (best *entry) {
	chain := chainName(id)
	sh := i.shard(chain)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for m := sh.live[chain]; m != nil; m = m.next {
		if m.id != id || in != nil && m.scope != in {
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
	chain := chainName(id)
	sh := i.shard(chain)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for m := sh.live[chain]; m != nil; m = m.next {
		if m.scope != s || m.id != id {
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
	chain := chainName(id)
	sh := i.shard(chain)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for m := sh.live[chain]; m != nil; m = m.next {
		if m.scope != s || m.id != id {
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
