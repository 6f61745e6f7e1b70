//go:build cgo

package libzmq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/select-service/select-service/internal/budget"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/kvevents"
)

// Errors of a Source.
var (
	ErrStopped   = errors.New("libzmq source is stopped")
	ErrServerKey = errors.New("CURVE is not supported on libzmq")
	ErrName      = errors.New("libzmq looks host names up itself, so that their addresses cannot be checked against the allowed endpoints")
	ErrWildcard  = errors.New("a wildcard host cannot be connected to")
)

var _ kvevents.Source = (*Source)(nil)

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
	Streams, Replay *budget.Account
	// Endpoints is the policy for the endpoints. If it has rules for addresses, host names
	// must be allowed by name.
	Endpoints catalog.EndpointPolicy
}

// DefaultOptions returns the options of the service, without accounts.
func DefaultOptions() Options {
	return Options{MaxFrame: 64 << 20, Queue: 1000, Answers: 20000}
}

// Source opens libzmq sockets. Its methods are safe for concurrent use. Subscribe and Request
// block until Run has started; after it they return ErrStopped.
type Source struct {
	opt   Options
	ended chan struct{} // closed when Run returns

	// mu guards the fields below.
	mu      sync.Mutex
	calls   []func(*loop) // that Run's goroutine makes next
	bell    *zmq4.Socket  // wakes Run's goroutine; nil unless it runs
	stopped bool
}

// New returns a Source; it opens nothing before Run.
func New(opt Options) *Source { return &Source{opt: opt, ended: make(chan struct{})} }

// Run owns all sockets until ctx ends. When it returns, every socket is closed and no callback
// runs. It can be called once. It fails if libzmq cannot start.
func (s *Source) Run(ctx context.Context) error {
	defer close(s.ended)
	l, bell, err := newLoop(s.opt)
	if err != nil {
		s.stop()
		return fmt.Errorf("start libzmq: %w", err)
	}
	s.mu.Lock()
	s.bell = bell
	s.mu.Unlock()
	defer context.AfterFunc(ctx, func() { s.post(func(*loop) {}) })()
	for err == nil && ctx.Err() == nil {
		for _, call := range s.take() {
			call(l)
		}
		err = l.turn()
	}
	s.stop()
	return errors.Join(err, bell.Close(), l.close())
}

// stop refuses calls from now on.
func (s *Source) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped, s.bell, s.calls = true, nil, nil
}

func (s *Source) take() []func(*loop) {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = nil
	return calls
}

// post lets Run's goroutine make a call. It returns false if Run has ended.
func (s *Source) post(call func(*loop)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return false
	}
	if s.calls = append(s.calls, call); len(s.calls) == 1 && s.bell != nil {
		_, _ = s.bell.SendBytes(nil, zmq4.DONTWAIT) // fails only if the goroutine has been woken already
	}
	return true
}

// wait is post, and returns when the call has been made.
func (s *Source) wait(call func(*loop) error) error {
	done := make(chan error, 1)
	if !s.post(func(l *loop) { done <- call(l) }) {
		return ErrStopped
	}
	select {
	case err := <-done:
		return err
	case <-s.ended:
		return ErrStopped
	}
}

// Subscribe implements [kvevents.Source]. It never calls offer: a message waits for its turn in
// the inbox. A serverKey is ErrServerKey.
func (s *Source) Subscribe(endpoint, serverKey string, _ func([][]byte, time.Time) bool, message func(frames [][]byte, memory *budget.Buffer, received time.Time) bool, status func(up bool)) (id uint64, err error) {
	bound, err := s.check(endpoint, serverKey)
	if err == nil {
		one := &socket{endpoint: endpoint, bound: bound, account: s.opt.Streams, message: message, status: status}
		err = s.wait(func(l *loop) (err error) { id, err = l.open(one, nil); return err })
	}
	if err != nil {
		return 0, fmt.Errorf("subscribe to %s: %w", endpoint, err)
	}
	return id, nil
}

// Request implements [kvevents.Source]. If there is no server, nothing comes back, which is no
// error.
func (s *Source) Request(endpoint, serverKey string, request [][]byte, answer func(frames [][]byte, memory *budget.Buffer) bool) (id uint64, err error) {
	bound, err := s.check(endpoint, serverKey)
	if bound {
		err = ErrWildcard
	}
	if err == nil {
		one := &socket{endpoint: endpoint, account: s.opt.Replay}
		one.message = func(frames [][]byte, memory *budget.Buffer, _ time.Time) bool { return answer(frames, memory) }
		err = s.wait(func(l *loop) (err error) { id, err = l.open(one, request); return err })
	}
	if err != nil {
		return 0, fmt.Errorf("request to %s: %w", endpoint, err)
	}
	return id, nil
}

// Resume implements [kvevents.Source]. It does not wait until the socket is read.
func (s *Source) Resume(id uint64) { s.post(func(l *loop) { l.resume(id) }) }

// Close implements [kvevents.Source].
func (s *Source) Close(id uint64) {
	s.mu.Lock()
	running := s.bell != nil
	s.mu.Unlock()
	if running {
		_ = s.wait(func(l *loop) error { return l.shut(id) }) // after ErrStopped it is closed, too
	}
}

// check reports whether a socket is bound to an endpoint, or why it may not be opened.
func (s *Source) check(endpoint, serverKey string) (bound bool, err error) {
	named, err := s.opt.Endpoints.Check(endpoint)
	if err != nil {
		return false, err //nolint:wrapcheck // it names the endpoint
	}
	switch {
	case named:
		return false, ErrName
	case serverKey != "":
		return false, ErrServerKey
	}
	e, err := catalog.ParseEndpoint(endpoint)
	return e.Wildcard, err //nolint:wrapcheck // it names the endpoint
}
