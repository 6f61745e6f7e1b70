package zmqsock

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// poller is an epoll set that a goroutine waits for in Go's own poller, as it
// would for a connection: an epoll descriptor is readable when it has events. A
// blocking epoll_wait would cost a thread, two thread switches a message, and
// make the runtime's monitor thread look at it every 20 µs.
type poller struct {
	fd     int
	file   *os.File // owns fd
	raw    syscall.RawConn
	events []unix.EpollEvent
}

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	// os.NewFile hands only descriptors in this mode to Go's poller.
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(fmt.Errorf("epoll: %w", err), unix.Close(fd))
	}
	p := &poller{fd: fd, file: os.NewFile(uintptr(fd), "epoll"), events: make([]unix.EpollEvent, 128)}
	if p.raw, err = p.file.SyscallConn(); err == nil {
		err = p.file.SetReadDeadline(time.Time{}) // fails if Go does not poll it
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("epoll: %w", err), p.close())
	}
	return p, nil
}

func (p *poller) close() error { return p.file.Close() }

// forever waits without a limit.
const forever time.Duration = -1

// wait returns the events of the set, none if there are none within limit. The
// slice is valid until the next call.
func (p *poller) wait(limit time.Duration) ([]unix.EpollEvent, error) {
	n, err := p.poll()
	if n > 0 || err != nil || limit == 0 {
		return p.events[:n], err
	}
	deadline := time.Time{}
	if limit > 0 {
		deadline = time.Now().Add(limit)
	}
	if err := p.file.SetReadDeadline(deadline); err != nil {
		return nil, fmt.Errorf("epoll deadline: %w", err)
	}
	waited := p.raw.Read(func(uintptr) bool {
		n, err = p.poll()
		return n > 0 || err != nil
	})
	if waited != nil && !errors.Is(waited, os.ErrDeadlineExceeded) {
		return nil, fmt.Errorf("epoll wait: %w", waited)
	}
	return p.events[:n], err
}

func (p *poller) poll() (int, error) {
	n, err := unix.EpollWait(p.fd, p.events, 0)
	switch {
	case errors.Is(err, unix.EINTR):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("epoll wait: %w", err)
	}
	return n, nil
}
