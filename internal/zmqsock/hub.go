package zmqsock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pebbe/zmq4"
	"golang.org/x/sync/errgroup"
)

// ErrStopped is returned by the methods of a Hub whose Run has ended.
var ErrStopped = errors.New("zmq hub is stopped")

// Options are the limits of a Hub; DefaultOptions has values that suit a few
// thousand streams.
type Options struct {
	// Loops is the number of goroutines that own sockets. One reads some
	// 800,000 small messages a second.
	Loops int
	// IOThreads is libzmq's: one moves about 1 GB/s.
	IOThreads int
	// MaxSockets bounds the sockets of the context. A subscriber takes three (two
	// belong to its monitor), and so does a running request.
	MaxSockets int
	// MaxMessage bounds one frame, in bytes: a peer that sends a larger one is
	// disconnected before it is read.
	MaxMessage int64
	// RequestHWM bounds the answers, in messages, that libzmq keeps for one
	// request. It is above the ring of a publisher (10,000 in vLLM), because a
	// ROUTER drops what a slow reader does not take.
	RequestHWM int
}

// DefaultOptions returns the options of the service.
func DefaultOptions() Options {
	return Options{Loops: 1, IOThreads: 2, MaxSockets: 32768, MaxMessage: 64 << 20, RequestHWM: 20000}
}

// Message takes one message. The frames belong to the callee, the slice that holds
// them does not; of a message with more than eight frames it gets eight. It runs
// on a loop's goroutine: it must not block, nor call the hub. When it returns false
// the socket is paused until Resume: it is not read, libzmq's queue fills, and then
// the sender is held back.
type Message = func(frames [][]byte) bool

// TimedMessage is a Message with the time at which the message was read. Up to
// fairness messages that were waiting in one socket share the time of the first.
type TimedMessage = func(frames [][]byte, received time.Time) bool

// Hub opens sockets and calls their openers back. Its methods are safe for
// concurrent use, but must not be called from callbacks. Subscribe and Request
// block until Run has started.
type Hub struct {
	opt      Options
	resolver *resolver
	ctx      *zmq4.Context // written before ready is closed
	loops    []*loop       // likewise
	next     atomic.Uint64 // the id of the next socket; it chooses the loop
	ready    chan struct{} // closed when Run has its context and loops
	ended    chan struct{} // closed when Run returns
}

// New returns a hub; sockets and threads come with Run.
func New(opt Options) *Hub {
	return newHub(opt, lookupVia(new(net.Dialer).DialContext))
}

func newHub(opt Options, lookup lookupFunc) *Hub {
	return &Hub{opt: opt, resolver: newResolver(lookup), ready: make(chan struct{}), ended: make(chan struct{})}
}

// Run owns all sockets until ctx ends. When it returns every socket is closed,
// no callback runs any more, and libzmq's threads are gone. It can run once.
func (h *Hub) Run(ctx context.Context) error {
	defer close(h.ended)
	if err := h.open(); err != nil {
		return err
	}
	close(h.ready)
	lookups, stopLookups := context.WithCancel(ctx)
	var resolving sync.WaitGroup
	resolving.Go(func() { h.resolver.run(lookups) })
	var g errgroup.Group
	for _, l := range h.loops {
		g.Go(func() error { return l.run(ctx) })
	}
	err := g.Wait()
	stopLookups()
	resolving.Wait()
	if term := h.ctx.Term(); term != nil {
		err = errors.Join(err, fmt.Errorf("terminate zmq context: %w", term))
	}
	return err
}

func (h *Hub) open() error {
	ctx, err := zmq4.NewContext()
	if err != nil {
		return fmt.Errorf("zmq context: %w", err)
	}
	err = errors.Join(ctx.SetIoThreads(h.opt.IOThreads), ctx.SetMaxSockets(h.opt.MaxSockets))
	if err != nil {
		return errors.Join(fmt.Errorf("zmq context options: %w", err), ctx.Term())
	}
	for range max(h.opt.Loops, 1) {
		l, err := newLoop(ctx, h.opt, h.resolver)
		if err != nil {
			for _, l := range h.loops {
				l.closeDescriptors()
			}
			return errors.Join(err, ctx.Term())
		}
		h.loops = append(h.loops, l)
	}
	h.ctx = ctx
	return nil
}

// Subscribe opens a SUB socket for every topic of endpoint: bound to it if
// Bound says so, else connected to it. An endpoint that cannot be bound or is
// malformed is an error. status is called on the loop like message: true for
// every connection whose handshake succeeds, false when the last one is lost.
// The socket reconnects by itself; a host name is looked up by the hub, in the
// background and again whenever there is no connection.
func (h *Hub) Subscribe(endpoint string, message TimedMessage, status func(up bool)) (id uint64, err error) {
	return h.subscribe(endpoint, subscriberOptions{topics: allTopics, maxMessage: h.opt.MaxMessage}, message, status)
}

func (h *Hub) subscribe(endpoint string, f subscriberOptions, message TimedMessage, status func(up bool)) (id uint64, err error) {
	id, err = h.openBound(func(l *loop, id uint64) error {
		timed := func(frames [][]byte) bool { return message(frames, l.readAt) }
		return l.subscribe(id, endpoint, f, timed, status)
	})
	if err != nil {
		return 0, fmt.Errorf("subscribe to %s: %w", endpoint, err)
	}
	return id, nil
}

// openBound is openOnLoop for a socket that may be bound. It tries again while the
// port is in use, since libzmq gives the port of a closed socket back in the
// background.
func (h *Hub) openBound(open func(l *loop, id uint64) error) (id uint64, err error) {
	id, err = h.openOnLoop(open)
	for range bindRetries {
		if !inUse(err) {
			break
		}
		select {
		case <-h.ended:
			return 0, ErrStopped
		case <-time.After(bindRetryDelay):
		}
		id, err = h.openOnLoop(open)
	}
	return id, err
}

func inUse(err error) bool {
	var errno zmq4.Errno
	return errors.As(err, &errno) && errno == zmq4.Errno(syscall.EADDRINUSE)
}

const (
	bindRetries    = 10
	bindRetryDelay = 20 * time.Millisecond
)

// Request connects a DEALER socket to endpoint, sends one message of the given
// frames, and gives every message that comes back to answer. It lasts until
// Close. That no server is there is no error: nothing comes back.
func (h *Hub) Request(endpoint string, request [][]byte, answer Message) (id uint64, err error) {
	if Bound(endpoint) {
		return 0, fmt.Errorf("request to %s: a wildcard host cannot be connected to", endpoint)
	}
	id, err = h.openOnLoop(func(l *loop, id uint64) error { return l.request(id, endpoint, request, answer) })
	if err != nil {
		return 0, fmt.Errorf("request to %s: %w", endpoint, err)
	}
	return id, nil
}

// Resume reads on from a socket whose Message returned false. An id that is not
// open is ignored.
func (h *Hub) Resume(id uint64) {
	if l := h.loopOf(id); l != nil {
		l.post(func() { l.resume(id) })
	}
}

// Close closes a socket. It returns when it is closed and no callback of it
// will run any more. An id that is not open is ignored.
func (h *Hub) Close(id uint64) {
	if l := h.loopOf(id); l != nil {
		_ = l.do(func() error { l.closeSocket(id); return nil }) // ErrStopped: it is closed
	}
}

// openOnLoop runs open on the next loop, with the id of a new socket there.
func (h *Hub) openOnLoop(open func(l *loop, id uint64) error) (uint64, error) {
	select {
	case <-h.ready:
	case <-h.ended:
		return 0, ErrStopped
	}
	id := h.next.Add(1)
	l := h.loopOf(id)
	return id, l.do(func() error { return open(l, id) })
}

// loopOf returns the loop that owns a socket, or nil before Run.
func (h *Hub) loopOf(id uint64) *loop {
	select {
	case <-h.ready:
		return h.loops[id%uint64(len(h.loops))]
	default:
		return nil
	}
}
