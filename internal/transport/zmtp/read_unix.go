//go:build unix && !linux

package zmtp

import (
	"errors"
	"syscall"
)

// canRead: readNow works.
const canRead = true

// readNow reads from a non-blocking descriptor. again: nothing can be read yet.
func readNow(fd uintptr, p []byte) (n int, again bool, err error) {
	for {
		n, err = syscall.Read(int(fd), p)
		switch {
		case err == nil:
			return n, false, nil
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EAGAIN):
			return 0, true, nil
		}
		return 0, false, err
	}
}
