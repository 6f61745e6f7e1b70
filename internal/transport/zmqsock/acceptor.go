package zmqsock

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/select-service/select-service/internal/transport/clientnet"
	"github.com/select-service/select-service/internal/transport/zmtp"
)

// acceptor accepts the connections to a bound socket: at most limit in each stage. When there is
// no room in a stage, a connection of the address with the most of them in that stage is closed:
// of the useful ones the one that less puts first, else the oldest. So a peer locks out no others
// by opening many connections, nor by using them.
type acceptor struct {
	hub      *Hub
	ctx      context.Context // ends with the socket, or the hub
	cancel   context.CancelFunc
	listener net.Listener
	limit    int
	// serve takes over a connection and serves it until it ends.
	serve func(c *accepted) error
	less  func(c, d *accepted) bool // of two useful ones, which goes

	// mu guards the fields below.
	mu    sync.Mutex
	conns map[*accepted]struct{}
}

// stage is how far a connection has come.
type stage uint8

const (
	handshaking stage = iota
	unused            // the handshake is done
	useful            // it has brought a message that was of use
)

// accepted is a connection to a bound socket. The acceptor's mu guards what follows from.
type accepted struct {
	acceptor    *acceptor
	conn        net.Conn
	from        netip.Prefix // the address, of IPv6 its /64 network
	stage       stage
	since       time.Time // when it was accepted, or when its handshake was done
	lastMessage time.Time // time of the last useful message; zero: none
	displaced   bool
}

func newAcceptor(h *Hub, listener net.Listener, limit int, less func(c, d *accepted) bool, serve func(c *accepted) error) *acceptor {
	a := &acceptor{hub: h, listener: listener, limit: limit, less: less, serve: serve, conns: make(map[*accepted]struct{})}
	a.ctx, a.cancel = context.WithCancel(h.running)
	return a
}

// close ends all connections. The port is free when it returns.
func (a *acceptor) close() {
	a.cancel()
	_ = a.listener.Close() // fails only when it is closed
}

// run accepts until the socket is closed.
func (a *acceptor) run() {
	defer a.close()
	stop := context.AfterFunc(a.ctx, a.close)
	defer stop()
	for a.ctx.Err() == nil {
		conn, err := a.listener.Accept()
		if err != nil { // usually the process has no descriptor left
			wait(a.ctx, acceptRetry)
			continue
		}
		if !a.hub.opt.Endpoints.AllowsAddress(remote(conn), 0) {
			a.hub.refused[zmtp.NotAllowed].Add(1)
			_ = conn.Close()
			continue
		}
		c := &accepted{acceptor: a, conn: conn, from: clientnet.Of(remote(conn)), since: time.Now()}
		a.add(c)
		a.hub.parts.Go(c.run)
	}
}

// acceptRetry is the wait after a failed accept.
const acceptRetry = 100 * time.Millisecond

func remote(conn net.Conn) netip.Addr {
	if tcp, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

func (ac *accepted) run() {
	a := ac.acceptor
	stop := context.AfterFunc(a.ctx, func() { _ = ac.conn.Close() })
	defer stop()
	err := a.serve(ac)
	_ = ac.conn.Close()
	if a.remove(ac) {
		err = zmtp.Refuse(zmtp.TooManyConnections, "there are %d others", a.limit)
	}
	a.hub.count(a.listener.Addr().String(), err)
}

func (a *acceptor) add(c *accepted) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.conns[c] = struct{}{}
	a.displaceLocked(handshaking)
}

// establish marks that the handshake is done.
func (ac *accepted) establish() {
	a := ac.acceptor
	a.mu.Lock()
	defer a.mu.Unlock()
	ac.stage, ac.since = unused, time.Now()
	a.displaceLocked(unused)
}

// used records a useful message of the connection.
func (ac *accepted) used() {
	a := ac.acceptor
	a.mu.Lock()
	defer a.mu.Unlock()
	ac.lastMessage = time.Now()
	if ac.stage != useful {
		ac.stage = useful
		a.displaceLocked(useful)
	}
}

func (a *acceptor) remove(c *accepted) (displaced bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.conns, c)
	return c.displaced
}

// displaceLocked closes a connection if there are too many in a stage.
func (a *acceptor) displaceLocked(in stage) {
	count := 0
	for c := range a.conns {
		if c.stage == in && !c.displaced {
			count++
		}
	}
	if count <= a.limit {
		return
	}
	from := make(map[netip.Prefix]int)
	for c := range a.conns {
		if c.stage == in && !c.displaced {
			from[c.from]++
		}
	}
	most := slices.Max(slices.Collect(maps.Values(from)))
	var worst *accepted
	for c := range a.conns {
		if c.stage != in || c.displaced || from[c.from] < most {
			continue
		}
		if worst == nil || (in == useful && a.less(c, worst)) || (in != useful && c.since.Before(worst.since)) {
			worst = c
		}
	}
	worst.displaced = true
	_ = worst.conn.Close()
}

// longestUnused orders connections by their last message, the oldest first.
func longestUnused(c, d *accepted) bool { return c.lastMessage.Before(d.lastMessage) }

// wait waits for a time, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
