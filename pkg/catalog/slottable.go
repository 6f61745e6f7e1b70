package catalog

import (
	"iter"
	"slices"
)

// SlotTable maps the slots of a scope to ranks and back. It takes four bytes a slot and
// a few for each worker, because a worker may have thousands of ranks, most of them
// never used. The zero value is empty.
type SlotTable struct {
	owners  []uint32          // by slot: 1 + the worker's index in workers, 0 for none
	workers []slotWorker      // free elements have no runs
	free    []uint32          // indexes of free elements
	numbers map[uint64]uint32 // indexes in workers, by worker id
	n       int               // ranks
}

// slotWorker has those ranks of a worker that have slots.
type slotWorker struct {
	id   uint64
	runs []slotRun // by data-parallel rank; adjacent runs that continue each other are joined
}

// slotRun is n consecutive ranks with consecutive slots.
type slotRun struct{ dp, slot, n uint32 }

// Len returns the number of ranks.
func (t *SlotTable) Len() int { return t.n }

// Has reports whether the rank has that slot.
func (t *SlotTable) Has(slot uint32, r Rank) bool {
	if int(slot) >= len(t.owners) || t.owners[slot] == 0 {
		return false
	}
	w := &t.workers[t.owners[slot]-1]
	if w.id != r.Worker {
		return false
	}
	for i := range w.runs {
		if run := &w.runs[i]; slot-run.slot < run.n {
			return run.dp+slot-run.slot == r.DP
		}
	}
	return false
}

// Rank returns the rank that has a slot.
func (t *SlotTable) Rank(slot uint32) (r Rank, ok bool) {
	if int(slot) >= len(t.owners) || t.owners[slot] == 0 {
		return Rank{}, false
	}
	w := &t.workers[t.owners[slot]-1]
	for _, run := range w.runs {
		if slot-run.slot < run.n {
			return Rank{Worker: w.id, DP: run.dp + slot - run.slot}, true
		}
	}
	return Rank{}, false
}

// Slot returns the slot of a rank.
func (t *SlotTable) Slot(r Rank) (slot uint32, ok bool) {
	number, ok := t.numbers[r.Worker]
	if !ok {
		return 0, false
	}
	for _, run := range t.workers[number].runs {
		if r.DP-run.dp < run.n {
			return run.slot + r.DP - run.dp, true
		}
	}
	return 0, false
}

// All yields all slots with their ranks, in the order of the slots.
func (t *SlotTable) All() iter.Seq2[uint32, Rank] {
	return func(yield func(uint32, Rank) bool) {
		for slot := range t.owners {
			if r, ok := t.Rank(uint32(slot)); ok && !yield(uint32(slot), r) {
				return
			}
		}
	}
}

// Assign gives a slot to a rank. The rank must not have a slot yet, nor the slot a rank.
func (t *SlotTable) Assign(slot uint32, r Rank) {
	if n := int(slot) + 1 - len(t.owners); n > 0 {
		t.owners = append(t.owners, make([]uint32, n)...)
	}
	number := t.number(r.Worker)
	t.owners[slot] = number + 1
	t.n++
	w := &t.workers[number]
	i := 0
	for i < len(w.runs) && w.runs[i].dp < r.DP {
		i++
	}
	w.runs = slices.Insert(w.runs, i, slotRun{r.DP, slot, 1})
	w.joinAt(i + 1)
	w.joinAt(i)
}

// joinAt joins the i-th run with the one before it if it continues that in ranks and slots.
func (w *slotWorker) joinAt(i int) {
	if i == 0 || i == len(w.runs) {
		return
	}
	if a, b := &w.runs[i-1], &w.runs[i]; a.dp+a.n == b.dp && a.slot+a.n == b.slot {
		a.n += b.n
		w.runs = slices.Delete(w.runs, i, i+1)
	}
}

// number returns the worker's index in workers, a new one if it has none.
func (t *SlotTable) number(id uint64) uint32 {
	number, ok := t.numbers[id]
	if ok {
		return number
	}
	if n := len(t.free); n > 0 {
		number, t.free = t.free[n-1], t.free[:n-1]
	} else {
		number = uint32(len(t.workers))
		t.workers = append(t.workers, slotWorker{})
	}
	t.workers[number] = slotWorker{id: id}
	if t.numbers == nil {
		t.numbers = make(map[uint64]uint32)
	}
	t.numbers[id] = number
	return number
}

// Release takes a slot from the rank that has it, if there is one.
func (t *SlotTable) Release(slot uint32) {
	if int(slot) >= len(t.owners) || t.owners[slot] == 0 {
		return
	}
	number := t.owners[slot] - 1
	t.owners[slot] = 0
	t.n--
	w := &t.workers[number]
	i := slices.IndexFunc(w.runs, func(run slotRun) bool { return slot-run.slot < run.n })
	run := w.runs[i]
	at := slot - run.slot
	w.runs = slices.Delete(w.runs, i, i+1)
	if rest := run.n - at - 1; rest > 0 {
		w.runs = slices.Insert(w.runs, i, slotRun{run.dp + at + 1, slot + 1, rest})
	}
	if at > 0 {
		w.runs = slices.Insert(w.runs, i, slotRun{run.dp, run.slot, at})
	}
	if len(w.runs) == 0 {
		delete(t.numbers, w.id)
		*w = slotWorker{}
		t.free = append(t.free, number)
	}
	if t.n == 0 {
		*t = SlotTable{}
	}
}
