package zmtp

import (
	"syscall"
	"unsafe"
)

// canRead: readNow works.
const canRead = true

// readNow reads from a descriptor that does not block. again reports that there is nothing to
// read yet.
//
// The scheduler is not told, as it would be by syscall.Read. It would wake its monitor thread,
// in case that the call takes long, which it never does: where few messages come that took a fifth
// of the time of each.
func readNow(fd uintptr, p []byte) (n int, again bool, err error) {
	for {
		r, _, errno := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p))) //nolint:gosec // p is alive during the call
		switch errno {
		case 0:
			return int(r), false, nil
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			return 0, true, nil
		}
		return 0, false, errno
	}
}
