package recovery

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"

	"github.com/select-service/select-service/internal/container/hashset"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/indexer"
)

// Target is where the contents of a dump go.
type Target interface {
	// Fits reports whether a scope can take blocks of that size, in tokens.
	Fits(sc catalog.Scope, blockSize uint32) bool
	// Place returns the gate of a scope, the same for all its ranks, and the slot of a
	// rank, whose worker need not be registered yet. ok is false if the rank cannot
	// have a slot.
	Place(sc catalog.Scope, blockSize uint32, r catalog.Rank) (g *Gate, slot uint32, ok bool)
	// ShowKeys says that blocks with keys beside their tokens are in use in a scope
	// (indexer.Space.ShowKeys). The dump may have no block of it.
	ShowKeys(sc catalog.Scope)
}

// Options of a Read; the zero value has the defaults.
type Options struct {
	// MaxOrphans bounds the blocks of a scope that wait for their parent; 0 stands for
	// DefaultMaxOrphans.
	MaxOrphans int
	// Progress, if set, is called every few thousand events.
	Progress func(*Report)

	window int // bytes; for tests
}

// DefaultMaxOrphans is the default of Options.MaxOrphans. This many blocks take up to
// 100 MB while a dump is read.
const DefaultMaxOrphans = 1 << 20

const (
	// maxPart is how many blocks are merged at once, while live events wait: it takes
	// less than a millisecond.
	maxPart = 1024
	// maxPlaces bounds the ranks of an entry whose places are remembered.
	maxPlaces = 1 << 16
	// progressEvery is the number of events between two calls of Progress.
	progressEvery = 4096
)

// Read reads a peer's dump, in JSON, to its end and merges it into the target, event
// by event (decision R2). Entries and events that are malformed or cannot be used are
// skipped and counted, the rest is used (decision K8). An error means that the dump
// broke off, is not JSON from some offset on, or ctx has ended; what was merged before
// stays.
func Read(ctx context.Context, in io.Reader, target Target, opt Options) (Report, error) {
	if opt.MaxOrphans == 0 {
		opt.MaxOrphans = DefaultMaxOrphans
	}
	if opt.window == 0 {
		opt.window = defaultWindow
	}
	r := &reader{scanner: newScanner(ctx, in, opt.window), target: target, progress: opt.Progress, orphans: orphans{limit: opt.MaxOrphans}}
	r.readDump()
	r.report.EndedEarly = r.err != nil
	if r.err != nil {
		return r.report, fmt.Errorf("read dump: %w", r.err)
	}
	return r.report, nil
}

// reader reads one dump.
type reader struct {
	*scanner
	target   Target
	progress func(*Report)
	report   Report
	event    event
	orphans  orphans
	seen     hashset.Set // scratch: the hashes of one event
	stack    []uint64    // scratch of joinOrphans

	// The entry that is being read:

	scope     catalog.Scope
	blockSize uint32
	gate      *Gate // nil until a rank has a place
	places    map[catalog.Rank]place
}

// place is the target's answer for a rank.
type place struct {
	slot uint32
	ok   bool
}

// countSkipped counts n skipped things, unless the dump broke off in them.
func (r *reader) countSkipped(why Reason, n int) {
	if r.err == nil {
		r.report.Skipped[why] += uint64(n)
	}
}

func (r *reader) readDump() {
	if !r.enter('{') {
		r.fail(errSyntax)
		return
	}
	for r.more('}') {
		if key := r.name(); r.err == nil {
			r.readEntry(key)
		}
	}
	r.finish()
}

// readEntry reads the entry of one scope.
func (r *reader) readEntry(key []byte) {
	at := bytes.LastIndexByte(key, ':')
	if at < 0 {
		r.countSkipped(BadKey, 1)
		r.skip()
		return
	}
	r.scope = catalog.Scope{Model: string(key[:at]), Tenant: string(key[at+1:])}
	r.gate, r.blockSize, r.places = nil, 0, make(map[catalog.Rank]place)
	if !r.enter('{') {
		r.countSkipped(BadEntry, 1)
		return
	}
	var e entryState
	for r.more('}') {
		switch string(r.name()) {
		case "block_size":
			r.readBlockSize(&e)
		case "keys_shown":
			shown := r.next() == 't'
			if r.skip(); shown && r.err == nil {
				r.target.ShowKeys(r.scope)
			}
		case "events":
			r.readEvents(&e)
		case "error":
			e.fault(ErrorEntry)
			r.skip()
		default:
			r.skip()
		}
	}
	r.keepFrom = -1
	r.releaseOrphans()
	switch {
	case r.err != nil:
	case e.eventsRead && !e.bad:
		r.report.Scopes++
	case e.bad:
		r.countSkipped(e.reason, 1)
	case e.eventsFirst:
		r.countSkipped(LateBlockSize, 1)
	default:
		r.countSkipped(BadEntry, 1)
	}
}

// entryState is what has been read of an entry.
type entryState struct {
	blockSizeRead bool // the block size is known
	eventsRead    bool // the events were read
	eventsFirst   bool // the events came before the block size
	bad           bool
	reason        Reason // if bad
}

func (e *entryState) fault(why Reason) {
	if !e.bad {
		e.bad, e.reason = true, why
	}
}

// readBlockSize reads the block size. Events that came before it are read now,
// if they are still in the window.
func (r *reader) readBlockSize(e *entryState) {
	size, ok := r.uint(math.MaxUint32)
	if e.blockSizeRead {
		return
	}
	if !ok || size == 0 {
		e.fault(BadEntry)
		return
	}
	e.blockSizeRead, r.blockSize = true, uint32(size)
	if !r.target.Fits(r.scope, r.blockSize) {
		e.fault(OtherBlockSize)
	}
	if r.keepFrom < 0 || r.err != nil {
		return
	}
	after := r.pos
	r.pos, r.keepFrom = r.keepFrom, -1
	r.readEvents(e)
	r.pos = after
}

// readEvents reads the events. If the block size is still to come, it marks
// their beginning so that the window keeps them.
func (r *reader) readEvents(e *entryState) {
	if e.bad || !e.blockSizeRead {
		if e.eventsFirst = !e.blockSizeRead && !e.bad; e.eventsFirst {
			r.keepFrom = r.pos
		}
		r.skip()
		return
	}
	if !r.enter('[') {
		e.fault(BadEntry)
		return
	}
	for r.more(']') {
		if r.event.read(r.scanner); r.err != nil {
			return // half an event
		}
		r.report.Events++
		r.applyEvent(&r.event)
		if r.progress != nil && r.report.Events%progressEvery == 0 {
			r.progress(&r.report)
		}
	}
	e.eventsRead = true
}

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

// place asks the target for a rank's place, once per rank.
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
	at.ok = at.ok && gate == r.gate // a slot is valid behind its own gate only
	if len(r.places) < maxPlaces {
		r.places[rank] = at
	}
	return at
}

// store merges a stored event in parts of at most maxPart blocks.
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

// countRefused counts an entry that a gate refused. It reports whether it was refused.
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

// joinOrphans merges the orphans whose parents have just been merged, and
// recursively those below them.
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

// releaseOrphans empties the orphans at the end of an entry. Those whose parents have
// come with live events are merged. The others are offered to the gate too, so that
// the reasons for which it refuses them are counted.
func (r *reader) releaseOrphans() {
	if r.err == nil {
		for _, key := range r.orphans.parents() {
			if r.gate.KnowsParent(key.slot, key.parent) {
				r.joinOrphans(key.slot, []uint64{key.parent})
			}
		}
		for _, key := range r.orphans.parents() {
			r.joinOrphans(key.slot, []uint64{key.parent}) // counts the refusals
		}
	}
	r.report.Skipped[MissingParent] += uint64(r.orphans.n)
	r.orphans.reset()
}
