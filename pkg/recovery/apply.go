package recovery

import (
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
)

// applyEvent merges one event.
func (r *reader) applyEvent(e *event) {
	if e.bad {
		r.countSkipped(e.reason, 1)
		return
	}
	at := r.place(e.rank)
	if !at.ok {
		r.countSkipped(NoSlot, 1)
		return
	}
	switch e.kind {
	case storedEvent:
		r.store(at.slot, e)
	case removedEvent:
		r.countRefused(r.gate.MergeRemoved(at.slot, e.rank, e.tier, e.hashes))
		if !r.orphans.remove(at.slot, e.tier, e.hashes, r.report.Events) {
			r.countSkipped(NoRoom, r.orphans.n)
			r.orphans.reset()
		}
	case clearedEvent:
		r.countRefused(r.gate.MergeCleared(at.slot, e.rank))
		r.orphans.clear(at.slot, r.report.Events)
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
	for names, local := e.hashes, e.local; len(names) > 0; {
		n := min(maxPart, len(names))
		for n < len(names) && names[n-1] == 0 {
			n++ // as a parent, 0 may mean the root
		}
		ev.EngineHashes, ev.Local = names[:n], local[:n]
		if r.seen.ChainRepeats(ev.Parent, ev.HasParent, ev.EngineHashes) {
			r.countSkipped(RepeatedHash, 1)
			return
		}
		stored, res := r.gate.Merge(e.rank, &ev)
		r.report.Blocks += uint64(stored)
		if res == ParentUnknown {
			ev.EngineHashes, ev.Local = names, local
			r.countSkipped(NoRoom, r.orphans.put(e.rank, &ev, r.report.Events))
			return
		}
		if r.countRefused(res) {
			return
		}
		r.joinOrphans(slot, ev.EngineHashes)
		ev.Parent, ev.HasParent = names[n-1], true
		names, local = names[n:], local[n:]
	}
}

// countRefused counts what a gate did not take.
func (r *reader) countRefused(res MergeResult) bool {
	switch res {
	case SlotLost, NotRecovering:
		r.countSkipped(RankLeft, 1)
	case Superseded:
		r.countSkipped(Obsolete, 1)
	case TooManyRemovals:
		r.countSkipped(LiveRemovals, 1)
	case ParentUnknown:
		r.countSkipped(MissingParent, 1)
	case Applied:
		return false
	}
	return true
}

// joinOrphans merges the blocks that waited for blocks which have come, and theirs.
func (r *reader) joinOrphans(slot uint32, names []uint64) {
	for _, name := range names {
		if r.orphans.n == 0 {
			return
		}
		for r.stack = append(r.stack[:0], name); len(r.stack) > 0; {
			parent := r.stack[len(r.stack)-1]
			b, ok := r.orphans.take(slot, parent)
			if !ok {
				r.stack = r.stack[:len(r.stack)-1]
				continue
			}
			stored, res := r.gate.Merge(b.rank, &indexer.Store{
				Slot: slot, Tier: b.tier, Parent: parent, HasParent: true,
				EngineHashes: []uint64{b.name}, Local: []uint64{b.local}, Seed: b.seed, SeedKnown: b.seedKnown,
			})
			r.report.Blocks += uint64(stored)
			if !r.countRefused(res) {
				r.stack = append(r.stack, b.name)
			}
		}
	}
}

// releaseOrphans ends the wait at an entry's end. Parents may have come live, or may not
// come because nothing more is taken for their rank.
func (r *reader) releaseOrphans() {
	if r.err == nil {
		for _, key := range r.orphans.parents() {
			if r.gate.KnowsParent(key.slot, key.parent) {
				r.joinOrphans(key.slot, []uint64{key.parent})
			}
		}
		for _, key := range r.orphans.parents() {
			r.joinOrphans(key.slot, []uint64{key.parent}) // counts
		}
	}
	r.report.Skipped[MissingParent] += uint64(r.orphans.n)
	r.orphans.reset()
}
