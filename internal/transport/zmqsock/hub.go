package zmqsock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/select-service/select-service/internal/transport/zmtp"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
)

// ErrStopped is returned by the methods of a Hub whose Run has ended.
var ErrStopped = errors.New("zmq hub is stopped")

// Options are the limits of a Hub.
type Options struct {
	// MaxMessage bounds a message, in bytes of all its frames. A peer that announces a larger
	// one is disconnected before it is read. A message is also bounded by a quarter of its
	// account, so that no peer fills the account alone.
	MaxMessage int64
	// Accepted bounds the connections of a bound socket in each stage: in the handshake,
	// without a message so far, and with one.
	Accepted int
	// HandshakeTime bounds a handshake.
	HandshakeTime time.Duration
	// Streams and Replay are the accounts of messages received by subscriptions and by
	// requests, Replication that of a mesh, in both directions. nil: no limit.
	Streams, Replay, Replication *memory.Account
	// Subscribers bounds the connections to a mesh's publisher.
	Subscribers int
	// Endpoints is the policy for the endpoints of sockets.
	Endpoints catalog.EndpointPolicy
	// Fault, if not nil, is called when a connection is refused or given up, for each endpoint
	// and reason once a minute at most. It must not block.
	Fault func(endpoint string, err error)
}

// DefaultOptions returns the options of the service, without accounts.
func DefaultOptions() Options {
	return Options{MaxMessage: 64 << 20, Accepted: 64, Subscribers: 256, HandshakeTime: 10 * time.Second}
}

// Message is called with one message. The slice frames is valid until it returns. The frames'
// bytes are in memory, which the callee must release, when it no longer needs them, to the
// account of its kind (Options.Streams, Options.Replay). The callbacks of a socket run one at a
// time, on goroutines of the hub; they must neither block nor call Close. After a Message has
// returned false, the socket is not read until Resume, and TCP holds the sender back.
type Message = func(frames [][]byte, buffer *memory.Buffer, received time.Time) bool

// Offer is called before Message for a small message that has come alone, that is, nothing
// after it has been read from the connection. The frames are valid until it returns. It reports
// whether it has handled the message; if not, Message gets it. It may take its time.
type Offer = func(frames [][]byte, received time.Time) bool

// Sample is called with one message, whose frames are valid until it returns. last reports that no
// other has been read after it. It must not call Close.
type Sample = func(frames [][]byte, received time.Time, last bool)

// callbacks are those of one socket: message, with or without offer, or sample; and status.
type callbacks struct {
	offer   Offer
	message Message
	sample  Sample
	status  func(up bool)
}

// Hub opens sockets and calls back their openers. Its methods are safe for concurrent use.
// Subscribe and Request block until Run has started.
type Hub struct {
	opt      Options
	resolver *resolver
	running  context.Context // written before ready is closed
	ready    chan struct{}   // closed when Run has begun
	ended    chan struct{}   // closed when Run returns
	refused  [zmtp.NumReasons]atomic.Uint64
	parts    sync.WaitGroup // goroutines of sockets
	partials partials
	gatherer gatherer
	faults   faults
	// These are the kinds of the hub's own sockets; a mesh has a kind of its own.
	subscriptions, samples, requests socketKind

	// mu guards the fields below.
	mu      sync.Mutex
	sockets map[uint64]*socket
	next    uint64
	stopped bool
}

// New returns a hub; it opens nothing before Run.
func New(opt Options) *Hub {
	return newHub(opt, lookupVia(new(net.Dialer).DialContext))
}

func newHub(opt Options, lookup lookupFunc) *Hub {
	return &Hub{
		subscriptions: socketKind{name: "SUB", topics: allTopics, account: opt.Streams, maxMessage: opt.MaxMessage, maxReconnect: longestRetry},
		samples:       socketKind{name: "SUB", topics: allTopics, account: opt.Streams, maxMessage: opt.MaxMessage, maxReconnect: longestRetry},
		requests:      socketKind{name: "DEALER", account: opt.Replay, maxMessage: opt.MaxMessage, maxReconnect: longestRetry},
		opt:           opt, resolver: newResolver(lookup),
		ready: make(chan struct{}), ended: make(chan struct{}),
		sockets: make(map[uint64]*socket),
	}
}

// Run owns all sockets until ctx ends. When it returns, every socket is closed and no callback
// runs. It can be called once.
func (h *Hub) Run(ctx context.Context) error {
	defer close(h.ended)
	running, stop := context.WithCancel(ctx)
	defer stop()
	h.running = running
	close(h.ready)
	h.parts.Go(func() { h.resolver.run(running) })
	<-ctx.Done()
	stop()
	for _, s := range h.stop() {
		s.close()
	}
	h.parts.Wait()
	return nil
}

// Subscribe opens a SUB socket for every topic of endpoint, bound if Bound says so, else
// connected. It fails if the endpoint cannot be bound, is malformed or is not allowed. status
// is called like message: with true for every connection whose handshake succeeds, before its
// first message, and with false when the last connection is lost. The socket reconnects by
// itself, and looks host names up in the background. offer may be nil.
func (h *Hub) Subscribe(endpoint string, offer Offer, message Message, status func(up bool)) (id uint64, err error) {
	return h.open(&h.subscriptions, destination{endpoint: endpoint}, callbacks{offer: offer, message: message, status: status})
}

// Sample opens a SUB socket as Subscribe does, to a publisher of whose messages the latest says
// all. Where there are many such sockets, messages that come often gather for gatherTime before they
// are read.
func (h *Hub) Sample(endpoint string, message Sample, status func(up bool)) (id uint64, err error) {
	return h.open(&h.samples, destination{endpoint: endpoint}, callbacks{sample: message, status: status})
}

// Request connects a DEALER socket to endpoint, sends one message of the given frames, and
// calls answer with every message that comes back, until Close. If there is no server, nothing
// comes back, which is no error.
func (h *Hub) Request(endpoint string, request [][]byte, answer func(frames [][]byte, buffer *memory.Buffer) bool) (id uint64, err error) {
	if Bound(endpoint) {
		return 0, fmt.Errorf("request to %s: a wildcard host cannot be connected to", endpoint)
	}
	message := func(frames [][]byte, buffer *memory.Buffer, _ time.Time) bool { return answer(frames, buffer) }
	return h.open(&h.requests, destination{endpoint: endpoint, request: request}, callbacks{message: message, status: func(bool) {}})
}

func (h *Hub) open(kind *socketKind, to destination, call callbacks) (id uint64, err error) {
	select {
	case <-h.ready:
	case <-h.ended:
		return 0, ErrStopped
	}
	s, err := openSocket(h, kind, to, call)
	if err != nil {
		return 0, fmt.Errorf("open a socket to %s: %w", to.endpoint, err)
	}
	if id, err = h.add(s); err != nil {
		s.close()
		return 0, err
	}
	s.start()
	return id, nil
}

func (h *Hub) add(s *socket) (id uint64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopped {
		return 0, ErrStopped
	}
	h.next++
	h.sockets[h.next] = s
	return h.next, nil
}

// Resume continues reading a socket whose Message returned false. It ignores an id that is not
// open. It takes no lock that is held while a callback runs.
func (h *Hub) Resume(id uint64) {
	if s := h.find(id, false); s != nil {
		s.resume()
	}
}

// Close closes a socket. When it returns, no callback of the socket runs or will run. It
// ignores an id that is not open.
func (h *Hub) Close(id uint64) {
	if s := h.find(id, true); s != nil {
		s.close()
	}
}

// find returns an open socket; with remove, the hub forgets it.
func (h *Hub) find(id uint64, remove bool) *socket {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sockets[id]
	if remove {
		delete(h.sockets, id)
	}
	return s
}

// Refused returns how many connections were refused or given up, by the label of the reason.
func (h *Hub) Refused() map[string]uint64 {
	counts := make(map[string]uint64, zmtp.NumReasons)
	for r := range h.refused {
		counts[zmtp.Reason(r).String()] = h.refused[r].Load()
	}
	return counts
}

// stop keeps anything new from starting, and returns the open sockets.
func (h *Hub) stop() []*socket {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopped = true
	return slices.Collect(maps.Values(h.sockets))
}

// start runs a function on a goroutine of the hub, unless the hub has stopped.
func (h *Hub) start(run func()) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopped {
		return ErrStopped
	}
	h.parts.Go(run)
	return nil
}

// count counts the end of a connection if the peer was at fault.
func (h *Hub) count(endpoint string, err error) {
	var fault *zmtp.Error
	if !errors.As(err, &fault) {
		return
	}
	h.refused[fault.Reason].Add(1)
	if h.opt.Fault != nil && h.faults.isNew(endpoint, fault.Reason) {
		h.opt.Fault(endpoint, err)
	}
}

// faults remembers recently reported faults, so that no peer fills the log.
type faults struct {
	// mu guards reported.
	mu       sync.Mutex
	reported map[faultKey]time.Time
}

type faultKey struct {
	endpoint string
	reason   zmtp.Reason
}

const (
	faultEvery = time.Minute
	// maxFaults bounds the remembered faults. While it is reached, new faults are not reported.
	maxFaults = 4096
)

// isNew reports whether a fault has not been reported within a minute, and remembers it.
func (f *faults) isNew(endpoint string, reason zmtp.Reason) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, key := time.Now(), faultKey{endpoint, reason}
	if at, known := f.reported[key]; known && now.Sub(at) < faultEvery {
		return false
	}
	if len(f.reported) >= maxFaults {
		maps.DeleteFunc(f.reported, func(_ faultKey, at time.Time) bool { return now.Sub(at) >= faultEvery })
		if len(f.reported) >= maxFaults {
			return false
		}
	}
	if f.reported == nil {
		f.reported = make(map[faultKey]time.Time)
	}
	f.reported[key] = now
	return true
}
