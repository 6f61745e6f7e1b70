package catalog

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"
)

// Snapshot is a scope at one moment. It never changes.
type Snapshot struct {
	Scope     Scope
	BlockSize uint32 // of every attached worker, in tokens
	Eagle     bool
	Encoders  bool // there are workers that only encode

	Workers  []*Worker // schedulable, by id
	NumRanks int       // the length of Ranks
	// NumPrompts counts the Ranks that take prompts: those of workers that do not only encode.
	NumPrompts int
	// NumDraining counts the ranks of draining workers that carry load.
	NumDraining int
	Slots       int // all slots of the scope are below this number

	members []attachedWorker // by id
	known   int              // the length of Known
	// entries is built on first use, so that registering thousands of ranks takes no
	// memory for them before they are needed.
	entries atomic.Pointer[entries]
}

// attachedWorker is a worker with what it contributes.
type attachedWorker struct {
	worker     *Worker
	attachment *Attachment
}

// entries are the ranks of a snapshot one by one.
type entries struct {
	ranks, known []Entry
	slots        []uint64 // of the ranks that take prompts, a bit set
	bySlot       []uint32 // the index in ranks
}

// Ranks returns the schedulable ranks by worker and data-parallel rank: the
// candidates. The caller must not change them.
func (s *Snapshot) Ranks() []Entry { return s.expand().ranks }

// Known returns every attached rank, in the same order: the candidates, those that
// only have events, those of draining and incomplete workers and those of the slot
// tracker. The caller must not change them.
func (s *Snapshot) Known() []Entry { return s.expand().known }

// PromptSlots returns the slots of the candidates that take prompts, a bit set with 64 slots to a word.
// The caller must not change it.
func (s *Snapshot) PromptSlots() []uint64 { return s.expand().slots }

// BySlot returns the candidate in a slot, which must be one of PromptSlots.
func (s *Snapshot) BySlot(slot uint32) Entry {
	e := s.expand()
	return e.ranks[e.bySlot[slot]]
}

func (s *Snapshot) expand() *entries {
	if e := s.entries.Load(); e != nil {
		return e
	}
	e := &entries{known: make([]Entry, 0, s.known)}
	for _, m := range s.members {
		for _, r := range m.attachment.runs {
			for i := range r.n {
				e.known = append(e.known, Entry{
					Rank: Rank{Worker: m.worker.ID, DP: r.dp + i}, Slot: r.slot + i, CarriesLoad: r.candidate, Worker: m.worker,
				})
			}
		}
	}
	if e.ranks = e.known; s.NumRanks < s.known {
		e.ranks = make([]Entry, 0, s.NumRanks)
		for _, k := range e.known {
			if k.CarriesLoad && k.Worker.Lifecycle == Schedulable {
				e.ranks = append(e.ranks, k)
			}
		}
	}
	e.slots, e.bySlot = make([]uint64, (s.Slots+63)/64), make([]uint32, s.Slots)
	for i, r := range e.ranks {
		if !r.Worker.OnlyEncodes() {
			e.slots[r.Slot/64] |= 1 << (r.Slot % 64)
		}
		e.bySlot[r.Slot] = uint32(i)
	}
	s.entries.Store(e) // concurrent callers build equal entries: either may stay
	return e
}

// Entry is an attached rank.
type Entry struct {
	Rank
	// Slot is the rank's dense number inside its scope. It is assigned to another
	// rank once this one is gone, so a user of an older snapshot must compare the
	// rank as well.
	Slot uint32
	// CarriesLoad: the ledger has the rank. It need not be a candidate.
	CarriesLoad bool
	Worker      *Worker
}

// Entry finds a candidate.
func (s *Snapshot) Entry(r Rank) (Entry, bool) { return find(s.Ranks(), r) }

// KnownEntry finds an attached rank, candidate or not.
func (s *Snapshot) KnownEntry(r Rank) (Entry, bool) { return find(s.Known(), r) }

func find(all []Entry, r Rank) (Entry, bool) {
	i, ok := slices.BinarySearchFunc(all, r, func(e Entry, r Rank) int { return e.Compare(r) })
	if !ok {
		return Entry{}, false
	}
	return all[i], true
}

// Bookable finds a rank that a caller may name to book on it: a candidate, or one of a draining
// worker, which gets no new choices.
func (s *Snapshot) Bookable(r Rank) (Entry, bool) {
	e, ok := s.KnownEntry(r)
	return e, ok && s.IsBookable(e)
}

// IsBookable reports whether Bookable finds an entry of this snapshot.
func (s *Snapshot) IsBookable(e Entry) bool { return e.CarriesLoad && takesBookings(e.Worker) }

// TakesBookings reports whether a worker is schedulable or draining.
func (s *Snapshot) TakesBookings(worker uint64) bool {
	i, ok := slices.BinarySearchFunc(s.members, worker, func(m attachedWorker, id uint64) int { return cmp.Compare(m.worker.ID, id) })
	return ok && takesBookings(s.members[i].worker)
}

func takesBookings(w *Worker) bool { return w.Lifecycle == Schedulable || w.Lifecycle == Draining }

// Worker finds a schedulable worker.
func (s *Snapshot) Worker(id uint64) (*Worker, bool) {
	i, ok := slices.BinarySearchFunc(s.Workers, id, func(w *Worker, id uint64) int { return cmp.Compare(w.ID, id) })
	if !ok {
		return nil, false
	}
	return s.Workers[i], true
}

// RanksOf returns the candidates of one worker. The caller must not change
// them.
func (s *Snapshot) RanksOf(worker uint64) []Entry { return ofWorker(s.Ranks(), worker) }

// KnownOf returns the attached ranks of one worker. The caller must not change them.
func (s *Snapshot) KnownOf(worker uint64) []Entry { return ofWorker(s.Known(), worker) }

// ofWorker returns the part of a sorted list that is about one worker.
func ofWorker(all []Entry, worker uint64) []Entry {
	from := func(id uint64, after int) int {
		i, _ := slices.BinarySearchFunc(all, id, func(e Entry, id uint64) int {
			if c := cmp.Compare(e.Rank.Worker, id); c != 0 {
				return c
			}
			return after
		})
		return i
	}
	lo, hi := from(worker, 1), from(worker, -1)
	return all[lo:hi:hi]
}

// IsCandidate reports whether an entry of this snapshot can be chosen.
func (s *Snapshot) IsCandidate(e Entry) bool {
	return e.Worker.Lifecycle == Schedulable && e.Worker.HasRank(e.DP)
}

// Snapshots returns all scopes with attached workers as they are at one moment,
// by model and tenant.
func (c *Catalog) Snapshots() []*Snapshot {
	return slices.SortedFunc(maps.Values(c.view.Load().scopes), func(a, b *Snapshot) int { return a.Scope.Compare(b.Scope) })
}
