package kvevents

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
)

// Errors of Subscribers.
var (
	ErrStreamExists  = errors.New("stream is already subscribed")
	ErrUnknownStream = errors.New("no such stream")
	ErrClosed        = errors.New("subscribers are closed")
)

// Source opens sockets; internal/transport/zmqsock has one. Callbacks must neither block nor
// call the Source; only offer may call it, about sockets other than its own. When a
// message or answer callback returns false, the socket is not read until Resume. The
// slice of frames belongs to the caller. The frames themselves are in memory (nil: in
// memory of their own), which the callee releases: for messages to Config.Streams, for
// answers to Config.Replay.
type Source interface {
	// Subscribe follows every topic of a publisher. A message comes with the time at
	// which it was received. A message that has come alone may be given to offer first.
	// Its frames are valid until offer returns. If offer returns true, it has handled the
	// message, and message is not called; that may take as long as applying a message.
	// status is called for each new connection, before its first message, and when the
	// last one is lost. A malformed endpoint, or one that cannot be bound, is an error.
	Subscribe(endpoint string, offer func(frames [][]byte, received time.Time) bool, message func(frames [][]byte, buffer *memory.Buffer, received time.Time) bool, status func(up bool)) (id uint64, err error)
	// Request sends one message and gives every answer to it to answer.
	Request(endpoint string, request [][]byte, answer func(frames [][]byte, buffer *memory.Buffer) bool) (id uint64, err error)
	// Resume reads a stopped socket again.
	Resume(id uint64)
	// Close closes a socket; no callback of it runs afterwards.
	Close(id uint64)
}

// StreamConfig is one rank's stream.
type StreamConfig struct {
	Rank     catalog.Rank
	Endpoint string // of the publisher
	Replay   string // of its replay server; "" for none
	// SharedReplay: several ranks have this replay endpoint, so answers that
	// state another rank are dropped.
	SharedReplay bool
	Applier      Applier
	// Resume, if not nil, is the checkpoint from which Add resumes the stream. Update
	// ignores it.
	Resume *Resume
}

// Config bounds what Subscribers hold; DefaultConfig has the contract's values.
type Config struct {
	// Workers is the number of goroutines that apply events.
	Workers int
	// Inbox and InboxBytes bound the messages of a stream that wait to be applied.
	// Above them its sockets are not read.
	Inbox, InboxBytes int
	// Answers and AnswerBytes bound replayed messages in the same way. They are far
	// larger, because a ROUTER socket drops what a slow reader does not take.
	Answers, AnswerBytes int
	// Held and HeldBytes bound the live messages of a stream that wait for a replay.
	// Above them the replay is given up.
	Held, HeldBytes int
	// Silence is the time without a replayed message after which a replay is given
	// up.
	Silence time.Duration
	// Replays bounds the replays that run at a time, over all streams, except slow ones
	// (see replaySlots).
	Replays int
	// Streams is the account of live messages in inboxes; Replay is that of replayed
	// messages and of live ones that wait for a replay. One stream may take only a share
	// of each (1/64 and 1/4), whatever the bounds above say. nil has no limit.
	Streams, Replay *memory.Account
	// Lag, if not nil, is called for each live message whose batch could be read and
	// states a Unix time, with the time from then until the message was received: 0 to
	// MaxLag. Several goroutines call it.
	Lag func(time.Duration)
	// Watch, if not nil, is called before a live message is applied, with the rank of its stream
	// and when it was received in Unix nanoseconds. If it returns a function, that is called when
	// the message has been applied, or could not be. Several goroutines call both; they must not
	// block.
	Watch func(stream catalog.Rank, received int64) func(Watched)
	// OtherBlockSize, if not nil, is called when the events of a rank's stream begin to have blocks of
	// another size than the registered one, in tokens: its blocks of the main cache on the device, of
	// which none can be used. Several goroutines call it; it must not block.
	OtherBlockSize func(stream catalog.Rank, registered, size uint32)
	// Observe, if not nil, is called for each Transition of a stream, and in order. Several goroutines
	// call it; it must not block, nor call Subscribers.
	Observe func(Transition)
}

// Transition is a change of a stream: that it was added, another state, or more of the counts that
// say how it fares.
type Transition struct {
	Rank       catalog.Rank
	Endpoint   string
	Added      bool // the stream is new, also at a rank that had another one
	Was, State StreamState
	// How many more there are than before, see StreamCounts.
	Lost, Restarts, Replays, BadReplays uint64
	BadReplay                           ReplayResult
}

// Watched is a live message that has been applied, or could not be.
type Watched struct {
	Sequence uint64
	Bytes    int           // of its payload
	Events   int           // that could be read
	Lag      time.Duration // see Config.Lag; 0: unknown
	Err      error         // nil: it was applied
}

// DefaultConfig returns the limits of decisions K6 and K9, for a number of
// workers.
func DefaultConfig(workers int) Config {
	return Config{
		Workers: workers,
		Inbox:   256, InboxBytes: 256 << 10, // the bytes of one turn
		Answers: 20000, AnswerBytes: 64 << 20,
		Held: 10000, HeldBytes: 64 << 20,
		Silence: 5 * time.Second,
		Replays: 64,
	}
}

// Subscribers follow the event streams of all ranks: they check the numbers, fill
// gaps by replays, and apply each stream in order on one of a few workers. Streams
// may be added before Run.
type Subscribers struct {
	source   Source
	config   Config
	counters *Counters
	turns    turns
	replays  *replaySlots
	samples  samples
	ended    chan struct{} // closed when Run has returned

	// registering serialises Add, Update and Remove. It is taken before mu.
	registering sync.Mutex

	// mu guards what follows, up to tallying. It is never held while a subscription
	// is called.
	mu      sync.Mutex
	streams map[catalog.Rank]*subscription
	closed  bool
	opened  uint64 // streams so far

	// tallying guards tally. It is an innermost lock.
	tallying sync.Mutex
	tally    Tally
}

// NewSubscribers returns Subscribers without a stream. counters may be shared.
func NewSubscribers(source Source, config Config, counters *Counters) *Subscribers {
	config.Workers = max(config.Workers, 1)
	config.InboxBytes = share(config.InboxBytes, config.Streams, inboxShare)
	config.AnswerBytes = share(config.AnswerBytes, config.Replay, replayShare)
	config.HeldBytes = share(config.HeldBytes, config.Replay, replayShare)
	return &Subscribers{
		source: source, config: config, counters: counters,
		turns:   turns{wake: make(chan struct{}, config.Workers)},
		replays: &replaySlots{free: config.Replays},
		ended:   make(chan struct{}),
		streams: make(map[catalog.Rank]*subscription),
	}
}

// inboxShare and replayShare are the divisors of an account's limit that give the share
// of one stream: 1/64 and 1/4.
const (
	inboxShare  = 64
	replayShare = 4
)

// share returns the bound of one stream in bytes.
func share(bound int, account *memory.Account, part int64) int {
	if limit := account.Limit() / part; limit > 0 {
		return int(min(int64(bound), limit))
	}
	return bound
}

// Run applies events until ctx ends; then it closes all streams. When it
// returns no goroutine of it is left and nothing is applied any more.
func (s *Subscribers) Run(ctx context.Context) error {
	defer close(s.ended)
	var workers sync.WaitGroup
	for range s.config.Workers {
		workers.Go(func() { s.apply(ctx) })
	}
	workers.Wait()

	s.registering.Lock()
	defer s.registering.Unlock()
	s.mu.Lock()
	s.closed = true
	streams := slices.Collect(maps.Values(s.streams))
	clear(s.streams)
	s.mu.Unlock()
	for _, sub := range streams {
		sub.close()
	}
	return nil
}

// Add subscribes to a rank's stream. It fails with ErrStreamExists or ErrClosed,
// or because the endpoint cannot be used; a publisher that is not there yet is
// no error.
func (s *Subscribers) Add(c StreamConfig) error {
	s.registering.Lock()
	defer s.registering.Unlock()
	if s.find(c.Rank) != nil {
		return fmt.Errorf("%v: %w", c.Rank, ErrStreamExists)
	}
	sub, err := s.subscribe(c)
	if err != nil {
		return err
	}
	if c.Resume != nil && c.Resume.From.Endpoint == c.Endpoint {
		sub.resume(c.Resume)
	}
	sub.open()
	return nil
}

// Update changes a rank's stream. With the same endpoint the stream continues, and so
// does a running replay unless the replay endpoint changes. Another endpoint or server
// key means another engine: the rank is cleared and followed from scratch. When Update
// returns, the old Applier is no longer used. On an error (ErrUnknownStream, or the new
// endpoint cannot be used) nothing has changed.
func (s *Subscribers) Update(c StreamConfig) error {
	s.registering.Lock()
	defer s.registering.Unlock()
	sub := s.find(c.Rank)
	if sub == nil {
		return fmt.Errorf("%v: %w", c.Rank, ErrUnknownStream)
	}
	if sub.endpoint == c.Endpoint {
		sub.update(c)
		return nil
	}
	next, err := s.subscribe(c) // may be connected already, but is not applied yet
	if err != nil {
		return err
	}
	sub.close()
	c.Applier.Clear()
	next.open()
	return nil
}

// Remove ends a rank's stream; its blocks stay. When it returns nothing of the
// stream is applied any more. It returns false if there is no such stream.
func (s *Subscribers) Remove(rank catalog.Rank) bool {
	s.registering.Lock()
	defer s.registering.Unlock()
	sub := s.find(rank)
	if sub == nil {
		return false
	}
	s.mu.Lock()
	delete(s.streams, rank)
	s.mu.Unlock()
	sub.close()
	return true
}

func (s *Subscribers) find(rank catalog.Rank) *subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams[rank]
}

// subscribe opens a stream in place of the rank's old one, if there is one, but
// does not apply anything yet. registering must be held.
func (s *Subscribers) subscribe(c StreamConfig) (*subscription, error) {
	s.mu.Lock()
	closed := s.closed
	s.opened++
	opened := s.opened
	s.mu.Unlock()
	if closed {
		return nil, ErrClosed
	}
	sub := newSubscription(s, c, opened)
	if err := sub.connect(); err != nil {
		return nil, fmt.Errorf("%v: %w", c.Rank, err)
	}
	s.mu.Lock()
	s.streams[c.Rank] = sub
	s.mu.Unlock()
	if s.config.Observe != nil {
		s.config.Observe(Transition{Rank: c.Rank, Endpoint: c.Endpoint, Added: true})
	}
	return sub, nil
}

// Barrier waits until every message that has been received so far is applied,
// except those that wait for a replay.
func (s *Subscribers) Barrier(ctx context.Context) error {
	b := &barrier{done: make(chan struct{})}
	b.left.Add(1)
	for _, sub := range s.all() {
		sub.join(b)
	}
	b.arrive()
	select {
	case <-b.done:
		return nil
	default:
	}
	select {
	case <-b.done:
		return nil
	case <-s.ended:
		return ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("wait for events to be applied: %w", ctx.Err())
	}
}

// StreamStatus is a stream as it stands.
type StreamStatus struct {
	Rank     catalog.Rank
	Endpoint string
	State    StreamState
	Last     uint64 // number of the last message applied, if HasLast
	HasLast  bool
	Pending  int // messages that wait to be applied
	Held     int // live messages that wait for a replay
	// OtherBlockSize is the block size of the engine's events, in tokens, if it is not the registered
	// one, so that none of its blocks can be used; else 0.
	OtherBlockSize uint32
	StreamCounts
}

// Streams returns the status of every stream, by rank.
func (s *Subscribers) Streams() []StreamStatus {
	subs := s.all()
	status := make([]StreamStatus, len(subs))
	for i, sub := range subs {
		status[i] = sub.status()
	}
	slices.SortFunc(status, func(a, b StreamStatus) int { return a.Rank.Compare(b.Rank) })
	return status
}

// Stream returns the status of a rank's stream; ok is false if it has none.
func (s *Subscribers) Stream(rank catalog.Rank) (status StreamStatus, ok bool) {
	sub := s.find(rank)
	if sub == nil {
		return StreamStatus{}, false
	}
	return sub.status(), true
}

// Counters returns the counters that Subscribers were made with.
func (s *Subscribers) Counters() *Counters { return s.counters }

// Tally returns what all appliers have counted so far.
func (s *Subscribers) Tally() Tally {
	s.tallying.Lock()
	defer s.tallying.Unlock()
	return s.tally
}

func (s *Subscribers) all() []*subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.streams))
}
