package proxy

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// hasLeft reports whether the other side of a connection has closed it, also behind bytes that nobody has read.
func hasLeft(c syscall.RawConn) (left bool) {
	_ = c.Control(func(fd uintptr) { // fails only if the connection has ended
		look := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(look, 0)
		left = err == nil && n > 0
	})
	return left
}
