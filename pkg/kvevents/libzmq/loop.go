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
	polled  map[*zmq4.Socket]*socket // by each of their libzmq sockets
	lost    []loss                   // that may have to be repaired, the earliest first
	next    uint64
}

// loss is a lost connection of a socket.
type loss struct {
	*socket
	at time.Time
}

// socket is a subscription or a request.
type socket struct {
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
	lostAt        time.Time    // of the last connection; zero once libzmq tries again
}

func (l *loop) start() (bell *zmq4.Socket, err error) {
	if l.context, err = zmq4.NewContext(); err != nil {
		return nil, err //nolint:wrapcheck // Run does
	}
	tooMany := l.context.SetMaxSockets(maxSockets)
	bell, err = l.context.NewSocket(zmq4.PAIR)
	woken, failed := l.context.NewSocket(zmq4.PAIR)
	if err = errors.Join(tooMany, err, failed); err != nil {
		return bell, err
	}
	l.woken, l.poller = woken, zmq4.NewPoller()
	l.poller.Add(woken, zmq4.POLLIN)
	return bell, errors.Join(bell.SetLinger(0), woken.Bind("inproc://bell"), bell.Connect("inproc://bell"))
}

// stop closes everything. What start has not opened is nil.
func (l *loop) stop(bell *zmq4.Socket) (err error) {
	if l.woken == nil {
		return nil // what is open ends with the process
	}
	for _, s := range l.sockets {
		err = errors.Join(err, l.close(s))
	}
	return errors.Join(err, bell.Close(), l.woken.Close(), l.context.Term())
}

// turn waits until there is something to do, and does it.
func (l *loop) turn() error {
	patience := time.Duration(-1)
	if len(l.lost) > 0 {
		patience = max(0, time.Until(l.lost[0].at.Add(repairDelay))) + time.Millisecond
	}
	ready, err := l.poller.Poll(patience)
	for _, r := range ready {
		if s := l.polled[r.Socket]; s == nil {
			_, _ = l.woken.RecvBytes(zmq4.DONTWAIT)
		} else if r.Socket == s.monitor {
			l.watch(s)
		} else {
			l.read(s)
		}
	}
	l.repair()
	return err //nolint:wrapcheck // Run does
}

func (l *loop) open(s *socket) (id uint64, err error) {
	kind := zmq4.SUB
	if s.status == nil {
		kind = zmq4.DEALER
	}
	z, err := l.context.NewSocket(kind)
	if err != nil {
		return 0, err //nolint:wrapcheck // Source.open does
	}
	l.next++
	s.id, s.data = l.next, z
	l.sockets[s.id] = s
	l.poll(z, s)
	err = errors.Join(z.SetLinger(0), z.SetIpv6(true), z.SetMaxmsgsize(s.maxFrame), z.SetRcvhwm(s.queue),
		z.SetReconnectIvl(100*time.Millisecond), z.SetReconnectIvlMax(5*time.Second), z.SetConnectTimeout(time.Second),
		z.SetHandshakeIvl(3*time.Second), z.SetHeartbeatIvl(5*time.Second), z.SetHeartbeatTimeout(15*time.Second))
	if kind == zmq4.SUB {
		err = errors.Join(err, z.SetSubscribe(""), l.monitor(s))
	}
	connect := z.Connect
	if s.bound {
		connect = z.Bind
	}
	if err = errors.Join(err, connect(s.endpoint)); err == nil && kind == zmq4.DEALER {
		_, err = z.SendMessageDontwait(s.request)
	}
	if err != nil {
		return 0, errors.Join(err, l.close(s))
	}
	return s.id, nil
}

// monitor opens the socket that tells of a subscription's connections. It has no limit, for
// which libzmq's I/O thread would wait.
func (l *loop) monitor(s *socket) error {
	pair, err := l.context.NewSocket(zmq4.PAIR)
	if err != nil {
		return err //nolint:wrapcheck // Source.open does
	}
	s.monitor = pair
	l.poll(pair, s)
	address := fmt.Sprintf("inproc://monitor-%d", s.id)
	return errors.Join(pair.SetLinger(0), pair.SetRcvhwm(0), s.data.Monitor(address, connectionEvent), pair.Connect(address))
}

func (l *loop) poll(z *zmq4.Socket, s *socket) {
	l.polled[z] = s
	l.poller.Add(z, zmq4.POLLIN)
}

// close closes a socket; nil is one that is closed.
func (l *loop) close(s *socket) (err error) {
	if s == nil {
		return nil
	}
	delete(l.sockets, s.id)
	if s.monitor != nil {
		err = s.data.Monitor("", 0) // first: libzmq must not write to a monitor that is closed
	}
	for _, z := range []*zmq4.Socket{s.monitor, s.data} {
		if z != nil {
			delete(l.polled, z)
			err = errors.Join(err, l.poller.RemoveBySocket(z), z.Close())
		}
	}
	return err
}

// pause says whether a socket is read, and its connections are watched; nil is one that is closed.
func (l *loop) pause(s *socket, pause bool) {
	events := zmq4.POLLIN
	if pause {
		events = 0
	}
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
			l.pause(s, true)
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
		case event == zmq4.EVENT_CONNECT_RETRIED:
			s.lostAt = time.Time{}
		case event == zmq4.EVENT_HANDSHAKE_SUCCEEDED:
			s.lostAt = time.Time{}
			s.up++
			s.status(true)
		case event&handshakeFailed != 0:
			s.rejected++
		case event == zmq4.EVENT_DISCONNECTED:
			l.disconnected(s)
		}
	}
}

func (l *loop) disconnected(s *socket) {
	if !s.bound {
		s.lostAt = time.Now()
		l.lost = append(l.lost, loss{s, s.lostAt})
	}
	if s.rejected > 0 {
		s.rejected--
	} else if s.up > 0 {
		if s.up--; s.up == 0 {
			s.status(false)
		}
	}
}

// repair connects the sockets again that libzmq has given up.
func (l *loop) repair() {
	for ; len(l.lost) > 0 && time.Since(l.lost[0].at) >= repairDelay; l.lost = l.lost[1:] {
		if s := l.lost[0].socket; s.lostAt.Equal(l.lost[0].at) && l.sockets[s.id] == s {
			s.lostAt = time.Time{}
			_ = s.data.Disconnect(s.endpoint) // else Connect does nothing
			_ = s.data.Connect(s.endpoint)    // both were successful before
		}
	}
}
