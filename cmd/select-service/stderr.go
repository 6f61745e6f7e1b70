package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// detachStderr returns standard error for the log, whose own goroutine may block on it.
// Everything else that writes to descriptor 2, such as a panic, must not block: if standard
// error is a pipe or a terminal, descriptor 2 is replaced by another, non-blocking opening of
// it, which drops what cannot be written at once. Other processes that share standard error are
// not affected. If that is not possible, nothing changes.
func detachStderr() *os.File {
	const fd, path = 2, "/proc/self/fd/2"
	if info, err := os.Stat(path); err != nil || info.Mode()&(os.ModeNamedPipe|os.ModeCharDevice) == 0 {
		return os.Stderr
	}
	nonblocking, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil { // for example the pipe of another user
		return os.Stderr
	}
	defer func() { _ = unix.Close(nonblocking) }()
	original, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return os.Stderr
	}
	if err := unix.Dup3(nonblocking, fd, 0); err != nil {
		_ = unix.Close(original)
		return os.Stderr
	}
	return os.NewFile(uintptr(original), "/dev/stderr")
}
