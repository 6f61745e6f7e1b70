package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// detachStderr returns standard error for the log, which is written by a goroutine
// that may block. What writes to the descriptor itself, such as a panic, does not
// block after this: where standard error is a pipe or a terminal, descriptor 2 becomes
// another opening of it, which loses what is not taken at once. Its other users keep
// theirs as it is. Where that cannot be done, all stays as it was.
func detachStderr() *os.File {
	const fd, path = 2, "/proc/self/fd/2"
	if info, err := os.Stat(path); err != nil || info.Mode()&(os.ModeNamedPipe|os.ModeCharDevice) == 0 {
		return os.Stderr
	}
	nonblocking, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil { // another user's pipe
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
