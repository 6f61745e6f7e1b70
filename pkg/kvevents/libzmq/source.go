//go:build cgo

package libzmq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
)

// Errors of a Source.
var (
	ErrStopped = errors.New("libzmq source is stopped")
	ErrName    = errors.New("libzmq looks host names up itself: their addresses cannot be checked against the allowed endpoints")
)

// Version returns the version of libzmq that the program runs with, such as 4.3.4.
func Version() string {
	major, minor, patch := zmq4.Version()
	return fmt.Sprintf("%d.%d.%d", major, minor, patch)
}

// Options are the limits of a Source.
type Options struct {
	MaxFrame int64 // bytes of one frame; a publisher that exceeds it is disconnected
	Queue    int   // messages that libzmq keeps of a subscription that is not read
	Answers  int   // the same of a request; a server drops what exceeds it
	// Streams and Replay are the accounts of messages of subscriptions and of requests. A
	// message that an account refuses is dropped. nil: no limit.
	Streams, Replay *memory.Account
	// Endpoints is the policy for endpoints. If it has rules, a host name must be allowed by
	// name.
	Endpoints catalog.EndpointPolicy
}

// DefaultOptions returns the options of the service, without accounts.
func DefaultOptions() Options { return Options{MaxFrame: 64 << 20, Queue: 1000, Answers: 20000} }

// Source is a [kvevents.Source] on libzmq's sockets. Its methods are safe for concurrent use. Subscribe and Request
// block until Run has started; after it they return ErrStopped.
type Source struct {
	opt   Options
	ended chan struct{} // closed when Run returns

	// mu guards the fields below.
	mu      sync.Mutex
	calls   []func()     // that Run's goroutine makes next
	bell    *zmq4.Socket // wakes Run's goroutine; nil unless it runs
	stopped bool

	loop loop // of Run's goroutine
}

// New returns a Source; it opens nothing before Run.
func New(opt Options) *Source {
	return &Source{opt: opt, ended: make(chan struct{}), loop: loop{
		poller: zmq4.NewPoller(), sockets: map[uint64]*socket{}, polled: map[*zmq4.Socket]func(){}, lost: map[*socket]time.Time{},
	}}
}

// Run owns all sockets until ctx ends. When it returns, every socket is closed and no callback
// runs. It can be called once. It fails if libzmq does.
func (s *Source) Run(ctx context.Context) error {
	defer close(s.ended)
	bell, err := s.loop.start()
	s.mu.Lock()
	s.bell = bell
	s.mu.Unlock()
	defer context.AfterFunc(ctx, func() { s.post(func() {}) })()
	for err == nil && ctx.Err() == nil {
		s.mu.Lock()
		calls := s.calls
		s.calls = nil
		s.mu.Unlock()
		for _, call := range calls {
			call()
		}
		err = s.loop.turn()
	}
	s.mu.Lock()
	s.stopped, s.bell, s.calls = true, nil, nil
	s.mu.Unlock()
	if err = errors.Join(err, s.loop.stop(bell)); err != nil {
		return fmt.Errorf("libzmq: %w", err)
	}
	return nil
}

// post lets Run's goroutine make a call, unless Run has ended.
func (s *Source) post(call func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	if s.calls = append(s.calls, call); len(s.calls) == 1 && s.bell != nil {
		_, _ = s.bell.SendBytes(nil, zmq4.DONTWAIT) // there is room: once for each time that calls are taken
	}
}

// wait is post, and returns when the call has been made.
func (s *Source) wait(call func() error) error {
	done := make(chan error, 1)
	s.post(func() { done <- call() })
	select {
	case err := <-done:
		return err
	case <-s.ended:
		return ErrStopped
	}
}

// Subscribe implements [kvevents.Source]. It never calls offer: a message waits for its turn in
// the inbox.
func (s *Source) Subscribe(endpoint string, _ func([][]byte, time.Time) bool, message func(frames [][]byte, buffer *memory.Buffer, received time.Time) bool, status func(up bool)) (id uint64, err error) {
	return s.open(&socket{kind: zmq4.SUB, endpoint: endpoint, queue: s.opt.Queue, account: s.opt.Streams, message: message, status: status})
}

// Request implements [kvevents.Source]. If there is no server, nothing comes back, which is no
// error.
func (s *Source) Request(endpoint string, request [][]byte, answer func(frames [][]byte, buffer *memory.Buffer) bool) (id uint64, err error) {
	message := func(frames [][]byte, buffer *memory.Buffer, _ time.Time) bool { return answer(frames, buffer) }
	return s.open(&socket{kind: zmq4.DEALER, endpoint: endpoint, queue: s.opt.Answers, account: s.opt.Replay, message: message, request: request})
}

func (s *Source) open(one *socket) (id uint64, err error) {
	named, err := s.opt.Endpoints.Check(one.endpoint)
	e, _ := catalog.ParseEndpoint(one.endpoint) // Check has read it
	one.bound, one.maxFrame = e.Wildcard && one.kind == zmq4.SUB, s.opt.MaxFrame
	switch {
	case err != nil:
	case named:
		err = ErrName
	default:
		err = s.wait(func() (err error) { id, err = s.loop.open(one); return err })
	}
	if err != nil {
		return 0, fmt.Errorf("open a socket to %s: %w", one.endpoint, err)
	}
	return id, nil
}

// Resume implements [kvevents.Source]. It does not wait until the socket is read.
func (s *Source) Resume(id uint64) { s.post(func() { s.loop.poll(s.loop.sockets[id], zmq4.POLLIN) }) }

// Close implements [kvevents.Source].
func (s *Source) Close(id uint64) {
	s.mu.Lock()
	running := s.bell != nil
	s.mu.Unlock()
	if running {
		_ = s.wait(func() error { return s.loop.close(s.loop.sockets[id]) }) // it does not fail; after ErrStopped all are closed
	}
}
