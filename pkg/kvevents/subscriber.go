package kvevents

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/select-service/select-service/pkg/catalog"
)

// Errors of Subscribers.
var (
	ErrStreamExists  = errors.New("stream is already subscribed")
	ErrUnknownStream = errors.New("no such stream")
	ErrClosed        = errors.New("subscribers are closed")
)

// Source opens sockets. Callbacks must neither block nor call the Source; a
// false answer of a message callback stops the socket from being read until
// Resume. Frames belong to the callee, the slice that holds them does not.
type Source interface {
	// Subscribe follows every topic of a publisher. A message comes with the time
	// at which it was read; messages read in one go may share that. status is told
	// of each new connection, before its first message, and of the loss of the last
	// one. A malformed endpoint, or one that cannot be bound, is an error.
	Subscribe(endpoint string, message func(frames [][]byte, received time.Time) bool, status func(up bool)) (id uint64, err error)
	// Request sends one message and takes everything that is answered.
	Request(endpoint string, request [][]byte, answer func(frames [][]byte) bool) (id uint64, err error)
	// Resume reads a stopped socket again.
	Resume(id uint64)
	// Close closes a socket; no callback of it runs afterwards.
	Close(id uint64)
}

// Applier is where the batches of one stream go. Calls come from one goroutine
// at a time, in the order of the stream.
type Applier interface {
	// Apply decodes and applies one batch; w is memory to do it in, and w.Batch is
	// looked at afterwards. An error means that nothing of the batch could be used;
	// its text is for operators and says nothing of the payload's content.
	Apply(payload []byte, w *Workspace) error
	// Clear removes the blocks of the stream's rank from all tiers.
	Clear()
	// Replayed says that a replay has begun with the engine's very first message:
	// it goes through all that the engine ever sent, unless it breaks off.
	Replayed()
}

// Workspace is memory of one apply worker, reused from batch to batch. What is
// counted in Tally ends up in Subscribers.Tally.
type Workspace struct {
	Decoder Decoder
	Batch   Batch
	Tally   Tally
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
}

// Config bounds what Subscribers hold; DefaultConfig has the contract's values.
type Config struct {
	Workers    int           // goroutines that apply
	Inbox      int           // messages of a stream that wait to be applied, before its sockets are not read any more
	InboxBytes int           // the same in bytes
	Held       int           // live messages of a stream that wait for a replay, before that is given up
	HeldBytes  int           // the same in bytes
	Silence    time.Duration // without a message, after which a replay is given up
	Replays    int           // at a time, over all streams
	// Lag, if any, is told how late each live message was whose batch could be
	// read and states a Unix time: from that time to when it was received, 0 to
	// MaxLag. Several goroutines call it.
	Lag func(time.Duration)
}

// DefaultConfig returns the limits of decisions K6 and K9, for a number of
// workers.
func DefaultConfig(workers int) Config {
	return Config{
		Workers: workers,
		Inbox:   256, InboxBytes: 1 << 20,
		Held: 10000, HeldBytes: 64 << 20,
		Silence: 5 * time.Second,
		Replays: 64,
	}
}

// Subscribers follow the event streams of all ranks: they number-check and
// repair them, and apply each in order on one of a few workers. Streams may be
// added before Run.
type Subscribers struct {
	source   Source
	config   Config
	counters *Counters
	workers  []*applyWorker
	replays  *replaySlots
	samples  samples
	ended    chan struct{}

	// registering serialises Add, Update and Remove. It comes before mu.
	registering sync.Mutex

	// mu guards what follows. It comes before a subscription's locks.
	mu      sync.Mutex
	streams map[catalog.Rank]*subscription
	next    int // worker of the next stream
	closed  bool

	// tallying guards tally.
	tallying sync.Mutex
	tally    Tally
}

// NewSubscribers returns Subscribers without a stream. counters may be shared.
func NewSubscribers(source Source, config Config, counters *Counters) *Subscribers {
	s := &Subscribers{
		source: source, config: config, counters: counters,
		replays: &replaySlots{free: config.Replays},
		ended:   make(chan struct{}),
		streams: make(map[catalog.Rank]*subscription),
	}
	for range max(config.Workers, 1) {
		s.workers = append(s.workers, newApplyWorker(s))
	}
	return s
}

// Run applies events until ctx ends; then it closes all streams. When it
// returns no goroutine of it is left and nothing is applied any more.
func (s *Subscribers) Run(ctx context.Context) error {
	defer close(s.ended)
	var g errgroup.Group
	for _, w := range s.workers {
		g.Go(func() error { w.run(ctx); return nil })
	}
	<-ctx.Done()
	err := g.Wait()

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
	return err
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
	sub.open()
	return nil
}

// Update changes a rank's stream. What stays the same stays: with the same
// endpoint the cursor and, unless the replay endpoint changes, a running replay.
// Another endpoint is another engine: the rank is cleared and followed from
// scratch. When Update returns the old Applier is not used any more. On an error
// (ErrUnknownStream, or the new endpoint cannot be used) everything is as before.
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

// Remove ends a rank's stream; its blocks stay. When it returns nothing of it is
// applied any more. It is false if there is no such stream.
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

// subscribe opens a stream in the place of the rank's old one, if any.
// registering must be held.
func (s *Subscribers) subscribe(c StreamConfig) (*subscription, error) {
	s.mu.Lock()
	closed, worker := s.closed, s.workers[s.next%len(s.workers)]
	s.next++
	s.mu.Unlock()
	if closed {
		return nil, ErrClosed
	}
	sub := newSubscription(s, worker, c)
	if err := sub.connect(); err != nil {
		return nil, fmt.Errorf("%v: %w", c.Rank, err)
	}
	s.mu.Lock()
	s.streams[c.Rank] = sub
	s.mu.Unlock()
	return sub, nil
}

// Barrier waits until every message that has been received so far is applied,
// except those that wait for a replay.
func (s *Subscribers) Barrier(ctx context.Context) error {
	b := &barrier{done: make(chan struct{})}
	b.left.Add(1)
	for _, sub := range s.all() {
		sub.pass(b)
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
	Last     uint64 // number of the last message applied,
	HasLast  bool   // if any
	Pending  int    // messages that wait to be applied
	Held     int    // live messages that wait for a replay
	StreamCounts
}

// Streams returns the status of every stream, by rank.
func (s *Subscribers) Streams() []StreamStatus {
	subs := s.all()
	status := make([]StreamStatus, len(subs))
	for i, sub := range subs {
		status[i] = sub.status()
	}
	slices.SortFunc(status, func(a, b StreamStatus) int {
		return cmp.Or(cmp.Compare(a.Rank.Worker, b.Rank.Worker), cmp.Compare(a.Rank.DP, b.Rank.DP))
	})
	return status
}

// Counters returns the counters that Subscribers were made with.
func (s *Subscribers) Counters() *Counters { return s.counters }

// Tally returns what appliers have counted so far.
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
