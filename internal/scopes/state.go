package scopes

import (
	"sync"
	"sync/atomic"

	"github.com/select-service/select-service/internal/approximate"
	"github.com/select-service/select-service/internal/policies"
	"github.com/select-service/select-service/internal/waitqueue"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/pkg/recovery"
)

// State is what a scope has beside its workers: an index and a wait queue. It
// lives from the scope's first attached worker or held rank to its last. The
// exported fields do not change.
type State struct {
	BlockSize uint32         // tokens
	Space     *indexer.Space // of the engines' events; to be written through Gate only
	Gate      *recovery.Gate
	Queue     *waitqueue.Queue
	Seeds     *SeedNames // of the space's blocks
	// Policies choose the ranks; nil is the built-in cost alone.
	Policies *policies.Scope

	// approximate has what reservations predict; nil: they predict nothing. Without
	// KV events it writes Space, else predicted, which is nil then.
	approximate *approximate.Scope
	predicted   *indexer.Space
	leases      *approximate.Index // makes those of approximate; nil: there are none
	stored      *storedWatches     // nil: nobody may watch
	// gone: the last worker has left. It is set after the ledger has lost the
	// scope's ranks and before a new state gives it any: a rank that is found in
	// the ledger, while this is not set afterwards, belongs to this state.
	gone atomic.Bool

	// The reconciler alone touches these, under the catalog's lock.
	workers int                     // attached
	held    map[uint32]catalog.Rank // slots of ranks whose workers are not attached

	served bool // had a worker attached in full; guarded by Registry.mu
}

// Gone reports whether the scope's last worker has left: the state is not the
// scope's any more.
func (s *State) Gone() bool { return s.gone.Load() }

// Overlap finds which ranks have a prompt, by events and predictions. It fills o, and
// uses memory of scratch.
func (s *State) Overlap(local []uint64, o, scratch *indexer.Overlap) {
	s.Space.Overlap(local, o)
	if s.predicted != nil {
		s.predicted.Overlap(local, scratch)
		o.RaiseDevice(scratch)
	}
}

// Events returns the index as events of engines change it.
func (s *State) Events() kvevents.Index {
	var index kvevents.Index = s.Gate
	if s.predicted != nil {
		index = clearingIndex{s.Gate, s.approximate}
	}
	if s.stored != nil {
		return watchedIndex{index, s.stored}
	}
	return index
}

// clearingIndex is an index beside which there are predictions: the cache of a rank
// that cleared or restarted does not have those either.
type clearingIndex struct {
	*recovery.Gate
	predictions *approximate.Scope
}

// Clear implements kvevents.Index.
func (i clearingIndex) Clear(slot uint32) {
	i.Gate.Clear(slot)
	i.predictions.Clear(slot)
}

// AssignSlot gives a slot of the index to a rank. It does nothing if the rank has
// it.
func (s *State) AssignSlot(slot uint32, r catalog.Rank) {
	if s.approximate != nil {
		s.approximate.AssignSlot(slot, r)
	}
	s.Gate.AssignSlot(slot, r)
}

// ReleaseSlot empties a slot whose rank has left. A slot that is held, because its
// worker could not be attached, keeps its blocks.
func (s *State) ReleaseSlot(slot uint32) {
	if _, held := s.held[slot]; !held {
		s.emptySlot(slot)
	}
}

func (s *State) emptySlot(slot uint32) {
	if s.approximate != nil {
		s.approximate.ReleaseSlot(slot)
	}
	s.Gate.ReleaseSlot(slot)
}

// EndHold ends the hold of a slot, if there is one: its rank is attached now.
func (s *State) EndHold(slot uint32) { delete(s.held, slot) }

// NewLease returns the lease of a new reservation, nil if no rank is followed by its
// capacity.
func (s *State) NewLease() *approximate.Lease {
	if s.leases == nil {
		return nil
	}
	return s.leases.NewLease()
}

// Booked notes that a prompt was booked on a rank, if reservations predict anything.
// private are the prompt's blocks besides those of the local hashes, which are
// borrowed. The lease is of NewLease.
func (s *State) Booked(e catalog.Entry, local []uint64, private int, lease *approximate.Lease) {
	if s.approximate != nil {
		s.approximate.BookLeased(e, local, private, lease)
	}
}

// maxSeedNames bounds the block seeds of a scope whose names are kept, maxSeedName the
// name of an adapter in bytes: events state it, at any length.
const (
	maxSeedNames = 4096
	maxSeedName  = 256
)

// SeedNames remembers which adapter and salt the block seeds of a scope are made
// of, as events name them. Salts are secrets of customers: only whether there is one
// is kept. The zero value is empty.
type SeedNames struct {
	mu sync.Mutex // guards of
	of map[uint64]seedName
}

type seedName struct {
	lora   string
	salted bool
}

// NameSeed notes a seed; see kvevents.SeedNames. Once there are too many it
// notes no more, and none with a name that is too long.
func (n *SeedNames) NameSeed(seed uint64, lora, salt string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.of) >= maxSeedNames || len(lora) > maxSeedName {
		return
	}
	if n.of == nil {
		n.of = make(map[uint64]seedName)
	}
	n.of[seed] = seedName{lora: lora, salted: salt != ""}
}

// SeedName returns the adapter of a seed and whether there is a salt; ok is false
// if no event has named the seed.
func (n *SeedNames) SeedName(seed uint64) (lora string, salted, ok bool) {
	if seed == hashing.Seed {
		return "", false, true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	name, ok := n.of[seed]
	return name.lora, name.salted, ok
}
