package zmqsock

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/pebbe/zmq4"
	"golang.org/x/sys/unix"
)

const (
	// fairness is the number of messages read from one socket before the other
	// sockets are read.
	fairness = 64
	// wakeKey is the epoll key of the loop's own eventfd; sockets count from 1.
	wakeKey = 0
)

// loop owns sockets: only its goroutine touches them, and all fields but mu's.
type loop struct {
	ctx      *zmq4.Context
	opt      Options
	resolver *resolver

	poll     *poller
	wake     int               // eventfd in poll
	byID     map[uint64]*group // open sockets by the hub's number
	byKey    map[int32]*socket // the same and their monitors by epoll key
	lastKey  int32
	monitors int       // opened so far
	ready    []*socket // may have more to read although their descriptor is silent
	frames   [][]byte  // scratch of receive
	readAt   time.Time // of the first message of the present drain
	timers   []timer   // earliest first
	trim     trimmer

	// mu guards commands and stopped.
	mu       sync.Mutex
	commands []func()
	stopped  bool
}

func newLoop(ctx *zmq4.Context, opt Options, r *resolver) (*loop, error) {
	poll, err := newPoller()
	if err != nil {
		return nil, err
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("eventfd: %w", err), poll.close())
	}
	l := &loop{
		ctx: ctx, opt: opt, resolver: r, poll: poll, wake: wake,
		byID: make(map[uint64]*group), byKey: make(map[int32]*socket),
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

// turn waits for something to do and does a fair share of it.
func (l *loop) turn() error {
	limit := l.limit()
	events, err := l.poll.wait(limit)
	if err != nil {
		return err
	}
	for _, e := range events {
		if e.Fd == wakeKey {
			var count [8]byte
			_, _ = unix.Read(l.wake, count[:]) // resets it
			l.runCommands()
		} else if s := l.byKey[e.Fd]; s != nil { // nil: closed by an earlier event of this turn
			l.makeReady(s)
		}
	}
	l.drainReady()
	l.runTimers()
	l.trim.run(len(events) == 0 && limit == trimQuiet)
	return nil
}

// limit is how long the loop may sleep.
func (l *loop) limit() time.Duration {
	if len(l.ready) > 0 {
		return 0
	}
	limit := forever
	if len(l.timers) > 0 {
		limit = max(0, time.Until(l.timers[0].at))
	}
	if l.trim.due() && (limit == forever || limit > trimQuiet) {
		limit = trimQuiet
	}
	return limit
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

func (l *loop) makeReady(s *socket) {
	if !s.ready && !s.paused {
		s.ready = true
		l.ready = append(l.ready, s)
	}
}

// drainReady reads each ready socket once. A ZMQ_FD says only that something
// happened since the socket was last found empty: a socket leaves the list when
// it is empty (then the next event makes its descriptor readable) or paused.
func (l *loop) drainReady() {
	l.ready = slices.DeleteFunc(l.ready, func(s *socket) bool {
		s.ready = s.zmq != nil && !s.paused && l.drain(s)
		return !s.ready
	})
}

// drain reads up to fairness messages and reports whether there may be more.
func (l *loop) drain(s *socket) (more bool) {
	if s.message == nil {
		// Asking makes libzmq take in who came and went.
		_, _ = s.zmq.GetEvents() // fails only for what is no socket
		return false
	}
	for i := range fairness {
		frames, err := s.receive(l.frames[:0])
		if err != nil {
			// Almost always EAGAIN; a socket that fails for good must not keep
			// its descriptor in the set, where it would spin.
			if zmq4.AsErrno(err) != zmq4.Errno(unix.EAGAIN) {
				l.pause(s)
			}
			return false
		}
		if s.readFirst != nil && s.mustReadFirst() {
			l.frames = nil // still in use
			l.drainAll(s.readFirst)
		}
		if i == 0 {
			l.readAt = time.Now()
		}
		for _, f := range frames {
			l.trim.received += len(f)
		}
		goOn := s.message(frames)
		clear(frames) // the scratch must not keep payloads alive
		l.frames = frames[:0]
		if !goOn {
			l.pause(s)
			return false
		}
	}
	return true
}

// drainAll reads a socket to its end: what is left would stay unnoticed until
// its descriptor is signalled again.
func (l *loop) drainAll(s *socket) {
	for l.drain(s) {
	}
}

// pause takes a socket out of the epoll set: its descriptor may stay readable
// for as long as it is not read, and would keep the loop awake.
func (l *loop) pause(s *socket) {
	if !s.paused {
		s.paused = true
		l.unwatch(s.fd)
	}
}

func (l *loop) resume(id uint64) {
	g := l.byID[id]
	if g == nil || g.main == nil || !g.main.paused {
		return
	}
	if err := l.watch(g.main.fd, g.main.key); err != nil {
		return // ENOMEM; the next Resume tries again
	}
	g.main.paused = false
	l.makeReady(g.main) // what waits in its queue has been signalled long ago
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

// timer is something that a loop does once, later.
type timer struct {
	at  time.Time
	run func()
}

// after has run called on the loop's goroutine when d has passed. It cannot be
// cancelled: run has to see whether it is still wanted.
func (l *loop) after(d time.Duration, run func()) {
	at := time.Now().Add(d)
	i := sort.Search(len(l.timers), func(i int) bool { return l.timers[i].at.After(at) })
	l.timers = slices.Insert(l.timers, i, timer{at, run})
}

func (l *loop) runTimers() {
	if len(l.timers) == 0 {
		return
	}
	now := time.Now()
	for len(l.timers) > 0 && !l.timers[0].at.After(now) {
		due := l.timers[0]
		l.timers[0] = timer{} // what it holds can go
		l.timers = l.timers[1:]
		due.run()
	}
}
