package indexer

// room returns how many blocks of a run the work of a piece has room for, at
// least one, where so many entries have their names looked up.
func (w *Walk) room(entries int) uint32 {
	return uint32(max(1, (w.work-w.workDone())/(1+entries*nameWork)))
}

// addByName adds a run whose first block is the cell off, behind the cell up. An
// entry that names its blocks, or the parent, otherwise than the table does gets
// a run of its own.
func (w *Walk) addByName(r *Run, off, up uint32) {
	shared := len(w.runs)
	w.runs = append(w.runs, Run{})
	left := 0
	for tier, slots := range r.Slots {
		r.Slots[tier] = slots[:0]
		for _, slot := range slots {
			if own, ok := w.ownNames(r, holderOf(slot, Tier(tier)), off, up); ok {
				w.runs = append(w.runs, own)
				w.passed++
				continue
			}
			r.Slots[tier] = append(r.Slots[tier], slot)
			left++
		}
	}
	if left > 0 {
		w.runs[shared] = *r
		return
	}
	last := len(w.runs) - 1
	w.runs[shared] = w.runs[last]
	w.runs = w.runs[:last]
}

// ownNames returns the run of one entry of r under its own names; it is false if they
// are r's.
func (w *Walk) ownNames(r *Run, by holder, off, up uint32) (Run, bool) {
	s := w.space
	a := &s.ranks[by.slot()].aliases
	if len(a.states) == 0 {
		return Run{}, false
	}
	own := Run{Parent: r.Parent, HasParent: r.HasParent, Local: r.Local, Seed: r.Seed}
	if r.HasParent {
		own.Parent = s.nameOf(by, up)
	}
	differs := own.Parent != r.Parent
	first := len(w.names)
	for i, name := range r.EngineHashes {
		called := a.name(off+uint32(i), by.tier(), name)
		differs = differs || called != name
		w.names = append(w.names, called)
	}
	w.lookups += 1 + len(r.EngineHashes)
	if !differs {
		w.names = w.names[:first]
		return Run{}, false
	}
	own.EngineHashes = w.names[first:len(w.names):len(w.names)]
	w.slots = append(w.slots, by.slot())
	last := len(w.slots) - 1
	own.Slots[by.tier()] = w.slots[last : last+1 : last+1]
	return own, true
}
