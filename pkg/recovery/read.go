package recovery

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"

	"github.com/select-service/select-service/internal/hashset"
	"github.com/select-service/select-service/pkg/catalog"
)

// Target is where a dump goes.
type Target interface {
	// Fits tells whether blocks of that size, in tokens, can have a place in a
	// scope.
	Fits(sc catalog.Scope, blockSize uint32) bool
	// Place returns the place of a rank, whether its worker is known or not yet:
	// its slot, and the gate of its scope, the same for all ranks. It is false if
	// the rank can have none.
	Place(sc catalog.Scope, blockSize uint32, r catalog.Rank) (g *Gate, slot uint32, ok bool)
}

// Options of a Read; the zero value has the defaults.
type Options struct {
	// Waiting bounds the blocks of a scope that wait for their parent; 0 is
	// DefaultWaiting.
	Waiting int
	// Progress, if set, is told now and then how far the dump has been read.
	Progress func(*Report)

	window int // bytes; for tests
}

// DefaultWaiting is the default of Options.Waiting: up to 100 MB while a dump is
// read in which so many blocks come before their parents.
const DefaultWaiting = 1 << 20

const (
	// maxPart is how many blocks are merged while live events wait: less than a
	// millisecond.
	maxPart = 1024
	// maxPlaces bounds the ranks of an entry whose places are remembered.
	maxPlaces = 1 << 16
	// progressEvery is the number of events between two calls of Progress.
	progressEvery = 4096
)

// Read reads a peer's dump to its end and merges it into the target, event by
// event (decision R2). What is not as it should be is skipped and counted, the
// rest is used (decision K8). An error means that the dump broke off, is no JSON
// from some place on, or ctx has ended: what came before stays.
func Read(ctx context.Context, in io.Reader, target Target, opt Options) (Report, error) {
	if opt.Waiting == 0 {
		opt.Waiting = DefaultWaiting
	}
	if opt.window == 0 {
		opt.window = windowSize
	}
	r := &reader{scanner: newScanner(ctx, in, opt.window), target: target, progress: opt.Progress, orphans: orphans{limit: opt.Waiting}}
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
	stack    []uint64    // of release

	// Of the entry that is being read:

	scope     catalog.Scope
	blockSize uint32
	gate      *Gate // nil until a rank has a place
	places    map[catalog.Rank]place
}

// place is what the target said of a rank.
type place struct {
	slot uint32
	ok   bool
}

// countSkipped counts what was not used; what broke off is no fault of its own.
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

// entryState is what is known of an entry.
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

// readBlockSize opens the scope. Events that came before are read now, if they
// are still in the window.
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

// readEvents reads the events, or keeps them in the window if the block size is
// still to come.
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
