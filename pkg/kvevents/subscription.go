package kvevents

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// itemKind is the kind of an inbox's item.
type itemKind uint8

const (
	liveItem         itemKind = iota // a live message
	answerItem                       // a message of a replay
	endItem                          // the end mark of a replay
	connectedItem                    // a connection to the publisher came up
	disconnectedItem                 // the last one was lost
	grantedItem                      // a replay may begin
	tickItem                         // a deadline may have passed
	updateItem                       // the replay endpoint is another one
	barrierItem                      // a caller of Barrier waits until the items before it are applied
)

// item is what a socket, a timer or a caller has for a stream.
type item struct {
	kind    itemKind
	message message  // of liveItem and answerItem
	ask     uint64   // of answerItem, endItem and grantedItem: the number of the ask
	replay  string   // of updateItem: the endpoint
	barrier *barrier // of barrierItem
}

// itemOverhead is what an item counts in bytes beside its payload.
const itemOverhead = 64

func (it *item) size() int { return len(it.message.payload) + itemOverhead }

// subscription drives one stream. It collects what sockets and timers report in an
// inbox; its worker empties the inbox, one turn at a time, into the stream, whose
// output is a delivery.
type subscription struct {
	subs     *Subscribers
	worker   *applyWorker
	rank     catalog.Rank
	endpoint string
	closing  atomic.Bool // stops a turn early

	inbox

	// turning guards what follows. It is held while the stream runs, and is taken
	// before mu.
	turning  sync.Mutex
	stream   stream
	delivery delivery    // the stream's output
	server   string      // the replay server's endpoint, "" for none
	asks     uint64      // the number of the newest ask for a replay
	deadline *time.Timer // nil if the stream waits for nothing
	ringsAt  time.Time   // the time at which deadline rings
}

// inbox is what lies between a subscription's sockets and its worker.
type inbox struct {
	// mu guards what follows. The Source's callbacks take it, so it is never held
	// while anything is applied.
	mu           sync.Mutex
	items, spare []item // spare is memory for the items after these
	pending      int    // items here or in the present turn
	bytes        int    // the sizes of the pending items
	queued       bool   // in the worker's queue or turn, or not open yet
	closed       bool
	live, replay socket
	shown        StreamStatus // without Pending
}

// socket is a socket of the Source.
type socket struct {
	id      uint64 // if open
	open    bool
	stopped bool // the Source does not read it until Resume
}

func newSubscription(s *Subscribers, w *applyWorker, c StreamConfig) *subscription {
	sub := &subscription{
		subs: s, worker: w, rank: c.Rank, endpoint: c.Endpoint,
		inbox:  inbox{queued: true}, // until open
		server: c.Replay,
		delivery: delivery{
			rank: c.Rank, samples: &s.samples, lag: s.config.Lag,
			applier: c.Applier, shared: c.SharedReplay,
		},
	}
	sub.stream = stream{
		output: &sub.delivery, replays: sub, counters: s.counters, replayable: c.Replay != "",
		limits: limits{held: s.config.Held, heldBytes: s.config.HeldBytes, silence: s.config.Silence},
	}
	sub.shown = StreamStatus{Rank: c.Rank, Endpoint: c.Endpoint}
	return sub
}

// connect opens the stream's socket. What it reports waits in the inbox.
func (s *subscription) connect() error {
	id, err := s.subs.source.Subscribe(s.endpoint, s.onMessage, s.onStatus)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live.id, s.live.open = id, true
	return nil
}

// open has the worker empty the inbox from now on.
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
	s.pending++
	s.bytes += it.size()
	s.enqueueLocked()
	if s.pending < s.subs.config.Inbox && s.bytes < s.subs.config.InboxBytes {
		return true
	}
	switch it.kind {
	case liveItem:
		s.live.stopped = true
	case answerItem, endItem:
		s.replay.stopped = true
	default:
		return true // not from a socket that could be stopped
	}
	s.subs.counters.Pauses.Add(1)
	return false
}

func (s *subscription) enqueueLocked() {
	if !s.queued && len(s.items) > 0 {
		s.queued = true
		s.worker.enqueue(s)
	}
}

// turn handles what is in the inbox, and reports whether anything went to the
// applier.
func (s *subscription) turn(w *Workspace) bool {
	s.turning.Lock()
	defer s.turning.Unlock()
	s.mu.Lock()
	items := s.items
	s.items, s.spare = s.spare[:0], nil
	s.mu.Unlock()

	s.delivery.work, s.delivery.applied = w, false
	now, bytes := time.Now(), 0
	for i := range items {
		bytes += items[i].size()
		if s.closing.Load() {
			s.discard(items[i : i+1])
		} else {
			s.handle(&items[i], now)
		}
	}
	s.delivery.work = nil
	s.setDeadline(now)

	n := len(items)
	clear(items) // keeps no payload alive
	s.mu.Lock()
	defer s.mu.Unlock()
	if cap(items) <= 256 { // a burst's memory is not kept
		s.spare = items[:0]
	}
	s.pending -= n
	s.bytes -= bytes
	s.updateStatusLocked()
	s.resumeLocked()
	s.queued = false
	s.enqueueLocked()
	return s.delivery.applied
}

// resumeLocked reads stopped sockets again when the inbox is half empty.
func (s *subscription) resumeLocked() {
	if s.closed || s.pending > s.subs.config.Inbox/2 || s.bytes > s.subs.config.InboxBytes/2 {
		return
	}
	for _, socket := range []*socket{&s.live, &s.replay} {
		if socket.stopped && socket.open {
			socket.stopped = false
			s.subs.source.Resume(socket.id)
		}
	}
}

// handle passes an item to the stream.
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
		s.openReplay(it.ask, now)
	case tickItem:
		s.deadline = nil
		s.stream.tick(now)
	case updateItem:
		s.server = it.replay
		s.stream.setReplayable(it.replay != "", now)
	case barrierItem:
		// The one who waits may look at the counters and the status next.
		s.subs.count(&s.delivery.work.Tally)
		s.mu.Lock()
		s.updateStatusLocked()
		s.mu.Unlock()
		it.barrier.arrive()
	}
}

// discard releases what items hold that will not be handled.
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
	s.delivery.applier, s.delivery.shared = c.Applier, c.SharedReplay
	if c.Replay != s.server {
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

	s.turning.Lock()
	defer s.turning.Unlock()
	s.closeReplay()
	if s.deadline != nil {
		s.deadline.Stop()
	}
}

// join makes b wait for the items that the inbox holds now.
func (s *subscription) join(b *barrier) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.pending == 0 {
		return
	}
	b.left.Add(1)
	s.items = append(s.items, item{kind: barrierItem, barrier: b})
	s.pending++
	s.bytes += itemOverhead
	s.enqueueLocked()
}

// setDeadline arms the timer if the stream has a deadline before which it does not
// ring. It may ring too early, as deadlines move on: then it is armed again.
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
	s.shown.State, s.shown.StreamCounts = s.stream.state(), s.stream.counts
	s.shown.Last, s.shown.HasLast = s.stream.last, s.stream.started
	s.shown.Held = s.stream.held.len()
}

func (s *subscription) status() StreamStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	shown := s.shown
	shown.Pending = s.pending
	return shown
}

// applyWorker empties the inboxes of its subscriptions in turns. Every subscription
// has one worker for life, so that its messages are applied in order.
type applyWorker struct {
	subs *Subscribers
	wake chan struct{} // of capacity 1
	work Workspace     // only run's goroutine uses it

	// mu guards queue. It is the innermost lock.
	mu    sync.Mutex
	queue []*subscription
}

func newApplyWorker(s *Subscribers) *applyWorker {
	return &applyWorker{subs: s, wake: make(chan struct{}, 1)}
}

// enqueue gives a subscription its next turn.
func (w *applyWorker) enqueue(sub *subscription) {
	w.mu.Lock()
	w.queue = append(w.queue, sub)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default: // it is awake already
	}
}

// take returns the queue and leaves an empty one in its memory's place.
func (w *applyWorker) take(queue []*subscription) []*subscription {
	w.mu.Lock()
	defer w.mu.Unlock()
	queue, w.queue = w.queue, queue
	return queue
}

func (w *applyWorker) run(ctx context.Context) {
	var queue []*subscription
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		}
		for queue = w.take(queue[:0]); len(queue) > 0 && ctx.Err() == nil; queue = w.take(queue[:0]) {
			for _, sub := range queue {
				if sub.turn(&w.work) {
					w.subs.count(&w.work.Tally)
				}
			}
			clear(queue) // no removed stream is kept alive
		}
	}
}

// count moves what a worker has counted into the tally of all.
func (s *Subscribers) count(t *Tally) {
	s.tallying.Lock()
	s.tally.Add(t)
	s.tallying.Unlock()
	*t = Tally{}
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
