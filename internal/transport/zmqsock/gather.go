package zmqsock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/select-service/select-service/internal/transport/zmtp"
)

const (
	// Where there are manySamples connections of Sample or more, messages that come more often than
	// every gatherTime gather for that long: most of what a message costs is to be woken for it.
	manySamples = 1000
	gatherTime  = 500 * time.Millisecond
	// turns is the number of groups of connections that are read in turn in gatherTime.
	turns = 50
)

// gatherer reads the connections whose messages gather, a group in each turn, on one goroutine,
// which runs while there are such connections.
type gatherer struct {
	connections atomic.Int64 // of Sample, whether their messages gather or not
	few         bool         // of a test: messages gather though there are few connections

	// mu guards the fields below.
	mu      sync.Mutex
	groups  [turns][]*sampled
	turn    int // the group that was read last
	size    int // connections in all groups
	running bool
}

// sampled is a connection of Sample.
type sampled struct {
	socket   *socket
	ctx      context.Context //nolint:containedctx // of the connection
	conn     *zmtp.Conn
	memory   *connMemory
	received func()

	at, before time.Time     // when the last messages and those before them came
	back       chan struct{} // of capacity 1: it is its goroutine's again
}

// gather waits while the messages of a connection gather, after one that was received at the given
// time. Its goroutine does not use the connection meanwhile.
func (g *gatherer) gather(x *sampled, received time.Time) error {
	if received != x.at {
		x.before, x.at = x.at, received
	}
	if g.connections.Load() < manySamples && !g.few || x.at.Sub(x.before) > gatherTime || !x.conn.Gather() {
		return nil
	}
	if x.back == nil {
		x.back = make(chan struct{}, 1)
	}
	if err := g.add(x); err != nil {
		return err
	}
	<-x.back
	return nil
}

// add makes a connection one of those that are read in turn, in the one that was last.
func (g *gatherer) add(x *sampled) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.running {
		hub := x.socket.hub
		if err := hub.start(func() { g.run(hub.running) }); err != nil {
			return err
		}
		g.running = true
	}
	g.groups[g.turn] = append(g.groups[g.turn], x)
	g.size++
	return nil
}

// run reads the groups in turn until none has a connection.
func (g *gatherer) run(ctx context.Context) {
	tick := time.NewTicker(gatherTime / turns)
	defer tick.Stop()
	done := ctx.Done()
	for {
		select {
		case <-done:
			done = nil // each connection ends in its turn
			tick.Reset(time.Microsecond)
		case <-tick.C:
		}
		if !g.read() {
			return
		}
	}
}

// read reads the next group, and reports whether there are any connections.
func (g *gatherer) read() bool {
	g.mu.Lock()
	g.turn = (g.turn + 1) % turns
	group := g.groups[g.turn]
	g.groups[g.turn] = nil
	g.mu.Unlock()
	stay := group[:0]
	for _, x := range group {
		if x.read() {
			stay = append(stay, x)
		} else {
			x.back <- struct{}{}
		}
	}
	clear(group[len(stay):])
	g.mu.Lock()
	defer g.mu.Unlock()
	g.size -= len(group) - len(stay)
	g.groups[g.turn] = append(stay, g.groups[g.turn]...)
	g.running = g.size > 0
	return g.running
}

// read delivers what has gathered, and reports whether more may gather. It does not wait for the
// peer: what that would need, like the answer to a heartbeat, is left to the connection's goroutine.
func (s *sampled) read() (again bool) {
	if s.ctx.Err() != nil || !s.conn.Fetch() {
		return false
	}
	s.socket.calling.Lock()
	defer s.socket.calling.Unlock()
	for {
		m, ok := s.conn.Gathered()
		if !ok {
			return s.conn.Gather()
		}
		s.before, s.at = s.at, m.Received
		s.socket.sample(s.ctx, s.conn, m, s.memory)
		s.received()
	}
}
