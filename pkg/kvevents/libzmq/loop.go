//go:build cgo

package libzmq

import (
	"errors"
	"fmt"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/select-service/select-service/pkg/memory"
)

const (
	maxSockets      = 32768 // of libzmq's context; a subscription has three
	fairness        = 64    // messages of one socket after which others have their turns
	messageOverhead = 256   // bytes that a message takes beside its frames
	// repairDelay is how long libzmq may take to try again after a lost connection. It does so
	// at once, or never: after a protocol error, such as a frame that is too large.
	repairDelay     = time.Second
	handshakeFailed = zmq4.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq4.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq4.EVENT_HANDSHAKE_FAILED_AUTH
	connectionEvent = zmq4.EVENT_HANDSHAKE_SUCCEEDED | handshakeFailed | zmq4.EVENT_DISCONNECTED | zmq4.EVENT_CONNECT_RETRIED
)

// loop is what Run's goroutine owns.
type loop struct {
	context *zmq4.Context
	woken   *zmq4.Socket // the other end of Source.bell
	poller  *zmq4.Poller
	sockets map[uint64]*socket
	polled  map[*zmq4.Socket]func() // what to do when there is something to read
	lost    map[*socket]time.Time   // since when, and not tried again
	next    uint64
}

// socket is a subscription or a request.
type socket struct {
	kind     zmq4.Type // SUB or DEALER
	id       uint64
	endpoint string
	bound    bool
	queue    int
	maxFrame int64
	account  *memory.Account
	message  func(frames [][]byte, buffer *memory.Buffer, received time.Time) bool
	status   func(up bool) // nil: a request
	request  [][]byte

	data, monitor *zmq4.Socket // a request has no monitor
	up            int          // connections
	rejected      int          // failed handshakes whose EVENT_DISCONNECTED is still to come
}

func (l *loop) start() (bell *zmq4.Socket, err error) {
	if l.context, err = zmq4.NewContext(); err != nil {
		return nil, err //nolint:wrapcheck // Run does
	}
	err = errors.Join(l.context.SetMaxSockets(maxSockets), l.context.SetBlocky(false), l.context.SetIpv6(true))
	bell, none := l.context.NewSocket(zmq4.PAIR)
	woken, failed := l.newSocket(zmq4.PAIR, func() { _, _ = l.woken.RecvBytes(zmq4.DONTWAIT) })
	if err = errors.Join(err, none, failed); err != nil {
		return bell, err
	}
	l.woken = woken
	return bell, errors.Join(woken.Bind("inproc://bell"), bell.Connect("inproc://bell"))
}

// newSocket opens a libzmq socket; read is called when there is something to read.
func (l *loop) newSocket(kind zmq4.Type, read func()) (*zmq4.Socket, error) {
	z, err := l.context.NewSocket(kind)
	if err == nil {
		l.polled[z] = read
		l.poller.Add(z, zmq4.POLLIN)
	}
	return z, err //nolint:wrapcheck // Run and Source.open do
}

// stop closes everything. A socket that start has not opened is nil.
func (l *loop) stop(bell *zmq4.Socket) (err error) {
	if l.woken == nil {
		return nil // what is open ends with the process
	}
	for _, s := range l.sockets {
		err = errors.Join(err, l.close(s))
	}
	return errors.Join(err, bell.Close(), l.closeSocket(l.woken), l.context.Term())
}

// turn waits until there is something to do, and does it.
func (l *loop) turn() error {
	ready, err := l.poller.Poll(repairDelay)
	for _, r := range ready {
		l.polled[r.Socket]()
	}
	for s, at := range l.lost {
		if time.Since(at) >= repairDelay { // libzmq has given it up
			delete(l.lost, s)
			_ = s.data.Disconnect(s.endpoint) // else Connect does nothing
			_ = s.data.Connect(s.endpoint)    // both were successful before
		}
	}
	return err //nolint:wrapcheck // Run does
}

func (l *loop) open(s *socket) (id uint64, err error) {
	z, err := l.newSocket(s.kind, func() { l.read(s) })
	if err != nil {
		return 0, err
	}
	l.next++
	s.id, s.data = l.next, z
	l.sockets[s.id] = s
	err = errors.Join(z.SetMaxmsgsize(s.maxFrame), z.SetRcvhwm(s.queue),
		z.SetReconnectIvl(100*time.Millisecond), z.SetReconnectIvlMax(5*time.Second), z.SetConnectTimeout(time.Second),
		z.SetHandshakeIvl(3*time.Second), z.SetHeartbeatIvl(5*time.Second), z.SetHeartbeatTimeout(15*time.Second))
	if s.kind == zmq4.SUB {
		err = errors.Join(err, z.SetSubscribe(""), l.monitor(s))
	}
	connect := z.Connect
	if s.bound {
		connect = z.Bind
	}
	if err = errors.Join(err, connect(s.endpoint)); err == nil && s.kind == zmq4.DEALER {
		_, err = z.SendMessageDontwait(s.request)
	}
	if err != nil {
		return 0, errors.Join(err, l.close(s))
	}
	return s.id, nil
}

// monitor opens the socket that tells of a subscription's connections. It has no limit, for
// which libzmq's I/O thread would wait.
func (l *loop) monitor(s *socket) (err error) {
	if s.monitor, err = l.newSocket(zmq4.PAIR, func() { l.watch(s) }); err != nil {
		return err
	}
	address := fmt.Sprintf("inproc://monitor-%d", s.id)
	return errors.Join(s.monitor.SetRcvhwm(0), s.data.Monitor(address, connectionEvent), s.monitor.Connect(address))
}

// close closes a socket; nil is one that is closed.
func (l *loop) close(s *socket) (err error) {
	if s == nil {
		return nil
	}
	delete(l.sockets, s.id)
	delete(l.lost, s)
	if s.monitor != nil {
		err = errors.Join(s.data.Monitor("", 0), l.closeSocket(s.monitor)) // in this order: libzmq must not write to a closed one
	}
	return errors.Join(err, l.closeSocket(s.data))
}

func (l *loop) closeSocket(z *zmq4.Socket) error {
	delete(l.polled, z)
	return errors.Join(l.poller.RemoveBySocket(z), z.Close())
}

// poll says for which events a socket is polled, and its monitor; nil is one that is closed.
func (l *loop) poll(s *socket, events zmq4.State) {
	if s != nil {
		_, _ = l.poller.UpdateBySocket(s.data, events)
		_, _ = l.poller.UpdateBySocket(s.monitor, events) // fails for a request
	}
}

// read delivers messages of a socket.
func (l *loop) read(s *socket) {
	for range fairness {
		frames, err := s.data.RecvMessageBytes(zmq4.DONTWAIT)
		if err != nil {
			return // there is none
		}
		received := time.Now()
		l.watch(s) // a connection comes before its messages
		buffer := &memory.Buffer{Reserved: messageOverhead}
		buffer.Keep() // the frames have memory of their own
		for _, f := range frames {
			buffer.Reserved += int64(len(f))
		}
		if s.account.Reserve(buffer.Reserved) && !s.message(frames, buffer, received) {
			l.poll(s, 0) // until Source.Resume
			return
		}
	}
}

// watch reads what has become of a subscription's connections.
func (l *loop) watch(s *socket) {
	for s.monitor != nil {
		event, _, _, err := s.monitor.RecvEvent(zmq4.DONTWAIT)
		switch {
		case err != nil:
			return // there is none
		case event == zmq4.EVENT_HANDSHAKE_SUCCEEDED:
			s.up++
			s.status(true)
		case event&handshakeFailed != 0:
			s.rejected++
		case event == zmq4.EVENT_DISCONNECTED && s.rejected > 0:
			s.rejected--
		case event == zmq4.EVENT_DISCONNECTED && s.up > 0:
			if s.up--; s.up == 0 {
				s.status(false)
			}
		}
		if delete(l.lost, s); event == zmq4.EVENT_DISCONNECTED && !s.bound {
			l.lost[s] = time.Now() // unless libzmq tries again
		}
	}
}
