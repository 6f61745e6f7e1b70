package load

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/pkg/memory"
)

const (
	// heartbeat is how often SGLang sends a report that has not changed.
	heartbeat = time.Second
	// quiet is the time without a message after which a connected stream is stale.
	quiet = 5 * time.Second
	// spacing and burst bound the rate at which a stream's messages are read, far above that of an
	// engine, which sends at most every fifth step: 100 a second, of which 100 may come at once.
	spacing = 10 * time.Millisecond
	burst   = time.Second
	// mostLost bounds what one gap counts for: a number may be anything.
	mostLost = 1 << 20
)

// ErrUnknownStream is the error of Update for a rank without a stream.
var ErrUnknownStream = errors.New("no such load stream")

// Subscriber opens sockets; it is the part of a kvevents.Source that load streams use.
type Subscriber interface {
	// Subscribe is that of kvevents.Source.
	Subscribe(endpoint string, offer func(frames [][]byte, received time.Time) bool, message func(frames [][]byte, buffer *memory.Buffer, received time.Time) bool, status func(up bool)) (id uint64, err error)
	// Close closes a socket; no callback of it runs afterwards.
	Close(id uint64)
}

// Sampler is a Subscriber that can spare messages of which the latest says all.
type Sampler interface {
	// Sample is that of zmqsock.Hub: message gets each message, and whether it is the last of those
	// that have come together.
	Sample(endpoint string, message func(frames [][]byte, received time.Time, last bool), status func(up bool)) (id uint64, err error)
}

// Streams follow the load streams of ranks. A message is read on the goroutine of its connection:
// nothing waits, and an idle stream has no more than its socket. A lost message is not asked for
// again, since the next one says all.
type Streams struct {
	source   Subscriber
	sink     Sink
	account  *memory.Account
	counters *Counters

	// changing serialises Add, Update and Remove. It is taken before mu.
	changing sync.Mutex

	// mu guards what follows.
	mu      sync.Mutex
	streams map[catalog.Rank]*stream
	closed  bool
}

// NewStreams returns Streams without a stream. account is that of the source's messages.
func NewStreams(source Subscriber, sink Sink, account *memory.Account, counters *Counters) *Streams {
	return &Streams{source: source, sink: sink, account: account, counters: counters, streams: make(map[catalog.Rank]*stream)}
}

// stream is the stream of one rank.
type stream struct {
	of       *Streams
	rank     catalog.Rank
	endpoint string
	socket   uint64

	open atomic.Bool // in force; before, messages are passed over

	// The latest report belongs to the callbacks of the socket, which run one at a time.
	latest      Report
	undelivered bool // the sink has not been told the latest
	changed     bool // reports of which the sink is not told differ from those before them

	// mu guards what follows. It is not held while the sink is called.
	mu   sync.Mutex
	up   bool      // connected
	last int64     // number of the last message, -1 for none
	at   time.Time // when it came
	paid time.Time // until when the messages so far use up the rate
}

// Run waits until ctx ends, and then closes all streams.
func (s *Streams) Run(ctx context.Context) error {
	<-ctx.Done()
	s.changing.Lock()
	defer s.changing.Unlock()
	s.mu.Lock()
	s.closed = true
	all := s.streams
	s.streams = nil
	s.mu.Unlock()
	for _, st := range all {
		s.source.Close(st.socket)
	}
	return nil
}

// Add follows the stream of a rank that has none. It fails if the endpoint cannot be used; a
// publisher that is not there yet is no error.
func (s *Streams) Add(rank catalog.Rank, endpoint string) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	st, err := s.subscribe(rank, endpoint)
	if err != nil {
		return err
	}
	s.replace(st)
	return nil
}

// Update follows another endpoint, which means another engine. On an error nothing has changed.
func (s *Streams) Update(rank catalog.Rank, endpoint string) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	was := s.find(rank)
	if was == nil {
		return fmt.Errorf("%v: %w", rank, ErrUnknownStream)
	}
	if was.endpoint == endpoint {
		return nil
	}
	st, err := s.subscribe(rank, endpoint)
	if err != nil {
		return err
	}
	s.end(was)
	s.replace(st)
	return nil
}

// Remove ends the stream of a rank, if it has one. When it returns, the sink gets nothing more
// from it.
func (s *Streams) Remove(rank catalog.Rank) {
	s.changing.Lock()
	defer s.changing.Unlock()
	was := s.find(rank)
	if was == nil {
		return
	}
	s.mu.Lock()
	delete(s.streams, rank)
	s.mu.Unlock()
	s.end(was)
}

// subscribe opens the socket of a stream, whose messages are dropped until it is in force.
func (s *Streams) subscribe(rank catalog.Rank, endpoint string) (*stream, error) {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return nil, kvevents.ErrClosed
	}
	st := &stream{of: s, rank: rank, endpoint: endpoint, last: -1}
	var err error
	if sampler, can := s.source.(Sampler); can {
		st.socket, err = sampler.Sample(endpoint, st.read, st.onStatus)
	} else {
		st.socket, err = s.source.Subscribe(endpoint, nil, st.onMessage, st.onStatus)
	}
	if err != nil {
		return nil, fmt.Errorf("load of %v: %w", rank, err)
	}
	return st, nil
}

// replace puts a stream in force.
func (s *Streams) replace(st *stream) {
	s.mu.Lock()
	s.streams[st.rank] = st
	s.mu.Unlock()
	st.open.Store(true)
}

// end closes the socket of a stream.
func (s *Streams) end(st *stream) {
	s.source.Close(st.socket)
	s.sink.Remove(st.rank, Push)
}

func (s *Streams) find(rank catalog.Rank) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams[rank]
}

// States counts the streams by state: Connecting, Live, or Stale, which is a connection on which
// nothing has come for 5 s.
func (s *Streams) States(now time.Time) (count [kvevents.NumStreamStates]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.streams {
		count[st.state(now)]++
	}
	return count
}

func (st *stream) state(now time.Time) kvevents.StreamState {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case !st.up:
		return kvevents.Connecting
	case now.Sub(st.at) > quiet:
		return kvevents.Stale
	}
	return kvevents.Live
}

func (st *stream) onMessage(frames [][]byte, buffer *memory.Buffer, received time.Time) bool {
	st.read(frames, received, true)
	buffer.Release(st.of.account)
	return true
}

func (st *stream) onStatus(up bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.up = up
	if up {
		st.at = time.Now()
		st.of.counters.connected[1].Add(1)
	} else {
		st.of.counters.connected[0].Add(1)
	}
}

// read reads a message: topic, number, payload. Of the reports that come together the sink is told
// the last, and whether another one was among them.
func (st *stream) read(frames [][]byte, received time.Time, last bool) {
	if !st.open.Load() {
		return
	}
	report, why := st.report(frames, received)
	if why == Good {
		st.of.counters.reports[Push].Add(1)
		st.changed = st.changed || report != st.latest
		st.latest, st.undelivered = report, true
	} else {
		st.of.counters.drop(Push, why)
	}
	if last && st.undelivered {
		report = st.latest
		report.Changed = st.changed
		st.undelivered, st.changed = false, false
		st.of.sink.Report(st.rank, report, received)
	}
}

func (st *stream) report(frames [][]byte, received time.Time) (Report, Reason) {
	if len(frames) != 3 || len(frames[1]) != 8 {
		return Report{}, Malformed
	}
	number := int64(binary.BigEndian.Uint64(frames[1]))
	if number < 0 {
		return Report{}, Malformed
	}
	if why := st.admit(number, received); why != Good {
		return Report{}, why
	}
	return decode(frames[2])
}

// admit returns Good if a message of this number is to be read. Numbers rise by one, from 0 on;
// one that does not rise is of an engine that has started anew.
func (st *stream) admit(number int64, received time.Time) Reason {
	st.mu.Lock()
	defer st.mu.Unlock()
	last := st.last
	st.last, st.at = number, received
	if last >= 0 && number > last {
		st.of.counters.lost.Add(uint64(min(number-last-1, mostLost)))
	}
	if received.Before(st.paid.Add(-burst)) {
		return TooOften
	}
	st.paid = later(st.paid, received).Add(spacing)
	if number <= last {
		return Restarted
	}
	return Good
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
