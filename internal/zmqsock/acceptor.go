package zmqsock

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/select-service/select-service/internal/zmtp"
)

// acceptor takes the connections of publishers to a bound socket. There are at most
// Options.Accepted of them, and as many handshakes. When there is no room the
// one that has been the least use goes: of the handshakes the oldest; of the
// connections one without a message, else the one whose last message is the oldest. So
// who opens many connections locks nobody out.
type acceptor struct {
	socket   *socket
	listener net.Listener

	// mu guards what follows.
	mu    sync.Mutex
	conns map[*accepted]struct{}
}

// accepted is a connection to a bound socket.
type accepted struct {
	conn        net.Conn
	since       time.Time
	established bool
	lastMessage time.Time // zero: none
	displaced   bool
}

// listen binds the socket.
func (s *socket) listen() error {
	listener, err := net.Listen("tcp", s.target.address(s.target.host))
	if err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	s.bound = &acceptor{socket: s, listener: listener, conns: make(map[*accepted]struct{})}
	return nil
}

func (a *acceptor) close() { _ = a.listener.Close() } // fails only when it is closed

// run accepts until the socket is closed.
func (a *acceptor) run() {
	defer a.close()
	ctx := a.socket.ctx
	stop := context.AfterFunc(ctx, a.close)
	defer stop()
	for ctx.Err() == nil {
		conn, err := a.listener.Accept()
		if err != nil { // most often out of descriptors
			wait(ctx, acceptRetry)
			continue
		}
		if !a.socket.hub.opt.Endpoints.AllowsAddress(remote(conn), 0) {
			a.socket.hub.refused[zmtp.NotAllowed].Add(1)
			_ = conn.Close()
			continue
		}
		c := &accepted{conn: conn, since: time.Now()}
		a.add(c)
		a.socket.hub.parts.Go(func() { a.serve(c) })
	}
}

// acceptRetry is the wait after a connection could not be accepted.
const acceptRetry = 100 * time.Millisecond

func remote(conn net.Conn) netip.Addr {
	if tcp, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

func (a *acceptor) serve(c *accepted) {
	h := a.socket.hub
	memory := h.partials.open(a.socket.ctx, c.conn, a.socket.opt.account)
	err := a.socket.serve(c.conn, memory, func() { a.establish(c) }, func() { a.received(c) })
	if a.remove(c) {
		err = zmtp.Refuse(zmtp.TooManyConnections, "a newer one took its place")
	}
	h.count(err)
}

func (a *acceptor) add(c *accepted) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.conns[c] = struct{}{}
	a.displaceLocked(false)
}

func (a *acceptor) establish(c *accepted) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c.established, c.since = true, time.Now()
	a.displaceLocked(true)
}

func (a *acceptor) received(c *accepted) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c.lastMessage = time.Now()
}

func (a *acceptor) remove(c *accepted) (displaced bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.conns, c)
	return c.displaced
}

// displaceLocked closes a connection if there are too many of a kind.
func (a *acceptor) displaceLocked(established bool) {
	var worst *accepted
	count := 0
	for c := range a.conns {
		if c.established != established || c.displaced {
			continue
		}
		count++
		if worst == nil || c.lessUse(worst) {
			worst = c
		}
	}
	if count > a.socket.hub.opt.Accepted {
		worst.displaced = true
		_ = worst.conn.Close()
	}
}

// lessUse reports whether c goes before d.
func (c *accepted) lessUse(d *accepted) bool {
	if !c.lastMessage.Equal(d.lastMessage) {
		return c.lastMessage.Before(d.lastMessage)
	}
	return c.since.Before(d.since)
}
