package recovery

import (
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
)

// apply merges one event.
func (r *reader) apply(e *event) {
	if e.bad {
		r.skipped(e.why, 1)
		return
	}
	at := r.place(e.rank)
	if !at.ok {
		r.skipped(NoSlot, 1)
		return
	}
	switch e.kind {
	case storedEvent:
		r.store(at.slot, e)
	case removedEvent:
		r.refused(r.gate.MergeRemoved(at.slot, e.rank, e.tier, e.names))
		if !r.waiting.remove(at.slot, e.tier, e.names, r.report.Events) {
			r.skipped(NoRoom, r.waiting.n)
			r.waiting.reset()
		}
	case clearedEvent:
		r.refused(r.gate.MergeCleared(at.slot, e.rank))
		r.waiting.clear(at.slot, r.report.Events)
	}
}

// place asks the target once for each rank.
func (r *reader) place(rank catalog.Rank) place {
	at, known := r.places[rank]
	if known {
		return at
	}
	var gate *Gate
	gate, at.slot, at.ok = r.target.Place(r.scope, r.blockSize, rank)
	if r.gate == nil {
		r.gate = gate
	}
	at.ok = at.ok && gate == r.gate // slots mean something behind one gate only
	if len(r.places) < maxPlaces {
		r.places[rank] = at
	}
	return at
}

// store merges a stored event in parts.
func (r *reader) store(slot uint32, e *event) {
	ev := indexer.Store{
		Slot: slot, Tier: e.tier, Parent: e.parent, HasParent: e.hasParent,
		Seed: e.seed, SeedKnown: e.hasSeed,
	}
	for names, local := e.names, e.local; len(names) > 0; {
		n := min(maxPart, len(names))
		for n < len(names) && names[n-1] == 0 {
			n++ // as a parent, 0 may mean the root
		}
		ev.EngineHashes, ev.Local = names[:n], local[:n]
		if r.seen.ChainRepeats(ev.Parent, ev.HasParent, ev.EngineHashes) {
			r.skipped(RepeatedHash, 1)
			return
		}
		stored, res := r.gate.Merge(e.rank, &ev)
		r.report.Blocks += uint64(stored)
		if res == ParentUnknown {
			ev.EngineHashes, ev.Local = names, local
			r.skipped(NoRoom, r.waiting.put(e.rank, &ev, r.report.Events))
			return
		}
		if r.refused(res) {
			return
		}
		r.join(slot, ev.EngineHashes)
		ev.Parent, ev.HasParent = names[n-1], true
		names, local = names[n:], local[n:]
	}
}

// refused counts what a gate did not take.
func (r *reader) refused(res MergeResult) bool {
	switch res {
	case SlotLost, NotRecovering:
		r.skipped(RankLeft, 1)
	case Superseded:
		r.skipped(Obsolete, 1)
	case TooManyRemovals:
		r.skipped(LiveRemovals, 1)
	case ParentUnknown:
		r.skipped(MissingParent, 1)
	case Applied:
		return false
	}
	return true
}

// join merges the blocks that waited for blocks which have come, and theirs.
func (r *reader) join(slot uint32, names []uint64) {
	for _, name := range names {
		if r.waiting.n == 0 {
			return
		}
		for r.stack = append(r.stack[:0], name); len(r.stack) > 0; {
			parent := r.stack[len(r.stack)-1]
			b, ok := r.waiting.take(slot, parent)
			if !ok {
				r.stack = r.stack[:len(r.stack)-1]
				continue
			}
			stored, res := r.gate.Merge(b.rank, &indexer.Store{
				Slot: slot, Tier: b.tier, Parent: parent, HasParent: true,
				EngineHashes: []uint64{b.name}, Local: []uint64{b.local}, Seed: b.seed, SeedKnown: b.seedKnown,
			})
			r.report.Blocks += uint64(stored)
			if !r.refused(res) {
				r.stack = append(r.stack, b.name)
			}
		}
	}
}

// release ends the wait at an entry's end. Parents may have come live, or may not
// come because nothing more is taken for their rank.
func (r *reader) release() {
	if r.err == nil {
		for _, key := range r.waiting.parents() {
			if r.gate.KnowsParent(key.slot, key.parent) {
				r.join(key.slot, []uint64{key.parent})
			}
		}
		for _, key := range r.waiting.parents() {
			r.join(key.slot, []uint64{key.parent}) // counts
		}
	}
	r.report.Skipped[MissingParent] += uint64(r.waiting.n)
	r.waiting.reset()
}
