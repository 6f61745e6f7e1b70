package scopes

import (
	"sync"
	"sync/atomic"

	"github.com/select-service/select-service/internal/selection/approximate"
	"github.com/select-service/select-service/internal/selection/policies"
	"github.com/select-service/select-service/internal/selection/waitqueue"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/pkg/recovery"
	"github.com/select-service/select-service/pkg/selector"
	"github.com/select-service/select-service/pkg/selector/ttft"
)

// State has a scope's index and wait queue. It lives as long as the scope has an attached
// worker or a reserved slot. The exported fields do not change.
type State struct {
	BlockSize uint32         // tokens
	Space     *indexer.Space // the index of the engines' events; writers must go through Gate
	Gate      *recovery.Gate
	Traffic   *Traffic
	Hits      *Hits
	// FirstTokens has what the kept decisions of the scope have predicted and observed.
	FirstTokens *FirstTokens
	Seeds       *SeedNames // adapters of the space's blocks

	rules atomic.Pointer[Rules] // never nil

	// approximate predicts blocks from reservations; nil: none are predicted. It writes
	// predicted if engines publish KV events, otherwise Space, and predicted is nil.
	approximate *approximate.Scope
	predicted   *indexer.Space
	leases      *approximate.Index // creates the leases of approximate; nil: there are none
	stored      *storedWatches     // nil: WatchStored is off
	// gone: the last worker has left. It is set after the ledger has lost the scope's ranks and
	// before a new state gives the ledger any. So if a rank is found in the ledger, and gone is
	// false afterwards, the rank belongs to this state.
	gone atomic.Bool

	// The catalog's lock guards these; see Registry.Reconcile.
	workers  map[uint64]*attachedWorker // by id
	reserved map[uint32]catalog.Rank    // slots of ranks whose workers are not attached

	served bool // has had a fully attached worker; guarded by Registry.mu
}

// Rules say how the requests of a scope are decided on. They do not change: Registry.SetPolicies
// replaces them.
type Rules struct {
	// Policies choose the ranks; nil: the built-in cost function alone.
	Policies  *policies.Scope
	DecidedBy policies.Reason // why the deciding policy is that
	Queue     *waitqueue.Queue
}

// Policy returns the policy that decides.
func (r *Rules) Policy() selector.Policy {
	if r.Policies == nil {
		return selector.CostFunction{}
	}
	return r.Policies.Policy
}

// Learner has learned how long the prefills of the scope take. It is nil if no policy predicts that.
func (r *Rules) Learner() *ttft.Learner {
	if r.Policies == nil {
		return nil
	}
	return r.Policies.Learner
}

// Rules returns the current rules of the scope.
func (s *State) Rules() *Rules { return s.rules.Load() }

// Gone reports whether the scope's last worker has left, so that this is no longer the scope's
// state.
func (s *State) Gone() bool { return s.gone.Load() }

// Overlap finds which ranks have the blocks of a prompt, from events and predictions, given the
// blocks' local hashes. It writes the result to o, and uses scratch as memory.
func (s *State) Overlap(local []uint64, o, scratch *indexer.Overlap) {
	s.Space.Overlap(local, o)
	if s.predicted != nil {
		s.predicted.Overlap(local, scratch)
		o.RaiseDevice(scratch)
	}
}

// Predicts reports whether blocks are predicted from reservations, so that a rank need not have what it is said to have.
func (s *State) Predicts() bool { return s.approximate != nil }

// Events returns the index for engine events to write.
func (s *State) Events() kvevents.Index {
	if s.predicted == nil && s.stored == nil {
		return s.Gate
	}
	o := observer{Gate: s.Gate, watches: s.stored}
	if s.predicted != nil {
		o.predictions = s.approximate
	}
	return o
}

// assignSlot assigns a slot of the index to a rank. It does nothing if the rank already has it.
func (s *State) assignSlot(slot uint32, r catalog.Rank) {
	if s.approximate != nil {
		s.approximate.AssignSlot(slot, r)
	}
	s.Gate.AssignSlot(slot, r)
}

// emptySlot drops the blocks of a slot whose rank has left.
func (s *State) emptySlot(slot uint32) {
	if s.approximate != nil {
		s.approximate.ReleaseSlot(slot)
	}
	s.Gate.ReleaseSlot(slot)
}

// isReserved reports whether a slot is that of a rank whose worker is not attached.
func (s *State) isReserved(slot uint32) bool {
	_, reserved := s.reserved[slot]
	return reserved
}

// NewLease returns the capacity lease of a new reservation, nil if predictions do not follow
// the capacity of ranks.
func (s *State) NewLease() *approximate.Lease {
	if s.leases == nil {
		return nil
	}
	return s.leases.NewLease()
}

// Booked predicts the blocks of a prompt that was booked on a rank, if predictions are on.
// local, which is borrowed, has the local hashes; private is the number of further blocks of
// the prompt. The lease is from NewLease.
func (s *State) Booked(e catalog.Entry, local []uint64, private int, lease *approximate.Lease) {
	if s.approximate != nil {
		s.approximate.BookLeased(e, local, private, lease)
	}
}

// maxSeedNames bounds the remembered seeds of a scope. maxSeedName bounds an adapter's name in
// bytes, since events may have names of any length.
const (
	maxSeedNames = 4096
	maxSeedName  = 256
)

// SeedNames remembers from which adapter and salt the block seeds of a scope are made, as
// events name them. Salts are secrets of customers, so it keeps only whether there is one. The
// zero value is empty.
type SeedNames struct {
	mu     sync.Mutex // guards bySeed
	bySeed map[uint64]seedName
}

type seedName struct {
	lora   string
	salted bool
}

// NameSeed remembers a seed; see kvevents.SeedNames. It ignores names that are too long, and
// all seeds once there are maxSeedNames.
func (n *SeedNames) NameSeed(seed uint64, lora, salt string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.bySeed) >= maxSeedNames || len(lora) > maxSeedName {
		return
	}
	if n.bySeed == nil {
		n.bySeed = make(map[uint64]seedName)
	}
	n.bySeed[seed] = seedName{lora: lora, salted: salt != ""}
}

// SeedName returns the adapter of a seed and whether there is a salt; ok is false
// if no event has named the seed.
func (n *SeedNames) SeedName(seed uint64) (lora string, salted, ok bool) {
	if seed == hashing.Seed {
		return "", false, true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	name, ok := n.bySeed[seed]
	return name.lora, name.salted, ok
}
