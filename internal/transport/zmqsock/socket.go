package zmqsock

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/select-service/select-service/internal/transport/zmtp"
	"github.com/select-service/select-service/pkg/memory"
)

const (
	// heartbeat and silence are as in dynamo-kv-router 1.3.1: how often a PING is sent, and the
	// time without a byte after which a peer counts as dead.
	heartbeat = 5 * time.Second
	silence   = 15 * time.Second
	// fairness is the number of messages after which a goroutine yields to others.
	fairness = 64
)

var allTopics = []string{""}

// socketKind has what all sockets for one purpose share. Each kind has dials of its own, so
// kinds do not wait for each other's attempts to connect.
type socketKind struct {
	name         string   // SUB or DEALER
	topics       []string // of a SUB, by prefix
	account      *memory.Account
	maxMessage   int64 // in bytes
	dials        dials
	maxReconnect time.Duration // longest wait between two attempts to connect
}

// destination is where a socket leads, and with which security.
type destination struct {
	endpoint string   // as given by the caller
	request  [][]byte // of a DEALER: the message that it sends once
}

// socket is an open socket of the hub's user, with all its connections.
type socket struct {
	hub     *Hub
	kind    *socketKind
	to      destination
	target  target
	call    callbacks
	resumed chan struct{} // capacity 1; signals a call of Resume
	bound   *acceptor     // of a bound socket, else nil
	dialer  *dialer       // of a connected socket, else nil

	// calling is held while a callback runs, and while the socket is paused. It guards the
	// fields below.
	calling sync.Mutex
	up      int // number of established connections
	closed  bool
}

// openSocket returns a socket, bound if its endpoint says so. It does nothing before start.
func openSocket(h *Hub, kind *socketKind, to destination, call callbacks) (*socket, error) {
	t, err := parseTarget(to.endpoint, h.opt.Endpoints)
	if err != nil {
		return nil, err
	}
	s := &socket{hub: h, kind: kind, to: to, target: t, call: call, resumed: make(chan struct{}, 1)}
	if !t.bound {
		s.dialer = &dialer{socket: s, retry: firstRetry, lookupWait: firstLookup}
		return s, nil
	}
	listener, err := net.Listen("tcp", t.address(t.host))
	if err != nil {
		return nil, fmt.Errorf("bind: %w", err)
	}
	s.bound = newAcceptor(h, listener, h.opt.Accepted, longestUnused, s.accepted)
	return s, nil
}

func (s *socket) accepted(c *accepted) error {
	memory := s.hub.partials.open(c.acceptor.ctx, c.conn, s.kind.account)
	return s.serve(c.acceptor.ctx, c.conn, memory, c.establish, c.used)
}

// start makes the socket accept or make connections until it is closed.
func (s *socket) start() {
	if s.dialer != nil {
		s.dialer.wake()
	} else if s.hub.start(s.bound.run) != nil {
		s.close()
	}
}

func (s *socket) close() {
	if s.dialer != nil {
		s.dialer.close()
	} else {
		s.bound.close() // the port is free when close returns
	}
	s.calling.Lock()
	defer s.calling.Unlock()
	s.closed = true
}

func (s *socket) resume() {
	select {
	case s.resumed <- struct{}{}:
	default: // already signalled
	}
}

// serve takes over conn, makes the handshake, and calls the socket's callbacks with its
// messages until the connection ends. established is called after the handshake, received after
// each message. ctx ends with the socket or the hub.
func (s *socket) serve(ctx context.Context, conn net.Conn, memory *connMemory, established, received func()) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer memory.close()
	handshake := s.hub.opt.HandshakeTime
	if s.dialer != nil {
		handshake = min(handshake, longestHandshake)
	}
	c, err := zmtp.Handshake(conn, zmtp.Options{
		SocketType: s.kind.name, InPlace: s.call.offer != nil || s.call.sample != nil, MaxMessage: memory.largest(s.kind.maxMessage), Memory: memory,
		HandshakeTime: handshake, Heartbeat: heartbeat, Silence: silence,
	})
	if err != nil {
		return err
	}
	defer c.Drop()
	defer c.Close()
	for _, topic := range s.kind.topics {
		if err := c.Subscribe([]byte(topic)); err != nil {
			return err
		}
	}
	if s.to.request != nil {
		if err := c.Send(s.to.request...); err != nil {
			return err
		}
	}
	if s.call.sample != nil {
		s.hub.gatherer.connections.Add(1)
		defer s.hub.gatherer.connections.Add(-1)
	}
	established()
	s.report(ctx, true)
	defer s.report(ctx, false)
	sampled := sampled{socket: s, ctx: ctx, conn: c, memory: memory, received: received}
	for n := 1; ; n++ {
		m, err := c.Receive()
		if err != nil {
			return memory.explain(err)
		}
		if err := s.deliver(ctx, c, m, memory); err != nil {
			return memory.explain(err)
		}
		received()
		if s.call.sample != nil {
			if err := s.hub.gatherer.gather(&sampled, m.Received); err != nil {
				return memory.explain(err)
			}
		}
		if n%fairness == 0 {
			runtime.Gosched()
		}
	}
}

// deliver calls the callback with a message, and waits while the socket is paused. It fails if
// there is no memory for the message.
func (s *socket) deliver(ctx context.Context, c *zmtp.Conn, m zmtp.Message, memory *connMemory) error {
	s.calling.Lock()
	defer s.calling.Unlock()
	if s.call.sample != nil {
		s.sample(ctx, c, m, memory)
		return nil
	}
	if m.Memory == nil {
		if s.closed || ctx.Err() != nil || c.Alone() && s.call.offer(m.Frames, m.Received) {
			return nil
		}
		var err error
		if m, err = c.Keep(m); err != nil {
			return err //nolint:wrapcheck // read by count alone
		}
	}
	memory.handOver()
	if s.closed || ctx.Err() != nil {
		m.Memory.Release(s.kind.account)
		return nil
	}
	if !s.call.message(m.Frames, m.Memory, m.Received) {
		select {
		case <-s.resumed:
		case <-ctx.Done():
		}
	}
	return nil
}

// sample calls the callback of Sample. It needs s.calling.
func (s *socket) sample(ctx context.Context, c *zmtp.Conn, m zmtp.Message, memory *connMemory) {
	if !s.closed && ctx.Err() == nil {
		s.call.sample(m.Frames, m.Received, !c.Followed())
	}
	if m.Memory != nil {
		memory.handOver()
		m.Memory.Release(s.kind.account)
	}
}

// report reports to status that a connection came or went.
func (s *socket) report(ctx context.Context, up bool) {
	s.calling.Lock()
	defer s.calling.Unlock()
	if up {
		s.up++
	} else {
		s.up--
	}
	if !s.closed && ctx.Err() == nil && (up || s.up == 0) {
		s.call.status(up)
	}
}
