package zmqsock

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pebbe/zmq4"
	"golang.org/x/sys/unix"
)

// wakeKey is the epoll key of the loop's own eventfd; sockets count from 1.
const wakeKey = 0

// loop owns publishers: only its goroutine touches them, and all fields but mu's.
type loop struct {
	ctx *zmq4.Context

	poll    *poller
	wake    int                    // eventfd in poll
	byID    map[uint64]*loopSocket // open sockets by the loop's number
	byKey   map[int32]*loopSocket  // the same by epoll key
	lastKey int32

	// mu guards commands and stopped.
	mu       sync.Mutex
	commands []func()
	stopped  bool
}

func newLoop(ctx *zmq4.Context) (*loop, error) {
	poll, err := newPoller()
	if err != nil {
		return nil, err
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("eventfd: %w", err), poll.close())
	}
	l := &loop{
		ctx: ctx, poll: poll, wake: wake,
		byID: make(map[uint64]*loopSocket), byKey: make(map[int32]*loopSocket),
	}
	if err := l.watch(wake, wakeKey); err != nil {
		l.closeDescriptors()
		return nil, err
	}
	return l, nil
}

func (l *loop) closeDescriptors() {
	// Nothing is written to either: closing them cannot lose anything.
	_ = unix.Close(l.wake)
	_ = l.poll.close()
}

// post queues f for the loop's goroutine. It is false when the loop has stopped.
func (l *loop) post(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return false
	}
	l.commands = append(l.commands, f)
	if len(l.commands) == 1 {
		l.wakeUp()
	}
	return true
}

// do runs f on the loop's goroutine and waits for it.
func (l *loop) do(f func() error) error {
	done := make(chan error, 1)
	if !l.post(func() { done <- f() }) {
		return ErrStopped
	}
	return <-done // every command that was taken is run, also by a loop that stops
}

// wakeUp wakes the loop. An eventfd write fails only when it is readable anyhow.
func (l *loop) wakeUp() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(l.wake, one[:])
}

func (l *loop) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { l.post(func() {}) })
	defer stop()
	var failed error
	for ctx.Err() == nil && failed == nil {
		failed = l.turn()
	}
	l.mu.Lock()
	l.stopped = true
	l.mu.Unlock()
	l.runCommands() // do waits for its command
	for id := range l.byID {
		l.closeSocket(id)
	}
	l.closeDescriptors()
	return failed
}

// turn waits for something to do and does it.
func (l *loop) turn() error {
	events, err := l.poll.wait(forever)
	if err != nil {
		return err
	}
	for _, e := range events {
		if e.Fd == wakeKey {
			var count [8]byte
			_, _ = unix.Read(l.wake, count[:]) // resets it
			l.runCommands()
		} else if s := l.byKey[e.Fd]; s != nil { // nil: closed by an earlier event of this turn
			// Asking makes libzmq take in who came and went.
			_, _ = s.zmq.GetEvents() // fails only for what is no socket
		}
	}
	return nil
}

func (l *loop) runCommands() {
	l.mu.Lock()
	commands := l.commands
	l.commands = nil
	l.mu.Unlock()
	for _, f := range commands {
		f()
	}
}

func (l *loop) watch(fd int, key int32) error {
	if err := unix.EpollCtl(l.poll.fd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: key}); err != nil {
		return fmt.Errorf("epoll add: %w", err)
	}
	return nil
}

// unwatch cannot fail for a descriptor that is in the set.
func (l *loop) unwatch(fd int) {
	_ = unix.EpollCtl(l.poll.fd, unix.EPOLL_CTL_DEL, fd, nil)
}

// loopSocket is a publisher in a loop's epoll set.
type loopSocket struct {
	zmq *zmq4.Socket // nil once closed
	fd  int
	key int32
}

// newSocket makes a socket with the options that peers use (dynamo-kv-router
// 1.3.1).
func (l *loop) newSocket(t zmq4.Type) (*zmq4.Socket, error) {
	z, err := l.ctx.NewSocket(t)
	if err != nil {
		return nil, fmt.Errorf("zmq socket: %w", err)
	}
	err = errors.Join(
		z.SetLinger(0),
		z.SetTcpKeepalive(1),
		z.SetHeartbeatIvl(heartbeat),
		z.SetHeartbeatTimeout(silence),
		z.SetHeartbeatTtl(silence),
		z.SetIpv6(true),
	)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("zmq socket options: %w", err), z.Close())
	}
	return z, nil
}

// add puts a socket into the epoll set. On failure the socket is still the
// caller's.
func (l *loop) add(z *zmq4.Socket) (*loopSocket, error) {
	fd, err := z.GetFd()
	if err != nil {
		return nil, fmt.Errorf("zmq descriptor: %w", err)
	}
	l.lastKey++
	s := &loopSocket{zmq: z, fd: fd, key: l.lastKey}
	if err := l.watch(fd, s.key); err != nil {
		return nil, err
	}
	l.byKey[s.key] = s
	_, _ = z.GetEvents() // takes in what was signalled before
	return s, nil
}

// closeSocket closes a socket. zmq_close fails only for what is no socket.
func (l *loop) closeSocket(id uint64) {
	s := l.byID[id]
	if s == nil {
		return
	}
	delete(l.byID, id)
	l.unwatch(s.fd)
	delete(l.byKey, s.key)
	_ = s.zmq.Close()
	s.zmq = nil
}

// loops are the loop of the mesh's publishers, and what libzmq needs for it.
type loops struct {
	ctx  *zmq4.Context
	loop *loop
	next atomic.Uint64 // the id of the next socket
}

func (o *loops) open() error {
	ctx, err := zmq4.NewContext()
	if err != nil {
		return fmt.Errorf("zmq context: %w", err)
	}
	l, err := newLoop(ctx)
	if err != nil {
		return errors.Join(err, ctx.Term())
	}
	o.ctx, o.loop = ctx, l
	return nil
}

func (o *loops) run(ctx context.Context) error {
	err := o.loop.run(ctx)
	if term := o.ctx.Term(); term != nil {
		err = errors.Join(err, fmt.Errorf("terminate zmq context: %w", term))
	}
	return err
}

// openBound opens a bound socket. It tries again while the port is in use, since
// libzmq gives the port of a closed socket back in the background.
func (h *Hub) openBound(open func(l *loop, id uint64) error) (id uint64, err error) {
	select {
	case <-h.ready:
	case <-h.ended:
		return 0, ErrStopped
	}
	id = h.loops.next.Add(1)
	for range bindRetries {
		if err = h.loops.loop.do(func() error { return open(h.loops.loop, id) }); !inUse(err) {
			break
		}
		select {
		case <-h.ended:
			return 0, ErrStopped
		case <-time.After(bindRetryDelay):
		}
	}
	return id, err
}

func inUse(err error) bool {
	var errno zmq4.Errno
	return errors.As(err, &errno) && errno == zmq4.Errno(syscall.EADDRINUSE)
}

const (
	bindRetries    = 10
	bindRetryDelay = 20 * time.Millisecond
)

func (h *Hub) closeBound(id uint64) {
	_ = h.loops.loop.do(func() error { h.loops.loop.closeSocket(id); return nil }) // ErrStopped: it is closed
}
