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
	message Message // nil for a socket that only sends
	paused  bool
	ready   bool // on the loop's ready list
	// readFirst is read to its end before a message is delivered while mustReadFirst
	// reports true: a subscriber's opener learns of a connection before its first
	// message.
	readFirst     *socket
	mustReadFirst func() bool
}

// group is what the hub's user sees as one socket.
type group struct {
	// These are nil, and endpoint is empty, while a host name has no address yet.
	main        *socket
	monitor     *socket // reports its connections; a publisher has none
	connections *connections
	endpoint    string  // what main is bound or connected to
	dialer      *dialer // of a socket that is connected to a host name; else nil
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

// subscriberOptions are the socket options of a subscriber.
type subscriberOptions struct {
	topics         []string      // by prefix, as libzmq matches them
	receiveHWM     int           // messages that libzmq keeps; 0: its own 1,000
	maxMessage     int64         // bytes of one frame
	maxReconnect   time.Duration // longest wait between two attempts to connect; 0: 5 s
	connectTimeout time.Duration // longest attempt; 0: as long as the kernel tries
}

var allTopics = []string{""}

func (l *loop) subscribe(id uint64, endpoint string, f subscriberOptions, message Message, status func(up bool)) error {
	return l.connect(id, endpoint, func(endpoint string) (*group, error) {
		return l.openSubscriber(id, endpoint, f, message, status)
	})
}

func (l *loop) openSubscriber(id uint64, endpoint string, f subscriberOptions, message Message, status func(up bool)) (*group, error) {
	z, err := l.newSocket(zmq4.SUB)
	if err != nil {
		return nil, err
	}
	if err := f.apply(z); err != nil {
		return nil, errors.Join(err, z.Close())
	}
	c := &connections{}
	c.status = func(up bool) {
		if !up {
			l.lost(id)
		}
		status(up)
	}
	c.lost = func() { l.after(repairDelay, func() { l.repair(id, c) }) }
	c.refused = func() { l.refused(id, c) }
	g, err := l.openGroup(id, z, endpoint, message, c)
	if err != nil {
		return nil, err
	}
	g.main.readFirst, g.main.mustReadFirst = g.monitor, func() bool { return c.up == 0 }
	return g, nil
}

func (f subscriberOptions) apply(z *zmq4.Socket) error {
	err := z.SetMaxmsgsize(f.maxMessage)
	if f.receiveHWM > 0 {
		err = errors.Join(err, z.SetRcvhwm(f.receiveHWM))
	}
	if f.maxReconnect > 0 {
		err = errors.Join(err, z.SetReconnectIvlMax(f.maxReconnect))
	}
	if f.connectTimeout > 0 {
		err = errors.Join(err, z.SetConnectTimeout(f.connectTimeout))
	}
	for _, topic := range f.topics {
		err = errors.Join(err, z.SetSubscribe(topic))
	}
	if err != nil {
		return fmt.Errorf("subscriber options: %w", err)
	}
	return nil
}

func (l *loop) request(id uint64, endpoint string, request [][]byte, answer Message) error {
	return l.connect(id, endpoint, func(endpoint string) (*group, error) {
		return l.openRequest(id, endpoint, request, answer)
	})
}

func (l *loop) openRequest(id uint64, endpoint string, request [][]byte, answer Message) (*group, error) {
	z, err := l.newSocket(zmq4.DEALER)
	if err != nil {
		return nil, err
	}
	if err := z.SetRcvhwm(l.opt.RequestHWM); err != nil {
		return nil, errors.Join(fmt.Errorf("receive limit: %w", err), z.Close())
	}
	c := &connections{lost: func() {}}
	c.status = func(up bool) {
		if g := l.byID[id]; up && g != nil {
			g.dialer = nil // the request is on its way: no other address may get it too
		}
	}
	c.refused = func() { l.refused(id, c) }
	g, err := l.openGroup(id, z, endpoint, answer, c)
	if err != nil {
		return nil, err
	}
	if _, err := g.main.zmq.SendMessageDontwait(request); err != nil {
		l.closeGroup(g)
		return nil, fmt.Errorf("send request: %w", err)
	}
	return g, nil
}

// openGroup binds or connects z and puts it and its monitor into the epoll set.
// It takes z over: on failure it is closed.
func (l *loop) openGroup(id uint64, z *zmq4.Socket, endpoint string, message Message, c *connections) (*group, error) {
	monitor, err := l.monitor(z, id, c)
	if err != nil {
		return nil, errors.Join(err, z.Close())
	}
	g := &group{monitor: monitor, connections: c, endpoint: endpoint}
	if Bound(endpoint) {
		c.lost = func() {} // a peer that was connected comes back by itself
		err = z.Bind(endpoint)
	} else {
		err = z.Connect(endpoint)
	}
	if err == nil {
		g.main, err = l.add(z, message)
	}
	if err != nil {
		stopMonitor(z)
		l.remove(monitor)
		return nil, errors.Join(err, z.Close())
	}
	return g, nil
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
	// Messages that came before the descriptor was watched may have been signalled,
	// and the signal consumed by the calls above.
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
	l.closeGroup(g)
}

// closeGroup closes what g has open.
func (l *loop) closeGroup(g *group) {
	if g.main != nil {
		if g.monitor != nil {
			stopMonitor(g.main.zmq)
			l.remove(g.monitor)
		}
		l.remove(g.main)
		g.main, g.monitor, g.connections, g.endpoint = nil, nil, nil, ""
	}
}

// stopMonitor must come before the monitor's own socket is closed: an event for
// a monitor that is not read blocks its I/O thread, and with it every socket of
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
