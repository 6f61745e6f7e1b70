package kvevents

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
)

// itemKind is the kind of an item.
type itemKind uint8

const (
	liveItem         itemKind = iota // a live message
	answerItem                       // a message of a replay
	endItem                          // the end mark of a replay
	unreadableItem                   // a message of a replay that has a wrong shape
	connectedItem                    // a connection to the publisher came up
	disconnectedItem                 // the last one was lost
	grantedItem                      // a replay may begin
	tickItem                         // a deadline may have passed
	updateItem                       // the replay endpoint is another one
	barrierItem                      // a caller of Barrier waits until the items before it are applied
)

// isAnswer reports whether an item comes from a replay's socket.
func (k itemKind) isAnswer() bool { return k == answerItem || k == endItem || k == unreadableItem }

// item is something that a socket, a timer or a caller passes to a stream.
type item struct {
	kind    itemKind
	message message  // of liveItem and answerItem
	ask     uint64   // of answers and grantedItem: the number of the ask
	replay  string   // of updateItem: the endpoint
	barrier *barrier // of barrierItem
}

// itemOverhead is the size that is counted for an item besides its payload, in bytes.
const itemOverhead = 64

func (it *item) size() int { return len(it.message.payload) + itemOverhead }

// subscription drives one stream. It collects what sockets and timers report in an
// inbox; its worker empties the inbox, one turn at a time, into the stream, whose
// output is a delivery.
type subscription struct {
	subs     *Subscribers
	rank     catalog.Rank
	endpoint string
	closing  atomic.Bool // stops a turn early

	inbox

	// turnMu guards what follows. It is held while the stream runs, and is taken
	// before mu.
	turnMu   sync.Mutex
	delivery delivery // the stream's output
	server   string   // the replay server's endpoint, "" for none
	breaks   uint64   // the stream's at its beginning
	*following
}

// following is the part of a subscription that exists from its first turn on, so that
// subscriptions take little memory as long as their publishers are not there.
type following struct {
	stream   stream
	taken    []item      // items taken from the inbox
	rest     []item      // the part of taken that is left for the next turns
	held     int64       // bytes of Config.Replay reserved for what the stream holds
	asks     uint64      // the number of the newest ask for a replay
	slot     *replaySlot // of the replay that runs; nil: none does
	limiter  askLimiter  // of the asks
	deadline *time.Timer // nil if the stream waits for nothing
	ringsAt  time.Time   // the time at which deadline rings
}

// inbox is what lies between a subscription's sockets and its worker.
type inbox struct {
	// mu guards what follows. The Source's callbacks take it, so it is never held
	// while anything is applied.
	mu           sync.Mutex
	items, spare []item // spare is memory for the items after these
	pending      load   // items here or taken, but not handled yet
	answers      load   // the part of pending that came from a replay
	more         bool   // some items are taken but not handled yet
	queued       bool   // in the queue or in a turn, or not open yet
	closed       bool
	live, replay socket
	shown        *StreamStatus // without Pending; nil before the first turn
}

// load is a number of items and their bytes.
type load struct{ items, bytes int }

func (l *load) add(it *item) {
	l.items++
	l.bytes += it.size()
}

func (l *load) subtract(done load) {
	l.items -= done.items
	l.bytes -= done.bytes
}

// socket is a socket of the Source.
type socket struct {
	id      uint64 // if open
	open    bool
	stopped bool // the Source does not read it until Resume
}

// newSubscription returns a subscription without a socket. number is unique among all
// subscriptions.
func newSubscription(s *Subscribers, c StreamConfig, number uint64) *subscription {
	return &subscription{
		subs: s, rank: c.Rank, endpoint: c.Endpoint,
		inbox:  inbox{queued: true}, // until open
		server: c.Replay,
		breaks: number << 32, // no two streams have the same; see Unbroken
		delivery: delivery{
			rank: c.Rank, samples: &s.samples, lag: s.config.Lag, watch: s.config.Watch, sized: s.config.OtherBlockSize,
			applier: c.Applier, shared: c.SharedReplay,
		},
	}
}

// follow creates the stream if there is none yet. turnMu must be held.
func (s *subscription) follow() {
	if s.following != nil {
		return
	}
	c := &s.subs.config
	s.following = &following{stream: stream{
		output: &s.delivery, replays: s, counters: s.subs.counters, replayable: s.server != "", breaks: s.breaks,
		limits: limits{held: c.Held, heldBytes: c.HeldBytes, silence: c.Silence},
	}}
}

// connect opens the stream's socket. Messages from it wait in the inbox until open is called.
func (s *subscription) connect() error {
	id, err := s.subs.source.Subscribe(s.endpoint, s.onOffer, s.onMessage, s.onStatus)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live.id, s.live.open = id, true
	return nil
}

// open lets workers empty the inbox from now on.
func (s *subscription) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queued = false
	s.enqueueLocked()
}

// onMessage puts a live message from the source into the inbox.
func (s *subscription) onMessage(frames [][]byte, buffer *memory.Buffer, received time.Time) bool {
	m, ok := parseLive(frames, received)
	if !ok {
		s.badFrames(frames)
		buffer.Release(s.subs.config.Streams)
		return true
	}
	m.memory, m.size = buffer, buffer.Size()
	return s.put(item{kind: liveItem, message: m})
}

// onOffer applies a live message that has come alone on the goroutine that has read it, which
// saves a copy and waking a worker. It declines if anything waits to be applied before it.
func (s *subscription) onOffer(frames [][]byte, received time.Time) bool {
	m, ok := parseLive(frames, received)
	if !ok {
		s.badFrames(frames)
		return true
	}
	m.borrowed, m.size = true, int64(len(m.payload)+itemOverhead)
	w := s.subs.turns.acquire()
	if w == nil {
		return false
	}
	defer s.subs.turns.release(w)
	it := item{kind: liveItem, message: m}
	s.mu.Lock()
	if s.queued || s.closed {
		defer s.mu.Unlock()
		return s.closed
	}
	s.queued = true
	s.pending.add(&it)
	s.mu.Unlock()

	s.turnMu.Lock()
	defer s.turnMu.Unlock()
	s.follow()
	now := s.beginTurn(w)
	s.handle(&it, now)
	s.settle(nil, now)
	s.endTurn(now)
	var done load
	done.add(&it)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaveTurnLocked(done, load{})
	return true
}

func (s *subscription) onStatus(up bool) {
	if up {
		s.put(item{kind: connectedItem})
	} else {
		s.put(item{kind: disconnectedItem})
	}
}

// put adds an item to the inbox. It returns false if the socket that brought the
// item is not to be read any more for now, because the inbox is full.
func (s *subscription) put(it item) bool {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		s.discard([]item{it})
		return true
	}
	defer s.mu.Unlock()
	s.items = append(s.items, it)
	s.pending.add(&it)
	if it.kind.isAnswer() {
		s.answers.add(&it)
	}
	s.enqueueLocked()
	switch {
	case it.kind == liveItem && s.liveFullLocked(1):
		s.live.stopped = true
	case it.kind.isAnswer() && s.answersFullLocked(1):
		s.replay.stopped = true
	default:
		return true // there is room, or it is not from a socket that could be stopped
	}
	s.subs.counters.Pauses.Add(1)
	return false
}

func (s *subscription) enqueueLocked() {
	if !s.queued && (len(s.items) > 0 || s.more) {
		s.queued = true
		s.subs.turns.enqueue(s)
	}
}

// liveFullLocked reports whether live messages fill at least 1/part of the inbox's bounds.
// The bounds shrink with the number of streams that wait for their turns, because a message
// that is read long before its turn only takes memory.
func (s *subscription) liveFullLocked(part int) bool {
	part *= 1 + int(s.subs.turns.waiting.Load())/inboxCrowd
	items, bytes := s.pending.items-s.answers.items, s.pending.bytes-s.answers.bytes
	return items >= max(s.subs.config.Inbox/part, 1) || bytes >= max(s.subs.config.InboxBytes/part, 1)
}

// inboxCrowd: the divisor of the bounds grows by one for each inboxCrowd waiting streams.
const inboxCrowd = 16

// answersFullLocked reports whether replayed messages fill at least 1/part of the inbox's
// bounds.
func (s *subscription) answersFullLocked(part int) bool {
	return s.answers.items >= s.subs.config.Answers/part || s.answers.bytes >= s.subs.config.AnswerBytes/part
}

// turn handles one turn's share of the inbox.
func (s *subscription) turn(w *Workspace) {
	s.turnMu.Lock()
	defer s.turnMu.Unlock()
	s.follow()
	items := s.take()

	now := s.beginTurn(w)
	var done, answers load
	handled := 0
	for i := range items {
		done.add(&items[i])
		if items[i].kind.isAnswer() {
			answers.add(&items[i])
		}
		if i == handled && !s.closing.Load() {
			s.handle(&items[i], now)
			handled++
		}
	}
	s.settle(items[:handled], now)
	s.discard(items[handled:])
	s.endTurn(now)

	clear(items) // keeps no payload alive
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.more = len(s.rest) > 0; !s.more {
		if cap(s.taken) <= 4 || cap(s.taken) <= 256 && len(s.items) > 0 { // an idle stream keeps little, none a burst's memory
			s.spare = s.taken[:0]
		}
		s.taken, s.rest = nil, nil
	}
	s.leaveTurnLocked(done, answers)
}

// beginTurn and endTurn enclose what the stream does in a turn. turnMu must be held.
func (s *subscription) beginTurn(w *Workspace) (now time.Time) {
	s.delivery.work, s.delivery.applied = w, false
	return time.Now()
}

func (s *subscription) endTurn(now time.Time) {
	if s.delivery.applied { // before the items stop being pending: a Barrier may then find nothing to wait for
		s.subs.count(&s.delivery.work.Tally)
	}
	s.delivery.work = nil
	s.setDeadline(now)
}

// leaveTurnLocked takes handled items off the loads, and queues the stream for its next turn if
// there are more items.
func (s *subscription) leaveTurnLocked(done, answers load) {
	s.pending.subtract(done)
	s.answers.subtract(answers)
	s.updateStatusLocked()
	s.resumeLocked()
	s.queued = false
	s.enqueueLocked()
}

// take returns the items for one turn, within turnItems and turnBytes.
func (s *subscription) take() []item {
	if len(s.rest) == 0 {
		s.mu.Lock()
		s.taken, s.rest = s.items, s.items
		s.items, s.spare = s.spare[:0], nil
		s.mu.Unlock()
	}
	n, bytes := 0, 0
	for n < len(s.rest) && n < turnItems && bytes < turnBytes {
		bytes += s.rest[n].size()
		n++
	}
	items := s.rest[:n]
	s.rest = s.rest[n:]
	return items
}

// settle brings the accounts up to date after items were handled. Messages that the stream
// holds for a replay move to the account of replays; if that has no room, the replay is
// given up.
func (s *subscription) settle(items []item, now time.Time) {
	c := &s.subs.config
	if more := s.stream.holds() - s.held; more > 0 && !c.Replay.Reserve(more) {
		s.stream.holdNothing(now)
		c.Replay.Release(s.held)
		s.held = 0
	} else {
		c.Replay.Release(-min(more, 0))
		s.held += more
	}
	for i := range items {
		s.release(&items[i])
	}
}

// release returns the memory of an item, whose payload must no longer be in use.
func (s *subscription) release(it *item) {
	switch it.kind {
	case liveItem:
		it.message.memory.Release(s.subs.config.Streams)
	case answerItem:
		it.message.memory.Release(s.subs.config.Replay)
	}
}

// resumeLocked reads stopped sockets again when the inbox is half empty.
func (s *subscription) resumeLocked() {
	if s.closed {
		return
	}
	if !s.liveFullLocked(2) {
		s.resumeSocketLocked(&s.live)
	}
	if !s.answersFullLocked(2) {
		s.resumeSocketLocked(&s.replay)
	}
}

func (s *subscription) resumeSocketLocked(socket *socket) {
	if socket.stopped && socket.open {
		socket.stopped = false
		s.subs.source.Resume(socket.id)
	}
}

// handle passes an item to the stream.
func (s *subscription) handle(it *item, now time.Time) {
	switch it.kind {
	case liveItem:
		s.stream.live(it.message, now)
	case answerItem, endItem:
		if it.ask == s.asks {
			applied := s.stream.counts.Applied
			s.stream.answer(it.message, it.kind == endItem, now)
			if it.kind == answerItem && s.stream.counts.Applied > applied {
				s.limiter.progress()
			}
		}
	case unreadableItem:
		if it.ask == s.asks {
			s.stream.unreadable()
		}
	case connectedItem:
		s.stream.connected(now)
	case disconnectedItem:
		s.stream.disconnected(now)
	case grantedItem:
		s.openReplay(it.ask, now)
	case tickItem:
		s.deadline = nil
		s.stream.tick(now)
	case updateItem:
		s.server = it.replay
		s.stream.setReplayable(it.replay != "", now)
	case barrierItem:
		// The caller that waits may read the tally and the status next.
		s.subs.count(&s.delivery.work.Tally)
		s.mu.Lock()
		s.updateStatusLocked()
		s.mu.Unlock()
		it.barrier.arrive()
	}
}

// discard releases what items hold if they will not be handled.
func (s *subscription) discard(items []item) {
	for i := range items {
		s.release(&items[i])
		switch items[i].kind {
		case grantedItem:
			s.subs.replays.release()
		case barrierItem:
			items[i].barrier.arrive()
		}
	}
}

// update takes another configuration with the same endpoint.
func (s *subscription) update(c StreamConfig) {
	s.turnMu.Lock() // the old applier is out of use
	defer s.turnMu.Unlock()
	s.delivery.applier, s.delivery.shared = c.Applier, c.SharedReplay
	switch {
	case c.Replay == s.server:
	case s.following == nil:
		s.server = c.Replay
	default:
		s.put(item{kind: updateItem, replay: c.Replay})
	}
}

// close ends the stream and waits until nothing of it is applied any more.
func (s *subscription) close() {
	s.closing.Store(true)
	s.mu.Lock()
	s.closed = true
	items := s.items
	s.items = nil
	s.mu.Unlock()
	s.subs.source.Close(s.live.id)
	s.discard(items)

	s.turnMu.Lock()
	defer s.turnMu.Unlock()
	if s.following == nil {
		return
	}
	s.discard(s.rest)
	s.taken, s.rest = nil, nil
	s.subs.config.Replay.Release(s.held)
	s.held = 0
	s.stream.held, s.stream.suspect = heldMessages{}, nil // a turn may still come
	s.closeReplay()
	if s.deadline != nil {
		s.deadline.Stop()
	}
}

// join makes b wait for the items that the inbox holds now.
func (s *subscription) join(b *barrier) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.pending.items == 0 {
		return
	}
	b.left.Add(1)
	it := item{kind: barrierItem, barrier: b}
	s.items = append(s.items, it)
	s.pending.add(&it)
	s.enqueueLocked()
}

// setDeadline arms the timer unless it rings by the stream's deadline anyway. It may ring
// too early, because deadlines move on; then it is armed again.
func (s *subscription) setDeadline(now time.Time) {
	at, ok := s.stream.deadline()
	if !ok || s.closing.Load() {
		return
	}
	if s.deadline != nil && (!at.Before(s.ringsAt) || !s.deadline.Stop()) {
		return // it rings before the deadline, or is ringing
	}
	s.ringsAt = at
	s.deadline = time.AfterFunc(at.Sub(now), func() { s.put(item{kind: tickItem}) })
}

// badFrames counts a message of a wrong shape.
func (s *subscription) badFrames(frames [][]byte) {
	s.subs.counters.FrameErrors.Add(1)
	s.subs.samples.put(badFrames, s.rank, func() string {
		text := "message has frames of lengths"
		for i, f := range frames {
			if i == maxFramesShown {
				text += " …"
				break
			}
			text += " " + strconv.Itoa(len(f))
		}
		return text
	})
}

// maxFramesShown bounds the text of a sample. The widest layout has four frames.
const maxFramesShown = 5

func (s *subscription) updateStatusLocked() {
	if s.shown == nil {
		s.shown = new(StreamStatus)
	}
	state := s.stream.state()
	s.observeLocked(state)
	s.shown.State, s.shown.StreamCounts = state, s.stream.counts
	s.shown.Dropped, s.shown.DroppedWhy = s.delivery.dropped, s.delivery.droppedWhy
	s.shown.OtherBlockSize = s.delivery.blockSize
	s.shown.Last, s.shown.HasLast = s.stream.last, s.stream.started
	s.shown.Held = s.stream.held.len()
}

// observeLocked tells of a Transition to a state, if there is one.
func (s *subscription) observeLocked(state StreamState) {
	was, now := &s.shown.StreamCounts, &s.stream.counts
	if s.subs.config.Observe == nil || state == s.shown.State && was.Lost == now.Lost && was.Restarts == now.Restarts &&
		was.Replays == now.Replays && was.BadReplays == now.BadReplays {
		return
	}
	s.subs.config.Observe(Transition{
		Rank: s.rank, Endpoint: s.endpoint, Was: s.shown.State, State: state,
		Lost: now.Lost - was.Lost, Restarts: now.Restarts - was.Restarts, Replays: now.Replays - was.Replays,
		BadReplays: now.BadReplays - was.BadReplays, BadReplay: now.BadReplay,
	})
}

func (s *subscription) status() StreamStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	var status StreamStatus
	if s.shown != nil {
		status = *s.shown
	}
	status.Rank, status.Endpoint, status.Pending = s.rank, s.endpoint, s.pending.items
	return status
}

// barrier is a wait for a number of subscriptions.
type barrier struct {
	left atomic.Int64  // subscriptions that have not arrived
	done chan struct{} // closed when all have
}

func (b *barrier) arrive() {
	if b.left.Add(-1) == 0 {
		close(b.done)
	}
}
