//go:build unix

package tokenizer

import (
	"errors"
	"net"
	"syscall"
)

// isQuiet reports whether nothing has come on a connection that nobody reads, its end included. It
// takes what has come.
func isQuiet(c net.Conn) (quiet bool) {
	s, ok := c.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Read(func(fd uintptr) bool {
		var one [1]byte
		_, err := syscall.Read(int(fd), one[:])
		quiet = errors.Is(err, syscall.EAGAIN)
		return true
	})
	return quiet && err == nil
}
