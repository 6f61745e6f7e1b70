package conductor

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/select-service/select-service/pkg/indexer"
)

// maxPublishers bounds the registrations of a process.
const maxPublishers = 16384

// Registry has the publishers and the index of their events. It is safe for concurrent use.
type Registry struct {
	// mu guards the fields below and, together with each publisher's own lock, the set of
	// owners and slots. Queries hold it for reading while they walk an index, so that no slot
	// gets another owner meanwhile. It is held for writing only briefly. It is taken after
	// Publisher.mu and before the locks of the indexes.
	mu            sync.RWMutex
	publishers    map[Registration]*Publisher // active publishers by key
	all           map[uint64]*Publisher       // by ID, including withdrawn ones until they are dropped
	lastID        uint64
	ranks         map[rankKey]int // number of active publishers
	namespaces    map[nsKey]*namespace
	nameBytes     int // bytes of the strings of namespaces' keys
	spaces        map[spaceKey]*space
	account       *indexer.Account // of the spaces' indexes; nil: no limit
	droppedCounts totals           // totals of dropped publishers
}

// rankKey is a rank that an engine's batches may state (decision K12).
type rankKey struct {
	tenant, model string
	blockSize     uint32
	instance      string
	rank          uint32
}

// newRegistry returns a Registry without publishers, whose indexes have a memory account.
func newRegistry(account *indexer.Account) *Registry {
	return &Registry{
		publishers: make(map[Registration]*Publisher),
		all:        make(map[uint64]*Publisher),
		ranks:      make(map[rankKey]int),
		namespaces: make(map[nsKey]*namespace),
		spaces:     make(map[spaceKey]*space),
		account:    account,
	}
}

// add activates a registration and returns its publisher; fresh is false if it is active
// already. The error is a *conflictError (the key is active with another body), a
// *seedMismatchError, or errFull.
func (r *Registry) add(reg Registration) (p *Publisher, fresh bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := reg.key()
	if p := r.publishers[key]; p != nil {
		if p.Registration != reg {
			return nil, false, &conflictError{inForce: p.Registration}
		}
		return p, false, nil
	}
	if len(r.all) >= maxPublishers {
		return nil, false, errFull
	}
	ns, err := r.namespace(nsKey{Identity: reg.Identity}, reg.HashSeed)
	if err != nil {
		return nil, false, err
	}
	r.lastID++
	p = newPublisher(r, r.lastID, reg, ns)
	r.publishers[key], r.all[p.ID] = p, p
	r.ranks[p.rankKey(p.Rank)]++
	ns.refs++
	ns.publishers = append(ns.publishers, p)
	p.instanceNumber, p.rankNumber = ns.space.takeNumbers(p.Instance, p.Rank)
	return p, true, nil
}

// withdrawAll removes the publishers of the registrations that f selects from all answers, and
// returns them by ID. The caller must then close their streams, and after that drop them.
func (r *Registry) withdrawAll(f Filter) []*Publisher {
	r.mu.Lock()
	defer r.mu.Unlock()
	var gone []*Publisher
	for _, p := range r.publishers {
		if f.fits(&p.Registration) {
			gone = append(gone, p)
		}
	}
	slices.SortFunc(gone, byID)
	for _, p := range gone {
		r.withdraw(p)
	}
	return gone
}

func byID(a, b *Publisher) int { return cmp.Compare(a.ID, b.ID) }

// withdraw is withdrawAll for one publisher. The caller holds mu for writing.
func (r *Registry) withdraw(p *Publisher) {
	if p.withdrawn.Swap(true) {
		return
	}
	delete(r.publishers, p.key())
	rank := p.rankKey(p.Rank)
	if r.ranks[rank]--; r.ranks[rank] == 0 {
		delete(r.ranks, rank)
	}
	for _, o := range p.owners {
		for _, slot := range o.slots {
			o.space.hide(slot)
		}
	}
	ns := p.namespace
	ns.publishers = slices.DeleteFunc(ns.publishers, func(o *Publisher) bool { return o == p })
	ns.space.releaseNumbers(p.instanceNumber, p.rankNumber)
	r.release(ns)
}

// drop releases the blocks and slots of a publisher whose stream is closed. It withdraws the
// publisher if that has not been done.
func (r *Registry) drop(p *Publisher) {
	r.mu.Lock()
	r.withdraw(p)
	r.mu.Unlock()

	p.mu.Lock()
	defer p.mu.Unlock()
	owners := slices.Collect(maps.Values(p.owners))
	for _, o := range owners {
		o.forget()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range p.members {
		r.leave(m)
	}
	for _, o := range owners {
		r.dropOwner(o)
	}
	if r.all[p.ID] == p {
		delete(r.all, p.ID)
		r.droppedCounts.add(&p.counts)
	}
}

// Publishers returns the active publishers, by ID.
func (r *Registry) Publishers() []*Publisher {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.SortedFunc(maps.Values(r.publishers), byID)
}

// sweep drops owners without blocks, then namespaces and spaces that have neither
// blocks nor registrations. An engine's own owner stays as long as its publisher:
// it may still name blocks that it has removed (decision K15).
func (r *Registry) sweep() {
	for _, p := range r.Publishers() {
		p.sweep()
	}
}

// namespace returns the namespace of a key, and creates it if needed. The caller holds mu for
// writing. A caller that does not become a user of a new namespace must call collect.
func (r *Registry) namespace(key nsKey, hashSeed uint64) (*namespace, error) {
	if ns := r.namespaces[key]; ns != nil {
		if have := ns.space.key.HashSeed; have != hashSeed {
			return nil, &seedMismatchError{Identity: key.Identity, inForce: have, Requested: hashSeed}
		}
		return ns, nil
	}
	at := spaceKey{Tenant: key.Tenant, Model: key.Model, BlockSize: key.BlockSize, HashSeed: hashSeed}
	sp := r.spaces[at]
	if len(r.namespaces) >= maxNamespaces || r.nameBytes+key.bytes() > maxNameBytes || sp == nil && len(r.spaces) >= maxSpaces {
		return nil, errFull
	}
	if sp == nil {
		sp = newSpace(at)
		sp.index.SetAccount(r.account)
		r.spaces[at] = sp
	}
	ns := sp.addNamespace(key)
	r.namespaces[key] = ns
	r.nameBytes += key.bytes()
	return ns, nil
}

// release ends one use of a namespace. The caller holds mu for writing.
func (r *Registry) release(ns *namespace) {
	ns.refs--
	r.collect(ns)
}

// collect removes a namespace without users. The caller holds mu for writing.
func (r *Registry) collect(ns *namespace) {
	if ns.refs > 0 {
		return
	}
	delete(r.namespaces, ns.key)
	r.nameBytes -= ns.key.bytes()
	delete(ns.space.namespaces, ns.seed)
	r.collectSpace(ns.space)
}

func (r *Registry) collectSpace(sp *space) {
	if len(sp.namespaces) == 0 && sp.ownerCount == 0 && r.spaces[sp.key] == sp {
		delete(r.spaces, sp.key)
		sp.index.Discard()
	}
}

// leave removes an owner from a namespace. The caller holds both locks for writing.
func (r *Registry) leave(m *member) {
	p := m.owner.publisher
	p.forgetSequences(m)
	delete(p.members, m.key)
	if m.key.backend == "" {
		delete(p.loras, m.ns.seed)
	}
	p.lastMember = nil
	m.owner.members--
	r.release(m.ns)
}

// dropOwner removes an owner that has given up its slots and left all namespaces. The caller
// holds both locks for writing.
func (r *Registry) dropOwner(o *owner) {
	for _, slot := range o.slots {
		o.space.freeSlot(slot)
	}
	delete(o.publisher.owners, ownerKey{o.space, o.backend, o.rank})
	o.space.ownerCount--
	r.collectSpace(o.space)
}

// lookup returns the namespace of an identity, nil if it is not in use.
func (r *Registry) lookup(id Identity) *namespace {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.namespaces[nsKey{Identity: id}]
}

// hasRank reports whether a rank has an active publisher.
func (r *Registry) hasRank(key rankKey) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.ranks[key] > 0
}

// namespacesOf returns the namespaces of a tenant's model, in no order. The caller holds mu,
// at least for reading.
func (r *Registry) namespacesOf(tenant, model string) []*namespace {
	var found []*namespace
	for key, sp := range r.spaces {
		if key.Tenant == tenant && key.Model == model {
			found = slices.AppendSeq(found, maps.Values(sp.namespaces))
		}
	}
	return found
}

// spacesOf returns the spaces of an identity's tenant, model and block size, one for each hash seed,
// in no order.
func (r *Registry) spacesOf(id Identity) []*space {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var found []*space
	for key, sp := range r.spaces {
		if key.Tenant == id.Tenant && key.Model == id.Model && key.BlockSize == id.BlockSize {
			found = append(found, sp)
		}
	}
	return found
}

// Stats has sizes and counters of a Registry. Index is the total of all indexes; the counters
// after it never fall.
type Stats struct {
	Publishers, Spaces, Namespaces, Owners int
	Index                                  indexer.Stats

	Gaps, Missed, Late, Restarts, BaseMismatches uint64 // see Status
	Tokens, Confirmed, Resolved, Unverified      uint64 // blocks, see Status
}

// Stats returns sizes and counters.
func (r *Registry) Stats() Stats {
	st := r.Counts()
	st.Index = r.IndexStats()
	return st
}

// IndexStats returns Stats.Index, for which it visits every index.
func (r *Registry) IndexStats() (sum indexer.Stats) {
	r.mu.RLock()
	indexes := make([]*indexer.Space, 0, len(r.spaces))
	for _, sp := range r.spaces {
		indexes = append(indexes, sp.index)
	}
	r.mu.RUnlock()
	for _, index := range indexes {
		addIndex(&sum, index.Stats())
	}
	return sum
}

// Counts returns Stats without Index.
func (r *Registry) Counts() Stats {
	r.mu.RLock()
	defer r.mu.RUnlock()
	st := Stats{Publishers: len(r.publishers), Spaces: len(r.spaces), Namespaces: len(r.namespaces)}
	for _, sp := range r.spaces {
		st.Owners += sp.ownerCount
	}
	sum := r.droppedCounts
	for _, p := range r.all {
		sum.add(&p.counts)
	}
	st.Gaps, st.Missed, st.Late, st.Restarts = sum[gaps], sum[missed], sum[late], sum[restarts]
	st.BaseMismatches = sum[baseMismatches]
	st.Tokens, st.Confirmed, st.Resolved, st.Unverified = sum[fromTokens], sum[confirmed], sum[resolved], sum[unverified]
	return st
}

func addIndex(sum *indexer.Stats, st indexer.Stats) {
	for t, n := range st.Blocks {
		sum.Blocks[t] += n
	}
	sum.Unique += st.Unique
	sum.Runs += st.Runs
	sum.Orphans += st.Orphans
	sum.Bytes += st.Bytes
}
