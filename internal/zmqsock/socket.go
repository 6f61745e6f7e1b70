package zmqsock

import (
	"errors"
	"fmt"
	"time"

	"github.com/pebbe/zmq4"
)

// maxFrames bounds what is kept of one message; the wire knows four frames.
const maxFrames = 8

// socket is one libzmq socket in a loop's epoll set.
type socket struct {
	zmq     *zmq4.Socket // nil once closed
	fd      int
	key     int32
	message Message
	paused  bool
	ready   bool // on the loop's ready list
	// ahead is read before a message is given out, as long as it says so: a
	// subscriber's opener hears of a connection before its first message.
	ahead  *socket
	behind func() bool
}

// group is what the hub's user sees as one socket.
type group struct {
	main    *socket
	monitor *socket // of a subscriber: reports its connections; else nil
	// endpoint is what a subscriber connected to; "" for any other socket.
	endpoint string
}

// receive appends the frames of the next message, or fails with EAGAIN.
func (s *socket) receive(frames [][]byte) ([][]byte, error) {
	for {
		frame, err := s.zmq.RecvBytes(zmq4.DONTWAIT)
		if err != nil {
			return frames, err
		}
		if len(frames) < maxFrames {
			frames = append(frames, frame)
		}
		more, err := s.zmq.GetRcvmore()
		if err != nil || !more {
			return frames, err
		}
	}
}

func (l *loop) subscribe(id uint64, endpoint string, message Message, status func(up bool)) error {
	z, err := l.newSocket(zmq4.SUB)
	if err != nil {
		return err
	}
	if err := z.SetSubscribe(""); err != nil {
		return errors.Join(fmt.Errorf("subscribe to all topics: %w", err), z.Close())
	}
	c := &connections{status: status}
	monitor, err := l.monitor(z, id, c)
	if err != nil {
		return errors.Join(err, z.Close())
	}
	g := &group{monitor: monitor}
	if Bound(endpoint) {
		err = z.Bind(endpoint)
	} else {
		g.endpoint = endpoint
		c.lost = func() { l.checkLater(id, c) }
		err = z.Connect(endpoint)
	}
	if err == nil {
		g.main, err = l.add(z, message)
	}
	if err == nil {
		g.main.ahead, g.main.behind = monitor, func() bool { return c.up == 0 }
	}
	if err != nil {
		stopMonitor(z)
		l.remove(monitor)
		return errors.Join(err, z.Close())
	}
	l.byID[id] = g
	return nil
}

func (l *loop) request(id uint64, endpoint string, request [][]byte, answer Message) error {
	z, err := l.newSocket(zmq4.DEALER)
	if err != nil {
		return err
	}
	err = errors.Join(z.SetRcvhwm(l.opt.RequestHWM), z.Connect(endpoint))
	if err == nil {
		_, err = z.SendMessageDontwait(request)
	}
	if err != nil {
		return errors.Join(err, z.Close())
	}
	s, err := l.add(z, answer)
	if err != nil {
		return errors.Join(err, z.Close())
	}
	l.byID[id] = &group{main: s}
	return nil
}

// newSocket makes a socket with the options that peers use (dynamo-kv-router
// 1.3.1). The receive limit stays libzmq's 1,000 messages: beyond it the sender
// is held back.
func (l *loop) newSocket(t zmq4.Type) (*zmq4.Socket, error) {
	z, err := l.ctx.NewSocket(t)
	if err != nil {
		return nil, fmt.Errorf("zmq socket: %w", err)
	}
	err = errors.Join(
		z.SetLinger(0),
		z.SetReconnectIvl(100*time.Millisecond),
		z.SetReconnectIvlMax(5*time.Second),
		z.SetTcpKeepalive(1),
		z.SetHeartbeatIvl(5*time.Second),
		z.SetHeartbeatTimeout(15*time.Second),
		z.SetHeartbeatTtl(15*time.Second),
		z.SetIpv6(true),
		z.SetMaxmsgsize(l.opt.MaxMessage),
	)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("zmq socket options: %w", err), z.Close())
	}
	return z, nil
}

// add puts a socket into the epoll set. On failure the socket is still the
// caller's.
func (l *loop) add(z *zmq4.Socket, message Message) (*socket, error) {
	fd, err := z.GetFd()
	if err != nil {
		return nil, fmt.Errorf("zmq descriptor: %w", err)
	}
	s := &socket{zmq: z, fd: fd, key: l.newKey(), message: message}
	if err := l.watch(fd, s.key); err != nil {
		return nil, err
	}
	l.byKey[s.key] = s
	// What came before the descriptor was watched may have been signalled and
	// consumed by the calls above.
	l.makeReady(s)
	return s, nil
}

func (l *loop) newKey() int32 {
	for {
		l.lastKey = max(l.lastKey+1, wakeKey+1) // wraps to 1
		if l.byKey[l.lastKey] == nil {
			return l.lastKey
		}
	}
}

func (l *loop) closeSocket(id uint64) {
	g := l.byID[id]
	if g == nil {
		return
	}
	delete(l.byID, id)
	if g.monitor != nil {
		stopMonitor(g.main.zmq)
		l.remove(g.monitor)
	}
	l.remove(g.main)
}

// stopMonitor must come before the monitor's own socket is closed: an event for
// a monitor that nobody reads blocks its I/O thread, and with it every socket of
// that thread, for good.
func stopMonitor(z *zmq4.Socket) {
	_ = z.Monitor("", 0) // fails only for what is no socket
}

// remove closes a socket. zmq_close fails only for what is no socket.
func (l *loop) remove(s *socket) {
	if !s.paused {
		l.unwatch(s.fd)
	}
	delete(l.byKey, s.key)
	_ = s.zmq.Close()
	s.zmq = nil
}
