package kvevents

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// itemKind is what lies in an inbox.
type itemKind uint8

const (
	liveItem         itemKind = iota
	answerItem                // a message of a replay
	endItem                   // its end mark
	connectedItem             //
	disconnectedItem          //
	grantedItem               // a replay may begin
	tickItem                  // a deadline may have passed
	updateItem                // the replay endpoint is another one
	barrierItem
)

type item struct {
	kind    itemKind
	message message
	ask     uint64 // of the replay that it is about
	replay  string
	barrier *barrier
}

// itemOverhead is what an item counts in bytes beside its payload.
const itemOverhead = 64

// subscription drives one stream: it collects what sockets and timers report in
// an inbox, and a worker takes it from there to the state machine.
type subscription struct {
	subs     *Subscribers
	worker   *applyWorker
	rank     catalog.Rank
	endpoint string
	closing  atomic.Bool // stops a turn early

	// mu guards what follows.
	mu           sync.Mutex
	inbox, spare []item
	pending      int  // items in the inbox or in the turn at hand
	bytes        int  // of them
	queued       bool // the worker has been told, or the stream is not open yet
	closed       bool
	socket       uint64
	hasSocket    bool
	liveStopped  bool // the socket is not read
	replay       replaySocket
	shown        StreamStatus

	// turning is held while the state machine runs. It guards what follows and
	// comes before mu.
	turning  sync.Mutex
	applier  Applier
	address  string // of the replay server
	shared   bool
	stream   stream
	work     *Workspace
	applied  bool   // something in this turn
	mixed    bool   // a batch was of another rank, or no engine's
	asks     uint64 // the number of the newest ask for a replay
	deadline *time.Timer
	ringsAt  time.Time // if there is a deadline
}

// replaySocket is the socket of the running replay.
type replaySocket struct {
	id      uint64
	open    bool
	stopped bool // it is not read
}

func newSubscription(s *Subscribers, w *applyWorker, c StreamConfig) *subscription {
	sub := &subscription{
		subs: s, worker: w, rank: c.Rank, endpoint: c.Endpoint,
		queued:  true, // until open
		applier: c.Applier, address: c.Replay, shared: c.SharedReplay,
	}
	sub.stream = stream{
		fx: sub, n: s.counters, replayable: c.Replay != "",
		limits: limits{held: s.config.Held, heldBytes: s.config.HeldBytes, silence: s.config.Silence},
	}
	sub.shown = StreamStatus{Rank: c.Rank, Endpoint: c.Endpoint}
	return sub
}

// connect opens the stream's socket; what comes waits in the inbox.
func (s *subscription) connect() error {
	id, err := s.subs.source.Subscribe(s.endpoint, s.onMessage, s.onStatus)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.socket, s.hasSocket = id, true
	return nil
}

// open lets the worker at the inbox.
func (s *subscription) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queued = false
	s.enqueueLocked()
}

// onMessage takes a live message from the source.
func (s *subscription) onMessage(frames [][]byte, received time.Time) bool {
	m, ok := parseLive(frames, received)
	if !ok {
		s.badFrames(frames)
		return true
	}
	return s.put(item{kind: liveItem, message: m})
}

func (s *subscription) onStatus(up bool) {
	if up {
		s.put(item{kind: connectedItem})
	} else {
		s.put(item{kind: disconnectedItem})
	}
}

// onAnswer takes an answer of replay number ask.
func (s *subscription) onAnswer(ask uint64, frames [][]byte) bool {
	m, end, ok := parseAnswer(frames)
	switch {
	case !ok:
		s.badFrames(frames)
		return true
	case end:
		return s.put(item{kind: endItem, ask: ask})
	}
	return s.put(item{kind: answerItem, message: m, ask: ask})
}

// put adds to the inbox. It is false when the socket that brought the item is
// not to be read any more.
func (s *subscription) put(it item) bool {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		s.discard([]item{it})
		return true
	}
	defer s.mu.Unlock()
	s.inbox = append(s.inbox, it)
	s.pending++
	s.bytes += it.size()
	s.enqueueLocked()
	if s.pending < s.subs.config.Inbox && s.bytes < s.subs.config.InboxBytes {
		return true
	}
	switch it.kind {
	case liveItem:
		s.liveStopped = true
	case answerItem, endItem:
		s.replay.stopped = true
	default:
		return true // not from a socket that could be stopped
	}
	s.subs.counters.Pauses.Add(1)
	return false
}

func (it *item) size() int { return len(it.message.payload) + itemOverhead }

func (s *subscription) enqueueLocked() {
	if !s.queued && len(s.inbox) > 0 {
		s.queued = true
		s.worker.enqueue(s)
	}
}

// turn applies the inbox. It is true if anything went to the applier.
func (s *subscription) turn(w *Workspace) bool {
	s.turning.Lock()
	defer s.turning.Unlock()
	s.mu.Lock()
	items := s.inbox
	s.inbox, s.spare = s.spare[:0], nil
	s.mu.Unlock()

	s.work, s.applied = w, false
	now, bytes := time.Now(), 0
	for i := range items {
		bytes += items[i].size()
		if s.closing.Load() {
			s.discard(items[i : i+1])
		} else {
			s.handle(&items[i], now)
		}
	}
	s.work = nil
	s.setDeadline(now)

	n := len(items)
	clear(items) // payloads
	s.mu.Lock()
	defer s.mu.Unlock()
	if cap(items) <= 256 { // a burst's memory is not kept
		s.spare = items[:0]
	}
	s.pending -= n
	s.bytes -= bytes
	s.showLocked()
	s.resumeLocked()
	s.queued = false
	s.enqueueLocked()
	return s.applied
}

// resumeLocked reads stopped sockets again when the inbox is half empty.
func (s *subscription) resumeLocked() {
	if s.closed || s.pending > s.subs.config.Inbox/2 || s.bytes > s.subs.config.InboxBytes/2 {
		return
	}
	if s.liveStopped && s.hasSocket {
		s.liveStopped = false
		s.subs.source.Resume(s.socket)
	}
	if s.replay.stopped && s.replay.open {
		s.replay.stopped = false
		s.subs.source.Resume(s.replay.id)
	}
}

func (s *subscription) handle(it *item, now time.Time) {
	switch it.kind {
	case liveItem:
		s.stream.live(it.message, now)
	case answerItem, endItem:
		if it.ask == s.asks {
			s.stream.answer(it.message, it.kind == endItem, now)
		}
	case connectedItem:
		s.stream.connected(now)
	case disconnectedItem:
		s.stream.disconnected(now)
	case grantedItem:
		s.beginReplay(it.ask, now)
	case tickItem:
		s.deadline = nil
		s.stream.tick(now)
	case updateItem:
		s.address = it.replay
		s.stream.setReplayable(it.replay != "", now)
	case barrierItem:
		s.subs.count(&s.work.Tally) // whoever waits may look at the counters next,
		s.mu.Lock()
		s.showLocked() // and at the stream
		s.mu.Unlock()
		it.barrier.arrive()
	}
}

// discard does what must be done for items that are not handled any more.
func (s *subscription) discard(items []item) {
	for i := range items {
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
	s.turning.Lock() // the old applier is out of use
	defer s.turning.Unlock()
	s.applier, s.shared = c.Applier, c.SharedReplay
	if c.Replay != s.address {
		s.put(item{kind: updateItem, replay: c.Replay})
	}
}

// close ends the stream and waits until nothing of it is applied any more.
func (s *subscription) close() {
	s.closing.Store(true)
	s.mu.Lock()
	s.closed = true
	items := s.inbox
	s.inbox = nil
	s.mu.Unlock()
	s.subs.source.Close(s.socket)
	s.discard(items)

	s.turning.Lock()
	defer s.turning.Unlock()
	s.hangUp()
	if s.deadline != nil {
		s.deadline.Stop()
	}
}

// pass lets b wait for what the inbox holds now.
func (s *subscription) pass(b *barrier) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.pending == 0 {
		return
	}
	b.left.Add(1)
	s.inbox = append(s.inbox, item{kind: barrierItem, barrier: b})
	s.pending++
	s.bytes += itemOverhead
	s.enqueueLocked()
}

func (s *subscription) showLocked() {
	s.shown.State, s.shown.StreamCounts = s.stream.state(), s.stream.own
	s.shown.Last, s.shown.HasLast = s.stream.last, s.stream.known
	s.shown.Held = s.stream.held.len()
}

func (s *subscription) status() StreamStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	shown := s.shown
	shown.Pending = s.pending
	return shown
}
