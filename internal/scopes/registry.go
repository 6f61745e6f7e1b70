// Package scopes is the registry of what exists beside the catalog for each
// scope, which is a model and tenant: its index and its wait queue. Requests read
// it without locks. The catalog's reconciler alone makes states and ends them.
package scopes

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/select-service/select-service/internal/admission"
	"github.com/select-service/select-service/internal/approximate"
	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/internal/policies"
	"github.com/select-service/select-service/internal/waitqueue"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/recovery"
	"github.com/select-service/select-service/pkg/selector"
)

// ErrStale is in the chain of an error that only says that what a request was
// judged by has changed meanwhile: workers, the reservation of its id, its
// session. It is tried again.
var ErrStale = errors.New("changed meanwhile")

// ErrGone is ErrStale for a request that was judged by a state that is gone.
var ErrGone = &contract.Error{Kind: contract.Unavailable, Text: selector.ErrNoEndpoints.Error(), Err: ErrStale}

// Settings are those of the states that a registry makes.
type Settings struct {
	Admission admission.Config
	Queues    waitqueue.Config
	Policies  *policies.Table // nil: the built-in cost everywhere
	Learners  *policies.Learners
	// Approximate has what reservations predict, nil if they predict nothing. With
	// Beside, engines publish KV events and predictions are kept beside their index.
	Approximate *approximate.Index
	Beside      bool
	// ByCapacity: without Beside, ranks of known capacity are followed by that.
	ByCapacity bool
	// WatchStored: State.WatchStored is used.
	WatchStored bool
	// Memory is where the indexes count theirs; nil: no limit.
	Memory *indexer.Account
	// Merging: dumps of peers will be merged with live events until EndMerging.
	Merging bool
}

// Registry has the states of all scopes.
type Registry struct {
	settings Settings
	waits    bool // requests can wait in some scope
	catalog  *catalog.Catalog
	closing  atomic.Bool
	hybrid   indexer.HybridStats

	// states is copied by writers under mu.
	states atomic.Pointer[map[catalog.Scope]*State]

	// mu guards writing states, State.served of every state, and what follows. It
	// is innermost, beside the locks of the packages below.
	mu   sync.Mutex
	past pastScopes
	left []*State // gone, with requests that may still wait in their queues
	// merging: dumps of peers are being merged with live events. Meanwhile retained
	// has the states that went.
	merging  bool
	retained map[catalog.Scope]*State
}

// New returns a registry without states. Attach must be called before any other
// method.
func New(settings Settings) *Registry {
	r := &Registry{settings: settings, merging: settings.Merging}
	r.waits = settings.Admission.Enabled() || settings.Policies.Hold()
	if r.merging {
		r.retained = make(map[catalog.Scope]*State)
	}
	r.states.Store(&map[catalog.Scope]*State{})
	return r
}

// Attach gives the registry the catalog that has the workers of its scopes, whose
// reconciler writes the registry.
func (r *Registry) Attach(c *catalog.Catalog) { r.catalog = c }

// Of returns the state of a scope, nil if it has none.
func (r *Registry) Of(sc catalog.Scope) *State { return (*r.states.Load())[sc] }

// All returns the states of all scopes at this moment. The map must not be
// changed.
func (r *Registry) All() map[catalog.Scope]*State { return *r.states.Load() }

// Schedulable returns the scope's state and snapshot, or the error why no worker
// can serve it: it is of kind Unavailable.
//
// The state is read first. The catalog shows a scope again only when its new
// state is there, so the snapshot is of this state, or it is of a later one and
// this state is marked gone.
func (r *Registry) Schedulable(sc catalog.Scope) (*catalog.Snapshot, *State, error) {
	state := r.Of(sc)
	snap := r.catalog.Snapshot(sc)
	if r.closing.Load() { // read after the state, whose queue CloseQueues will close if it is false here
		return nil, nil, contract.ErrShuttingDown
	}
	if snap != nil && snap.NumRanks > 0 && state != nil {
		return snap, state, nil
	}
	if r.catalog.CountSchedulable() == 0 {
		return nil, nil, contract.Errorf(contract.Unavailable, "no schedulable workers are available")
	}
	return nil, nil, NoWorkers(sc)
}

// NoWorkers is the error of a scope without schedulable workers.
func NoWorkers(sc catalog.Scope) *contract.Error {
	return contract.ScopeErrorf(contract.Unavailable, sc, "no schedulable workers")
}

// RefuseNew makes Schedulable answer contract.ErrShuttingDown from now on.
func (r *Registry) RefuseNew() { r.closing.Store(true) }

// CloseQueues answers requests that wait with contract.ErrShuttingDown. It is
// called after RefuseNew, when the catalog is closed: no scope gets a queue any more.
func (r *Registry) CloseQueues() {
	for _, state := range r.All() {
		state.Queue.Close(contract.ErrShuttingDown)
	}
}

// Hybrid returns what the indexes of all scopes have counted.
func (r *Registry) Hybrid() *indexer.HybridStats { return &r.hybrid }

// Closing reports whether RefuseNew was called.
func (r *Registry) Closing() bool { return r.closing.Load() }

// WorkersChanged is called after a worker came, changed or left. Requests that
// wait for workers of a state that is gone are tried again.
func (r *Registry) WorkersChanged() {
	r.mu.Lock()
	left := r.left
	r.left = nil
	r.mu.Unlock()
	for _, state := range left {
		state.Queue.Close(ErrGone)
	}
	r.LoadChanged()
}

// LoadChanged is called after load went down: it runs the requests that can run
// now.
func (r *Registry) LoadChanged() {
	if !r.waits {
		return // no request ever waits
	}
	for _, state := range r.All() {
		state.Queue.Dispatch()
	}
}

// AddWorker returns the state of the scope of a worker that is attached now, a
// new one if there is none. The reconciler alone calls it.
func (r *Registry) AddWorker(sc catalog.Scope, blockSize uint32) *State {
	state := r.open(sc, blockSize)
	state.workers++
	return state
}

// RemoveWorker counts a worker out that is attached no more. The scope's state
// ends when that was the last one and no rank is held. The reconciler alone calls
// it.
func (r *Registry) RemoveWorker(sc catalog.Scope) {
	r.Of(sc).workers--
	r.closeIfEmpty(sc)
}

// HoldRank makes room for the blocks of a rank whose worker is not attached. The
// reconciler alone calls it.
func (r *Registry) HoldRank(sc catalog.Scope, blockSize uint32, rank catalog.Rank, slot uint32) {
	state := r.open(sc, blockSize)
	state.held[slot] = rank
	state.AssignSlot(slot, rank)
}

// UnholdRank forgets the blocks of a rank whose worker did not come. The
// reconciler alone calls it.
func (r *Registry) UnholdRank(sc catalog.Scope, slot uint32) {
	state := r.Of(sc)
	state.emptySlot(slot)
	delete(state.held, slot)
	r.closeIfEmpty(sc)
}

// open returns the scope's state, a new one if there is none.
func (r *Registry) open(sc catalog.Scope, blockSize uint32) *State {
	r.mu.Lock()
	defer r.mu.Unlock()
	state := r.Of(sc)
	if state == nil {
		state = &State{
			BlockSize: blockSize,
			Seeds:     new(SeedNames),
			Policies:  r.settings.Policies.NewScope(sc, r.settings.Learners),
			held:      make(map[uint32]catalog.Rank),
		}
		state.Queue = r.newQueue(sc, state.Policies)
		r.initIndexLocked(sc, state)
		if r.settings.WatchStored {
			state.stored = &storedWatches{space: state.Space}
		}
		states := maps.Clone(r.All())
		states[sc] = state
		r.states.Store(&states)
	}
	return state
}

// newQueue returns the wait queue of a scope with policies p.
func (r *Registry) newQueue(sc catalog.Scope, p *policies.Scope) *waitqueue.Queue {
	policy := r.settings.Admission.ForModel(sc.Model)
	if longest, holds := p.Holds(); holds && policy == nil {
		return waitqueue.NewHolding(r.settings.Queues, longest)
	}
	return waitqueue.New(r.settings.Queues, policy)
}

// initIndexLocked gives a new state its index.
func (r *Registry) initIndexLocked(sc catalog.Scope, state *State) {
	if old := r.retained[sc]; old != nil && old.BlockSize == state.BlockSize {
		state.Space, state.Gate = old.Space, old.Gate
	} else {
		if old != nil {
			old.Space.Discard()
		}
		state.Space = indexer.New()
		state.Space.SetAccount(r.settings.Memory)
		state.Space.SetHybridStats(&r.hybrid)
		state.Gate = recovery.NewGate(state.Space, r.merging)
	}
	delete(r.retained, sc)
	switch x := r.settings.Approximate; {
	case x == nil:
	case r.settings.Beside:
		state.predicted = indexer.New()
		state.predicted.SetAccount(r.settings.Memory)
		state.approximate = x.NewScope(recovery.NewGate(state.predicted, false))
	default:
		state.approximate = x.NewScope(state.Gate)
		if r.settings.ByCapacity {
			state.leases = x
		}
	}
}

// MarkServed notes that the scope has had a complete worker.
func (r *Registry) MarkServed(sc catalog.Scope) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Of(sc).served = true
	r.past.remove(sc)
}

// closeIfEmpty ends the scope's state when its last worker has left and no rank
// is held.
func (r *Registry) closeIfEmpty(sc catalog.Scope) {
	r.mu.Lock()
	defer r.mu.Unlock()
	state := r.Of(sc)
	if state.workers > 0 || len(state.held) > 0 {
		return
	}
	state.gone.Store(true)
	if state.predicted != nil {
		state.predicted.Discard()
	}
	r.retainLocked(sc, state)
	states := maps.Clone(r.All())
	delete(states, sc)
	r.states.Store(&states)
	r.left = append(r.left, state)
	if state.served {
		r.past.add(sc)
	}
}

// maxRetained bounds the states that are retained.
const maxRetained = 1024

// retainLocked keeps what a state that ends knows of ranks that left, in case its
// scope comes back while dumps are merged.
func (r *Registry) retainLocked(sc catalog.Scope, state *State) {
	if r.merging && len(r.retained) < maxRetained {
		r.retained[sc] = state
		return
	}
	state.Space.Discard()
}

// EndMerging ends the merging of dumps with live events.
func (r *Registry) EndMerging() {
	r.mu.Lock()
	for _, state := range r.retained {
		state.Space.Discard()
	}
	r.merging, r.retained = false, nil
	states := r.All()
	r.mu.Unlock()
	for _, state := range states {
		state.Gate.EndRecovery()
	}
}

// Approximate has what reservations predict, nil if they predict nothing.
func (r *Registry) Approximate() *approximate.Index { return r.settings.Approximate }

// Known lists the scopes that have or had a complete worker, in no order. Of those
// without workers it knows the last maxPastScopes.
func (r *Registry) Known() []catalog.Scope {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := slices.Clone(r.past)
	for sc, state := range r.All() {
		if state.served {
			known = append(known, sc)
		}
	}
	return known
}

// maxPastScopes bounds the scopes without workers that Known still lists
// (decision D18).
const maxPastScopes = 1024

// pastScopes are scopes without workers, oldest first.
type pastScopes []catalog.Scope

func (p *pastScopes) add(sc catalog.Scope) {
	p.remove(sc)
	*p = append(*p, sc)
	if len(*p) > maxPastScopes {
		*p = slices.Delete(*p, 0, 1)
	}
}

func (p *pastScopes) remove(sc catalog.Scope) {
	*p = slices.DeleteFunc(*p, func(o catalog.Scope) bool { return o == sc })
}
