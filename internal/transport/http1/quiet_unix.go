//go:build unix

package http1

import (
	"errors"
	"syscall"
)

// lookNow reports whether nothing has come on a connection that nobody reads, its end included. It takes
// what has come.
func lookNow(fd uintptr) (quiet bool) {
	var one [1]byte
	_, err := syscall.Read(int(fd), one[:])
	return errors.Is(err, syscall.EAGAIN)
}
