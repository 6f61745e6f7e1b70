package zmqsock

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/select-service/select-service/internal/budget"
	"github.com/select-service/select-service/internal/zmtp"
)

const (
	// heartbeat and silence are those of dynamo-kv-router 1.3.1: a PING so often,
	// and after so long without a byte the peer is taken for dead.
	heartbeat = 5 * time.Second
	silence   = 15 * time.Second
	// fairness is the number of messages after which other goroutines get to run.
	fairness = 64
)

var allTopics = []string{""}

// socketOptions are what the kinds of sockets differ in.
type socketOptions struct {
	kind           string   // SUB or DEALER
	topics         []string // of a SUB, by prefix
	request        [][]byte // of a DEALER: what it sends, once
	account        *budget.Account
	maxMessage     int64                 // in bytes
	mechanism      func() zmtp.Mechanism // of a connection
	maxReconnect   time.Duration         // longest wait between two attempts to connect; 0: 5 s
	connectTimeout time.Duration         // longest attempt; 0: 5 s
}

// socket is what a user of the hub has opened: all connections to an endpoint.
type socket struct {
	hub      *Hub
	endpoint string // as it was given
	target   target
	opt      socketOptions
	message  Message
	status   func(up bool)
	ctx      context.Context // ends with the socket, or the hub
	cancel   context.CancelFunc
	resumed  chan struct{} // of capacity 1: Resume was called
	bound    *acceptor     // of a bound socket; else nil

	// calling is held while a callback runs, and while the socket is paused. It
	// guards what follows.
	calling sync.Mutex
	up      int // connections
	closed  bool
}

func newSocket(h *Hub, endpoint string, t target, opt socketOptions, message Message, status func(up bool)) *socket {
	s := &socket{hub: h, endpoint: endpoint, target: t, opt: opt, message: message, status: status, resumed: make(chan struct{}, 1)}
	s.ctx, s.cancel = context.WithCancel(h.running)
	return s
}

// listen binds the socket.
func (s *socket) listen() error {
	listener, err := net.Listen("tcp", s.target.address(s.target.host))
	if err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	s.bound = &acceptor{
		hub: s.hub, ctx: s.ctx, listener: listener, limit: s.hub.opt.Accepted,
		serve: s.accepted, less: longestUnused, conns: make(map[*accepted]struct{}),
	}
	return nil
}

func (s *socket) accepted(c *accepted) error {
	memory := s.hub.partials.open(s.ctx, c.conn, s.opt.account)
	return s.serve(c.conn, memory, c.establish, c.used)
}

// run serves the socket until it is closed.
func (s *socket) run() {
	defer s.cancel()
	if s.bound != nil {
		s.bound.run()
	} else {
		s.connect()
	}
}

func (s *socket) close() {
	s.cancel()
	if s.bound != nil {
		s.bound.close() // the port is free when close returns
	}
	s.calling.Lock()
	defer s.calling.Unlock()
	s.closed = true
}

func (s *socket) resume() {
	select {
	case s.resumed <- struct{}{}:
	default: // it has been told
	}
}

// serve makes the handshake on conn, which it takes over, and gives what comes to
// the socket's callbacks until the connection ends. established is called in
// between, received after each message.
func (s *socket) serve(conn net.Conn, memory *memory, established, received func()) error {
	stop := context.AfterFunc(s.ctx, func() { _ = conn.Close() })
	defer stop()
	defer memory.close()
	c, err := zmtp.Handshake(conn, zmtp.Options{
		SocketType: s.opt.kind, Mechanism: s.opt.mechanism(), MaxMessage: memory.largest(s.opt.maxMessage), Memory: memory,
		HandshakeTime: s.hub.opt.HandshakeTime, Heartbeat: heartbeat, Silence: silence,
	})
	if err != nil {
		return err
	}
	defer c.Close()
	for _, topic := range s.opt.topics {
		if err := c.Subscribe([]byte(topic)); err != nil {
			return err
		}
	}
	if s.opt.request != nil {
		if err := c.Send(s.opt.request...); err != nil {
			return err
		}
	}
	established()
	s.report(true)
	defer s.report(false)
	for n := 1; ; n++ {
		m, err := c.Receive()
		if err != nil {
			return memory.blame(err)
		}
		memory.handOver()
		s.deliver(m)
		received()
		if n%fairness == 0 {
			runtime.Gosched()
		}
	}
}

// deliver calls back with a message, and waits while the socket is paused.
func (s *socket) deliver(m zmtp.Message) {
	s.calling.Lock()
	defer s.calling.Unlock()
	if s.closed || s.ctx.Err() != nil {
		s.opt.account.Release(m.Size)
		return
	}
	if !s.message(m.Frames, m.Size, m.Received) {
		select {
		case <-s.resumed:
		case <-s.ctx.Done():
		}
	}
}

// report tells that a connection came or went.
func (s *socket) report(up bool) {
	s.calling.Lock()
	defer s.calling.Unlock()
	if up {
		s.up++
	} else {
		s.up--
	}
	if !s.closed && s.ctx.Err() == nil && (up || s.up == 0) {
		s.status(up)
	}
}
