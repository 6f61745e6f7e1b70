package scopes

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/internal/selection/approximate"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/policies"
	"github.com/select-service/select-service/internal/selection/waitqueue"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/pkg/recovery"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/selector"
)

// ErrStale is in the chain of an error that is no answer: the state that a request was
// checked against has changed (workers, the reservation of its id, its session). The
// request is tried again.
var ErrStale = errors.New("changed meanwhile")

// ErrGone is ErrStale for a request that was checked against a state that has ended.
var ErrGone = &contract.Error{Kind: contract.Unavailable, Text: selector.ErrNoEndpoints.Error(), Err: ErrStale}

// Settings has the parts that a registry changes with the workers, and the settings of the states
// that it creates.
type Settings struct {
	Ledger  *reservations.Ledger
	Streams *kvevents.Subscribers
	Replica Replica // nil: reservations are not shared
	// HybridExact: all attention groups of engines count, not just the main one.
	HybridExact bool
	Log         zerolog.Logger

	Admission admission.Config
	Queues    waitqueue.Config
	Policies  *policies.Table // until SetPolicies; nil: the built-in cost everywhere
	Learners  *policies.Learners
	// Approximate has the blocks predicted from reservations; nil: none are predicted.
	Approximate *approximate.Index
	// KVEvents: engines publish KV events. Predictions then have an index of their own.
	KVEvents bool
	// ByCapacity: without KVEvents, predictions follow the capacity of ranks whose capacity is
	// known.
	ByCapacity bool
	// WatchStored enables State.WatchStored. It needs KVEvents.
	WatchStored bool
	// Memory is the account of the indexes; nil: no limit.
	Memory *indexer.Account
	// Merging: dumps of peers are merged with live events until EndMerging.
	Merging bool
}

// Registry has the states of all scopes.
type Registry struct {
	settings Settings
	canWait  atomic.Bool // the settings or policies, present or former, let requests wait in some scope
	catalog  *catalog.Catalog
	loads    Loads
	restored Restored // nil: there are none
	closing  atomic.Bool
	changing atomic.Int64  // calls of Change under way
	rankPuts atomic.Uint64 // calls of Ledger.PutRank
	hybrid   indexer.HybridStats

	// states is copied on write; writers hold mu.
	states atomic.Pointer[map[catalog.Scope]*State]

	unservedMu sync.Mutex // guards unserved and demands; innermost
	unserved   map[catalog.Scope]*Traffic
	demands    map[catalog.Scope]*demand

	// mu guards writes of states and of State.rules, State.served, and the fields below. It is
	// innermost, beside the locks of the packages that this one calls.
	mu       sync.Mutex
	policies *policies.Table
	past     pastScopes
	keyed    pastScopes // scopes without workers whose index had shown keys
	ended    []*State   // ended states whose queues may still have requests
	// merging: dumps of peers are being merged with live events. Meanwhile retained has the
	// states that have ended.
	merging  bool
	retained map[catalog.Scope]*State
}

// New returns a registry without states. Attach must be called before any other method.
func New(settings Settings) *Registry {
	r := &Registry{settings: settings, merging: settings.Merging, policies: settings.Policies}
	r.canWait.Store(settings.Admission.Enabled() || settings.Policies.Delays())
	if r.merging {
		r.retained = make(map[catalog.Scope]*State)
	}
	r.states.Store(&map[catalog.Scope]*State{})
	return r
}

// Attach sets the catalog with the workers of the scopes, whose reconciler the registry is, and
// what follows the loads of their engines.
func (r *Registry) Attach(c *catalog.Catalog, loads Loads) { r.catalog, r.loads = c, loads }

// SetRestored sets what has blocks from before the start. It must be called before there are
// workers.
func (r *Registry) SetRestored(blocks Restored) { r.restored = blocks }

// Of returns the state of a scope, nil if it has none.
func (r *Registry) Of(sc catalog.Scope) *State { return (*r.states.Load())[sc] }

// All returns the states of all scopes at this moment. The map must not be
// changed.
func (r *Registry) All() map[catalog.Scope]*State { return *r.states.Load() }

// Schedulable returns the scope's snapshot and state. If no worker can serve it, the error is
// of kind Unavailable.
//
// The state is read first. The catalog shows a scope again only when its new
// state is there, so the snapshot is of this state, or it is of a later one and
// this state is marked gone.
func (r *Registry) Schedulable(sc catalog.Scope) (*catalog.Snapshot, *State, error) {
	return r.find(sc, func(s *catalog.Snapshot) bool { return s.NumRanks > 0 })
}

// Bookable is Schedulable for a request that names its rank, which may be one of a draining
// worker.
func (r *Registry) Bookable(sc catalog.Scope) (*catalog.Snapshot, *State, error) {
	return r.find(sc, func(s *catalog.Snapshot) bool { return s.NumRanks+s.NumDraining > 0 })
}

func (r *Registry) find(sc catalog.Scope, serves func(*catalog.Snapshot) bool) (*catalog.Snapshot, *State, error) {
	state := r.Of(sc)
	snap := r.catalog.Snapshot(sc)
	if r.closing.Load() { // read after the state: if still false here, CloseQueues will close the state's queue
		return nil, nil, contract.ErrShuttingDown
	}
	if snap != nil && serves(snap) && state != nil {
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

// RefuseNew makes Schedulable return contract.ErrShuttingDown from now on.
func (r *Registry) RefuseNew() { r.closing.Store(true) }

// CloseQueues answers waiting requests with contract.ErrShuttingDown. It must be called after
// RefuseNew, from which on SetPolicies makes no queues, and after the catalog is closed, so that no
// scope is new.
func (r *Registry) CloseQueues() {
	r.mu.Lock() // for a SetPolicies under way
	states := r.All()
	r.mu.Unlock()
	for _, state := range states {
		state.Rules().Queue.Close(contract.ErrShuttingDown)
	}
}

// Hybrid returns the counters of hybrid indexing, of all scopes together.
func (r *Registry) Hybrid() *indexer.HybridStats { return &r.hybrid }

// Closing reports whether RefuseNew was called.
func (r *Registry) Closing() bool { return r.closing.Load() }

// workersChanged has scopes choose by the policies for their workers' further names, answers the requests that wait in
// the queues of ended states with ErrGone, so that they are tried again, and dispatches the others.
func (r *Registry) workersChanged() {
	r.setPolicies(func() bool { return r.policies.Settings().Served.SetAliases(r.catalog.Aliases()) })
	r.mu.Lock()
	ended := r.ended
	r.ended = nil
	r.mu.Unlock()
	for _, state := range ended {
		state.Rules().Queue.Close(ErrGone)
	}
	r.LoadChanged()
}

// Seconds returns the time since the start, in the unit of the queues.
func (r *Registry) Seconds() float64 { return time.Since(r.settings.Queues.Started).Seconds() }

// Fair reports whether a class of the wait queue may be fair between tenants.
func (r *Registry) Fair() bool { return r.settings.Admission.Fair() }

// FairBytes returns approximately what the accounts of fairness of all scopes take.
func (r *Registry) FairBytes() (bytes int64) {
	if !r.Fair() {
		return 0
	}
	for _, state := range r.All() {
		bytes += state.Rules().Queue.FairBytes()
	}
	r.settings.Queues.FairMemory.Set(bytes)
	return bytes
}

// LoadChanged is called after load went down. It runs the waiting requests that can run now.
func (r *Registry) LoadChanged() {
	if !r.canWait.Load() {
		return // no request ever waits
	}
	for _, state := range r.All() {
		state.Rules().Queue.Dispatch()
	}
}

// open returns the scope's state, and creates it if needed.
func (r *Registry) open(sc catalog.Scope, blockSize uint32) *State {
	r.mu.Lock()
	defer r.mu.Unlock()
	state := r.Of(sc)
	if state == nil {
		state = &State{
			BlockSize: blockSize,
			Seeds:     new(SeedNames),
			Traffic:   new(Traffic),
			Hits:      new(Hits),

			FirstTokens: new(FirstTokens),

			workers:  make(map[uint64]*attachedWorker),
			reserved: make(map[uint32]catalog.Rank),
		}
		state.rules.Store(r.newRulesLocked(sc, nil))
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

// newRulesLocked returns the rules of a scope that had others, nil: it had none. They have the same
// queue if none of them delays requests.
func (r *Registry) newRulesLocked(sc catalog.Scope, former *Rules) *Rules {
	rules := &Rules{Policies: r.policies.NewScope(sc, r.settings.Learners)}
	_, rules.DecidedBy = r.policies.Of(sc)
	policy := r.settings.Admission.ForModel(sc.Model)
	longest, delays := rules.Policies.Delays()
	if policy != nil {
		delays = false
	}
	switch {
	case delays:
		rules.Queue = waitqueue.NewDelaying(r.settings.Queues, longest)
	case former != nil && !former.Queue.Delays():
		rules.Queue = former.Queue
	default:
		rules.Queue = waitqueue.New(r.settings.Queues, policy)
	}
	return rules
}

// errOtherPolicies is ErrStale for a request that waited for its turn by former policies.
var errOtherPolicies = &contract.Error{Kind: contract.Unavailable, Text: "the selection policies have changed", Err: ErrStale}

// SetPolicies makes all scopes choose by the policies of t from now on. Requests that former policies delay
// are tried again. After RefuseNew nothing changes any more.
func (r *Registry) SetPolicies(t *policies.Table) {
	r.setPolicies(func() bool { r.policies = t; return true })
}

// setPolicies changes what decides, which is reported, and has all scopes choose by that.
func (r *Registry) setPolicies(change func() (changed bool)) {
	var replaced []*waitqueue.Queue
	r.mu.Lock()
	if r.closing.Load() || !change() { // CloseQueues may have closed the queues
		r.mu.Unlock()
		return
	}
	t := r.policies
	if t.Delays() {
		r.canWait.Store(true)
	}
	for sc, state := range r.All() {
		former := state.Rules()
		rules := r.newRulesLocked(sc, former)
		state.rules.Store(rules)
		if rules.Queue != former.Queue {
			replaced = append(replaced, former.Queue)
		}
	}
	r.mu.Unlock()
	for _, q := range replaced {
		q.Close(errOtherPolicies)
	}
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
	if slices.Contains(r.keyed, sc) {
		state.Space.ShowKeys()
		r.keyed.remove(sc)
	}
	switch x := r.settings.Approximate; {
	case x == nil:
	case r.settings.KVEvents:
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

// markServed records that the scope has had a fully attached worker.
func (r *Registry) markServed(sc catalog.Scope) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Of(sc).served = true
	r.past.remove(sc)
}

// closeIfEmpty ends the scope's state when its last worker has left and no slot
// is reserved.
func (r *Registry) closeIfEmpty(sc catalog.Scope) {
	r.mu.Lock()
	defer r.mu.Unlock()
	state := r.Of(sc)
	if len(state.workers) > 0 || len(state.reserved) > 0 {
		return
	}
	state.gone.Store(true)
	if state.predicted != nil {
		state.predicted.Discard()
	}
	if state.Space.KeysShown() {
		r.keyed.add(sc)
	}
	r.retainLocked(sc, state)
	states := maps.Clone(r.All())
	delete(states, sc)
	r.states.Store(&states)
	r.ended = append(r.ended, state)
	if state.served {
		r.past.add(sc)
	}
}

// ShowKeys says that a scope has blocks with keys beside their tokens (indexer.Space.ShowKeys).
// The scope need not have workers.
func (r *Registry) ShowKeys(sc catalog.Scope) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if state := r.Of(sc); state != nil {
		state.Space.ShowKeys()
	} else {
		r.keyed.add(sc)
	}
}

// KeysShown returns the scopes that have shown keys, those without workers first.
func (r *Registry) KeysShown() []catalog.Scope {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.Clone(r.keyed)
	for sc, state := range r.All() {
		if state.Space.KeysShown() {
			all = append(all, sc)
		}
	}
	return all
}

// maxRetained bounds the retained states.
const maxRetained = 1024

// retainLocked keeps the index of a state that ends, which still knows the ranks that left, in
// case its scope comes back while dumps are merged.
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

// Approximate returns the blocks predicted from reservations, nil if none are predicted.
func (r *Registry) Approximate() *approximate.Index { return r.settings.Approximate }

// Known lists the scopes that have or had a fully attached worker, in no order. Of scopes
// without workers it has the last maxPastScopes.
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

// Had reports whether Known lists a scope.
func (r *Registry) Had(sc catalog.Scope) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if state := r.Of(sc); state != nil {
		return state.served
	}
	return slices.Contains(r.past, sc)
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
