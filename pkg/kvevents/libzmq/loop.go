//go:build cgo

package libzmq

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/select-service/select-service/internal/budget"
)

const (
	maxSockets = 32768 // of libzmq's context; a subscription has three
	// fairness is the number of messages of one socket after which others have their turns.
	fairness        = 64
	messageOverhead = 256 // bytes that a message takes beside its frames
	// repairDelay is how long libzmq may take to try again after a lost connection. It does so
	// at once, or never: after a protocol error, such as a frame that is too large.
	repairDelay = time.Second

	handshakeFailed = zmq4.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq4.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq4.EVENT_HANDSHAKE_FAILED_AUTH
	connectionEvent = zmq4.EVENT_HANDSHAKE_SUCCEEDED | handshakeFailed | zmq4.EVENT_DISCONNECTED | zmq4.EVENT_CONNECT_RETRIED
)

// loop is what Run's goroutine owns.
type loop struct {
	opt     Options
	context *zmq4.Context
	woken   *zmq4.Socket // the other end of Source.bell
	poller  *zmq4.Poller
	sockets map[uint64]*socket
	polled  map[*zmq4.Socket]*socket // by each of their libzmq sockets
	lost    []*socket                // to be repaired, the earliest first
	next    uint64
}

// socket is an open subscription or request.
type socket struct {
	id            uint64
	endpoint      string
	bound         bool
	account       *budget.Account
	message       func(frames [][]byte, memory *budget.Buffer, received time.Time) bool
	status        func(up bool)
	data, monitor *zmq4.Socket // a request has no monitor
	paused        bool
	came, left    bool      // what status is told after the pause: a new connection; the last was lost
	up            int       // connections
	rejected      int       // failed handshakes whose EVENT_DISCONNECTED is still to come
	retried       bool      // libzmq tries again since the last lost connection
	repairAt      time.Time // zero: not in loop.lost
}

func newLoop(opt Options) (l *loop, bell *zmq4.Socket, err error) {
	l = &loop{opt: opt, poller: zmq4.NewPoller(), sockets: make(map[uint64]*socket), polled: make(map[*zmq4.Socket]*socket)}
	if l.context, err = zmq4.NewContext(); err != nil {
		return nil, nil, err //nolint:wrapcheck // Run does
	}
	if err = l.context.SetMaxSockets(maxSockets); err == nil {
		l.woken, err = l.context.NewSocket(zmq4.PAIR)
	}
	if err == nil {
		if bell, err = l.context.NewSocket(zmq4.PAIR); err == nil {
			err = errors.Join(l.woken.Bind("inproc://bell"), bell.SetLinger(0), bell.Connect("inproc://bell"))
		}
	}
	if err != nil {
		return nil, nil, err // what is open ends with the process
	}
	l.poller.Add(l.woken, zmq4.POLLIN)
	return l, bell, nil
}

// turn waits until there is something to do, and does it.
func (l *loop) turn() error {
	patience := time.Duration(-1)
	if len(l.lost) > 0 {
		patience = max(0, time.Until(l.lost[0].repairAt)) + time.Millisecond
	}
	ready, err := l.poller.Poll(patience)
	if err != nil {
		return fmt.Errorf("wait for libzmq: %w", err)
	}
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
	return nil
}

func (l *loop) open(s *socket, request [][]byte) (id uint64, err error) {
	kind, queue := zmq4.SUB, l.opt.Queue
	if request != nil {
		kind, queue = zmq4.DEALER, l.opt.Answers
	}
	if s.data, err = l.context.NewSocket(kind); err != nil {
		return 0, err //nolint:wrapcheck // the caller does
	}
	l.next++
	s.id = l.next
	z := s.data
	err = errors.Join(z.SetLinger(0), z.SetIpv6(true), z.SetMaxmsgsize(l.opt.MaxFrame), z.SetRcvhwm(queue),
		z.SetReconnectIvl(100*time.Millisecond), z.SetReconnectIvlMax(5*time.Second), z.SetConnectTimeout(time.Second),
		z.SetHandshakeIvl(3*time.Second), z.SetHeartbeatIvl(5*time.Second), z.SetHeartbeatTimeout(15*time.Second))
	if request == nil {
		err = errors.Join(err, z.SetSubscribe(""), l.monitor(s))
	}
	if s.bound {
		err = errors.Join(err, z.Bind(s.endpoint))
	} else {
		err = errors.Join(err, z.Connect(s.endpoint))
	}
	if request != nil && err == nil {
		_, err = z.SendMessageDontwait(request)
	}
	if err != nil {
		return 0, errors.Join(err, s.close())
	}
	l.sockets[s.id], l.polled[z] = s, s
	l.poller.Add(z, zmq4.POLLIN)
	if s.monitor != nil {
		l.polled[s.monitor] = s
		l.poller.Add(s.monitor, zmq4.POLLIN)
	}
	return s.id, nil
}

// monitor opens the socket that tells of a subscription's connections. It is always read, and
// has no limit: libzmq's I/O thread would wait for room.
func (l *loop) monitor(s *socket) (err error) {
	address := fmt.Sprintf("inproc://monitor-%d", s.id)
	if err := s.data.Monitor(address, connectionEvent); err != nil {
		return err //nolint:wrapcheck // the caller does
	}
	if s.monitor, err = l.context.NewSocket(zmq4.PAIR); err != nil {
		return err //nolint:wrapcheck // the caller does
	}
	return errors.Join(s.monitor.SetLinger(0), s.monitor.SetRcvhwm(0), s.monitor.Connect(address))
}

func (s *socket) close() error {
	var err error
	if s.monitor != nil {
		err = errors.Join(s.data.Monitor("", 0), s.monitor.Close())
	}
	return errors.Join(err, s.data.Close())
}

func (l *loop) shut(id uint64) error {
	s := l.sockets[id]
	if s == nil {
		return nil
	}
	for _, z := range []*zmq4.Socket{s.data, s.monitor} {
		if z != nil {
			_ = l.poller.RemoveBySocket(z) // it is there
			delete(l.polled, z)
		}
	}
	delete(l.sockets, id)
	l.lost = slices.DeleteFunc(l.lost, func(other *socket) bool { return other == s })
	return s.close()
}

// close closes everything.
func (l *loop) close() error {
	err := l.woken.Close()
	for id := range l.sockets {
		err = errors.Join(err, l.shut(id))
	}
	return errors.Join(err, l.context.Term())
}

// read delivers the messages of a socket.
func (l *loop) read(s *socket) {
	for range fairness {
		frames, err := s.data.RecvMessageBytes(zmq4.DONTWAIT)
		if err != nil {
			return // there is none
		}
		received := time.Now()
		l.watch(s) // a connection comes before its messages
		memory := &budget.Buffer{Reserved: messageOverhead}
		memory.Keep() // the frames have memory of their own
		for _, f := range frames {
			memory.Reserved += int64(len(f))
		}
		if s.account.Reserve(memory.Reserved) && !s.message(frames, memory, received) {
			s.paused = true
			_, _ = l.poller.UpdateBySocket(s.data, 0)
			return
		}
	}
}

func (l *loop) resume(id uint64) {
	s := l.sockets[id]
	if s == nil || !s.paused {
		return
	}
	if s.came {
		s.status(true)
	}
	if s.left {
		s.status(false)
	}
	s.paused, s.came, s.left = false, false, false
	_, _ = l.poller.UpdateBySocket(s.data, zmq4.POLLIN)
}

// watch reads what has become of a subscription's connections.
func (l *loop) watch(s *socket) {
	for s.monitor != nil {
		event, _, _, err := s.monitor.RecvEvent(zmq4.DONTWAIT)
		switch {
		case err != nil:
			return // there is none
		case event == zmq4.EVENT_CONNECT_RETRIED:
			s.retried = true
		case event == zmq4.EVENT_HANDSHAKE_SUCCEEDED:
			s.retried = true
			s.up++
			s.report(true)
		case event == zmq4.EVENT_DISCONNECTED:
			l.disconnected(s)
		default:
			s.rejected++
		}
	}
}

func (l *loop) disconnected(s *socket) {
	s.retried = false
	if !s.bound && s.repairAt.IsZero() {
		s.repairAt = time.Now().Add(repairDelay)
		l.lost = append(l.lost, s)
	}
	if s.rejected > 0 {
		s.rejected--
	} else if s.up = max(0, s.up-1); s.up == 0 {
		s.report(false)
	}
}

// report tells status that a connection has come, or that the last one was lost.
func (s *socket) report(up bool) {
	if s.paused {
		s.came, s.left = s.came || up, !up
		return
	}
	s.status(up)
}

// repair connects the sockets again that libzmq has given up.
func (l *loop) repair() {
	for now := time.Now(); len(l.lost) > 0 && !now.Before(l.lost[0].repairAt); l.lost = l.lost[1:] {
		s := l.lost[0]
		s.repairAt = time.Time{}
		if !s.retried {
			_ = s.data.Disconnect(s.endpoint) // else Connect does nothing
			_ = s.data.Connect(s.endpoint)    // both were successful before
		}
	}
}
