package catalog

import (
	"cmp"
	"maps"
	"slices"
)

// Snapshot is a scope at one moment. It never changes.
type Snapshot struct {
	Scope     Scope
	BlockSize uint32 // of every attached worker, in tokens
	Eagle     bool

	Workers []*Worker // schedulable, by id
	Ranks   []Entry   // schedulable ranks by worker and data-parallel rank: the candidates
	// Known has every attached rank, in the same order: the candidates, those that
	// only have events, those of incomplete workers and those of the slot tracker.
	Known []Entry
	Slots int // every slot is below
}

// Entry is an attached rank.
type Entry struct {
	Rank
	// Slot is the rank's dense number inside its scope. It is assigned to another
	// rank once this one is gone, so a user of an older snapshot must compare the
	// rank as well.
	Slot uint32
	// CarriesLoad says whether the ledger has the rank, chosen or not.
	CarriesLoad bool
	Worker      *Worker
}

// Entry finds a candidate.
func (s *Snapshot) Entry(r Rank) (Entry, bool) { return find(s.Ranks, r) }

// KnownEntry finds an attached rank, candidate or not.
func (s *Snapshot) KnownEntry(r Rank) (Entry, bool) { return find(s.Known, r) }

func find(all []Entry, r Rank) (Entry, bool) {
	i, ok := slices.BinarySearchFunc(all, r, func(e Entry, r Rank) int { return e.Compare(r) })
	if !ok {
		return Entry{}, false
	}
	return all[i], true
}

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
func (s *Snapshot) RanksOf(worker uint64) []Entry {
	from := func(id uint64, after int) int {
		i, _ := slices.BinarySearchFunc(s.Ranks, id, func(e Entry, id uint64) int {
			if c := cmp.Compare(e.Rank.Worker, id); c != 0 {
				return c
			}
			return after
		})
		return i
	}
	lo, hi := from(worker, 1), from(worker, -1)
	return s.Ranks[lo:hi:hi]
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
