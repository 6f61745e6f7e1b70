package zmqsock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/pebbe/zmq4"
)

const handshakeFailed = zmq4.EVENT_HANDSHAKE_FAILED_NO_DETAIL |
	zmq4.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq4.EVENT_HANDSHAKE_FAILED_AUTH

// repairDelay is how long a lost connection may take to be retried by libzmq
// before the loop does it. libzmq retries within a moment.
const repairDelay = time.Second

// monitor opens the socket that reports z's connections. A connection counts
// from its ZMTP handshake on, not from TCP's: only then can the subscription
// travel.
func (l *loop) monitor(z *zmq4.Socket, id uint64, c *connections) (*socket, error) {
	l.monitors++ // a name of its own for every socket that has the number id
	address := fmt.Sprintf("inproc://monitor-%d-%d", id, l.monitors)
	events := zmq4.EVENT_HANDSHAKE_SUCCEEDED | handshakeFailed | zmq4.EVENT_DISCONNECTED | zmq4.EVENT_CONNECT_RETRIED
	if err := z.Monitor(address, events); err != nil {
		return nil, fmt.Errorf("zmq monitor: %w", err)
	}
	pair, err := l.ctx.NewSocket(zmq4.PAIR)
	if err != nil {
		return nil, fmt.Errorf("zmq monitor: %w", err)
	}
	if err := errors.Join(pair.SetLinger(0), pair.SetRcvhwm(0), pair.Connect(address)); err != nil {
		return nil, errors.Join(fmt.Errorf("zmq monitor: %w", err), pair.Close())
	}
	s, err := l.add(pair, func(frames [][]byte) bool {
		if len(frames) > 0 && len(frames[0]) >= 2 {
			c.handle(zmq4.Event(binary.NativeEndian.Uint16(frames[0])))
		}
		return true
	})
	if err != nil {
		return nil, errors.Join(err, pair.Close())
	}
	return s, nil
}

// connections turns monitor events into ups and downs. A bound socket may have
// several connections at once.
type connections struct {
	status   func(up bool)
	lost     func() // called for each lost connection, whether it counted or not
	refused  func() // called when libzmq is about to connect again
	up       int
	rejected int  // failed handshakes whose disconnect is still to come
	retried  bool // libzmq connects again since the last loss
}

func (c *connections) handle(e zmq4.Event) {
	switch {
	case e == zmq4.EVENT_HANDSHAKE_SUCCEEDED:
		c.retried = true
		c.up++
		c.status(true)
	case e == zmq4.EVENT_CONNECT_RETRIED:
		c.retried = true
		c.refused()
	case e&handshakeFailed != 0:
		c.rejected++
	case e == zmq4.EVENT_DISCONNECTED:
		c.disconnected()
	}
}

func (c *connections) disconnected() {
	c.retried = false
	c.lost()
	switch {
	case c.rejected > 0:
		c.rejected--
	case c.up > 0:
		if c.up--; c.up == 0 {
			c.status(false)
		}
	}
}

// repair is for what libzmq 4.3 leaves undone: after a protocol error (no ZMTP
// at the other end, or a frame above ZMQ_MAXMSGSIZE) it never connects again.
func (l *loop) repair(id uint64, c *connections) {
	g := l.byID[id]
	if g == nil || g.connections != c || c.retried {
		return
	}
	c.retried = true
	// The endpoint has to be given up first: connecting twice to one is ignored.
	// Both calls succeeded on this endpoint before.
	_ = g.main.zmq.Disconnect(g.endpoint)
	_ = g.main.zmq.Connect(g.endpoint)
	l.makeReady(g.main) // both may have consumed the descriptor's signal
}
