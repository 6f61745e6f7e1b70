package kvevents

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/select-service/select-service/test/helpers/length"
)

// world is a publisher, a lossy way to the stream and the stream itself. The
// publisher is naive: how many copies it has of each block, a number, a ring.
type world struct {
	rnd *rand.Rand
	now time.Time

	// the engine
	generation int
	seq        uint64
	blocks     map[int]int    // copies by block
	lastOp     map[int]uint64 // block → number of the newest event about it
	lastStore  map[int]bool   // blocks whose newest event is a store
	ring       []message
	ringSize   int

	// the way
	loss    float64
	flight  []message // live messages under way
	answers []message // of the running replay
	ending  bool      // its end mark is still to come
	silent  bool

	// the stream and what it applied
	s       *stream
	n       Counters
	asked   bool
	applied map[int]int  // copies by block
	doubted map[int]bool // applied blocks whose number of copies is not known
	saved   map[int]int  // blocks that restore is to put back
	log     []string
}

func newWorld(seed uint64) *world {
	rnd := rand.New(rand.NewPCG(seed, 7))
	w := &world{
		rnd: rnd, now: time.Unix(1e9, 0), blocks: map[int]int{}, lastOp: map[int]uint64{}, lastStore: map[int]bool{},
		applied: map[int]int{}, doubted: map[int]bool{},
		ringSize: []int{3, 20, 1000}[rnd.IntN(3)],
		loss:     []float64{0, 0.02, 0.3}[rnd.IntN(3)],
	}
	w.s = &stream{
		output: w, replays: w, counters: &w.n, replayable: true,
		limits: limits{held: 20, heldBytes: 1 << 20, silence: 5 * time.Second},
	}
	for range rnd.IntN(30) { // a warm engine
		w.publish()
	}
	w.flight = nil
	w.note("ring %d loss %v", w.ringSize, w.loss)
	w.s.connected(w.now)
	return w
}

func (w *world) note(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

func (w *world) apply(m message) (cleared bool, err error) {
	payload := m.payload
	var generation, block int
	var seq uint64
	var store bool
	if _, err := fmt.Sscan(string(payload), &generation, &seq, &block, &store); err != nil {
		return false, err
	}
	w.note("  apply %s", payload)
	switch {
	case block == everyBlock:
		clear(w.applied)
		clear(w.doubted)
		return true, nil
	case store && w.doubted[block]:
		delete(w.doubted, block)
	case store:
		w.applied[block]++
	case w.applied[block] > 1:
		w.applied[block]--
	default:
		delete(w.applied, block)
		delete(w.doubted, block)
	}
	return false, nil
}

// doubt makes the number of copies of all blocks unknown.
func (w *world) doubt() {
	for block := range w.applied {
		w.applied[block], w.doubted[block] = 1, true
	}
}

// everyBlock is the block of an event that takes all away.
const everyBlock = -1

func (w *world) clear() { w.note("  clear"); clear(w.applied); clear(w.doubted) }

// replayed takes everything away: what is going to be replayed must be all.
func (w *world) restore()            { w.note("  restore"); w.restored() }
func (w *world) discard()            { w.note("  discard") }
func (w *world) lose()               { w.note("  lost"); w.doubt() }
func (w *world) rewind()             { w.note("  rewound"); w.doubt() }
func (w *world) beginReplay()        { w.note("  replayed"); clear(w.applied); clear(w.doubted) }
func (w *world) foreign([]byte) bool { return false }
func (w *world) askReplay()          { w.note("  ask"); w.asked = true }
func (w *world) closeReplay()        { w.asked, w.answers, w.ending = false, nil, false }

// publish makes one event and sends it on its way.
func (w *world) publish() {
	block := w.rnd.IntN(12)
	store := w.rnd.IntN(2) > 0 || w.blocks[block] == 0
	switch {
	case w.rnd.IntN(50) == 0:
		block = everyBlock
		clear(w.blocks)
		for b := range w.lastOp {
			w.lastOp[b], w.lastStore[b] = w.seq, false
		}
	case store:
		w.blocks[block]++
	case w.blocks[block] > 1:
		w.blocks[block]--
	default:
		delete(w.blocks, block)
	}
	m := message{seq: w.seq, payload: fmt.Appendf(nil, "%d %d %d %v", w.generation, w.seq, block, store)}
	if block != everyBlock {
		w.lastOp[block], w.lastStore[block] = w.seq, store
	}
	w.seq++
	w.ring = append(w.ring, m)
	if len(w.ring) > w.ringSize {
		w.ring = w.ring[1:]
	}
	if w.rnd.Float64() >= w.loss {
		w.flight = append(w.flight, m)
	}
}

func (w *world) deliver() {
	if len(w.flight) == 0 {
		return
	}
	m := w.flight[0]
	w.flight = w.flight[1:]
	if len(w.flight) > 0 && w.rnd.IntN(40) == 0 { // this one comes late
		at := 1 + w.rnd.IntN(len(w.flight))
		w.flight = slices.Insert(w.flight, at, m)
		return
	}
	w.note("live %s", m.payload)
	w.s.live(m, w.now)
}

func (w *world) grant() {
	if !w.asked {
		return
	}
	w.asked = false
	from, ok := w.s.granted(w.now)
	w.note("granted %d %v silent %v", from, ok, w.silent)
	if !ok || w.silent {
		return
	}
	w.answers = nil
	for _, m := range w.ring {
		if m.seq >= from {
			w.answers = append(w.answers, m)
		}
	}
	w.ending = true
	if w.loss > 0 && w.rnd.IntN(8) == 0 && len(w.answers) > 0 { // a ROUTER drops what does not fit
		at := w.rnd.IntN(len(w.answers))
		w.answers = slices.Delete(w.answers, at, min(len(w.answers), at+1+w.rnd.IntN(5)))
	}
}

func (w *world) answer() {
	if len(w.answers) > 0 {
		m := w.answers[0]
		w.answers = w.answers[1:]
		w.note("answer %s", m.payload)
		w.s.answer(m, false, w.now)
	} else if w.ending {
		w.ending = false
		w.note("end")
		w.s.answer(message{}, true, w.now)
	}
}

// restart is a new engine process; seen says whether the stream's connection
// breaks (else a proxy hides it).
func (w *world) restart(seen bool) {
	w.note("restart %v", seen)
	if seen {
		w.s.disconnected(w.now)
	}
	w.generation++
	w.seq, w.ring, w.answers, w.ending = 0, nil, nil, false
	clear(w.blocks)
	clear(w.lastOp)
	clear(w.lastStore)
	if seen {
		w.flight = nil
		for range w.rnd.IntN(20) {
			w.publish()
		}
		w.flight = nil
		w.s.connected(w.now)
	}
}

func (w *world) reconnect() {
	w.note("reconnect")
	w.s.disconnected(w.now)
	w.flight, w.answers, w.ending = nil, nil, false
	for range w.rnd.IntN(4) {
		w.publish()
	}
	w.flight = nil
	w.s.connected(w.now)
}

func (w *world) pass(d time.Duration) {
	w.now = w.now.Add(d)
	w.s.tick(w.now)
}

func (w *world) step() {
	switch n := w.rnd.IntN(200); {
	case n < 60:
		w.publish()
	case n < 120:
		w.deliver()
	case n < 135:
		w.grant()
	case n < 185:
		w.answer()
	case n < 190:
		w.pass(2 * time.Second)
	case n < 193:
		w.pass(6 * time.Second)
	case n < 195:
		w.silent = !w.silent
	case n < 197:
		w.reconnect()
	case n < 198:
		w.restart(true)
	case n < 199 && w.ringSize > 300 && !w.s.replay.state.wanted():
		// Hidden and trimmed: nothing of the old engine may be left to compare.
		// Hidden in a replay: its answers may be the one's, and what is held the
		// other's.
		w.restart(false)
	}
}

// broken says which invariant of the stream's fields does not hold, if any.
func (w *world) broken() string {
	s, holds := w.s, w.s.replay.state.holdsLive()
	switch {
	case s.started && s.since > s.last:
		return "since is above last"
	case s.started && s.firstLost.ok && s.firstLost.seq >= s.since:
		return "firstLost is not below since"
	case !s.started && (s.firstLost.ok || s.unverifiedUpTo.ok || s.last != 0 || s.since != 0):
		return "something is known of an engine of which nothing was applied"
	case s.suspect != nil && !s.started:
		return "a low number of an engine of which nothing was applied"
	case s.replayAgain && !s.up:
		return "replayAgain without a connection"
	case s.held.len() > 0 && !holds:
		return "messages are held for nothing"
	case !s.replay.state.wanted() && s.replay != replay{}:
		return "something is known of a replay that is not wanted"
	case s.replay.state != stateReplaying && s.replay.answered:
		return "a replay that does not run was answered"
	case s.retry.asked > maxRetries:
		return "too many retries"
	}
	return ""
}

// settle lets all that is under way arrive.
func (w *world) settle() {
	for len(w.flight) > 0 || w.asked || len(w.answers) > 0 || w.ending || w.s.replay.state.wanted() {
		w.deliver()
		w.grant()
		w.answer()
		if !w.asked && len(w.answers) == 0 && !w.ending && len(w.flight) == 0 {
			w.pass(5 * time.Second) // an answer that was lost on the way
		}
	}
}

// After any history of losses, late messages, silent or lossy replays,
// reconnects and restarts, one good connection is enough: if the ring still has
// all of the engine's life the applied blocks are the engine's, each with as many
// copies, and if the ring
// was trimmed there are no more of them, unless the stream calls itself stale.
func TestStreamAgainstModel(t *testing.T) {
	worlds := length.Of(4000, 200, 60)
	for seed := range uint64(worlds) {
		w := newWorld(seed)
		for range 300 {
			w.step()
			if bad := w.broken(); bad != "" {
				t.Fatalf("seed %d: %s\n%v\n%s", seed, bad, w.s, strings.Join(w.log, "\n"))
			}
		}
		w.silent, w.loss = false, 0
		w.settle()
		w.pass(2 * time.Minute)
		w.publish()
		w.settle()
		w.reconnect()
		w.settle()
		for range 3 { // two falling numbers tell of a new engine, one is not enough
			w.publish()
			w.settle()
		}
		if bad := w.check(); bad != "" {
			for _, line := range w.log {
				t.Log(line)
			}
			t.Fatalf("seed %d: %s\napplied %v\nengine  %v, generation %d, next %d, ring of %d",
				seed, bad, w.applied, w.blocks, w.generation, w.seq, len(w.ring))
		}
	}
}

// A warm engine's replay breaks off a few times, in whatever way, with or without
// a live message meanwhile. Once it can be had the blocks are the engine's, and
// no further connection or live message is needed.
func TestBrokenReplaysAgainstModel(t *testing.T) {
	worlds := uint64(length.Of(2000, 500, 150))
	for seed := range worlds {
		w := newWorld(seed)
		if w.loss = 0; w.ringSize < 1000 {
			continue // an engine that has no more of what came first
		}
		for range 1 + w.rnd.IntN(maxRetries) {
			w.breakOff()
			if w.rnd.IntN(2) == 0 {
				w.publish()
				w.deliver()
			}
			for !w.asked && w.s.retry.pending() {
				w.pass(time.Second)
			}
		}
		w.settle()
		for w.s.retry.pending() {
			w.pass(time.Second)
			w.settle()
		}
		if bad := w.check(); bad != "" {
			for _, line := range w.log {
				t.Log(line)
			}
			t.Fatalf("seed %d: %s\napplied %v\nengine  %v", seed, bad, w.applied, w.blocks)
		}
	}
}

// breakOff lets a replay that was asked for, if any, come to nothing, to a part,
// or to a part with an end.
func (w *world) breakOff() {
	w.grant()
	for range w.rnd.IntN(len(w.answers) + 1) {
		w.answer()
	}
	if w.s.replay.answered && len(w.answers) > 1 && w.rnd.IntN(3) == 0 { // the rest leaves numbers out
		w.answers = slices.Delete(w.answers, 0, 1+w.rnd.IntN(len(w.answers)-1))
		for len(w.answers) > 0 || w.ending {
			w.answer()
		}
	}
	w.answers, w.ending = nil, false
	w.pass(6 * time.Second)
}

func (w *world) check() string {
	if int(w.seq) <= w.ringSize { // the ring has everything
		if w.s.state() != Live {
			return fmt.Sprintf("state %v, want live", w.s.state())
		}
		if !maps.Equal(w.applied, w.blocks) {
			return "the blocks differ"
		}
		return ""
	}
	if w.s.state() != Live {
		return ""
	}
	for block, copies := range w.applied {
		if copies > w.blocks[block] {
			return fmt.Sprintf("block %d has fewer copies, and the stream is not stale", block)
		}
	}
	for block, seq := range w.lastOp {
		if seq >= w.s.since && w.lastStore[block] && w.applied[block] == 0 {
			return fmt.Sprintf("block %d: the event %d is within what was applied", block, seq)
		}
	}
	return ""
}
