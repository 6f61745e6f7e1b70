package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// socketFlag is the flag that names unix sockets.
	socketFlag = "--listen"
	// socketUmask gives socket files the mode 0660. Whoever may write to the file may connect.
	socketUmask = 0o117
	// socketPatience bounds how long another process may take to answer on its socket, or to
	// create its own.
	socketPatience = time.Second
)

// onSocket reports whether the listener is a unix socket.
func (l *listener) onSocket() bool { return l.flag == socketFlag }

// listenSocket creates a unix socket at a path. It replaces the file of a process that was
// killed; the socket of a living process, and any other file, is an error. Closing the
// listener removes the file.
func listenSocket(ctx context.Context, path string) (net.Listener, error) {
	unlock, err := lockSocket(ctx, path+".lock")
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	// A umask, because the file must not be accessible to others even for a moment. (No other
	// files are created at this time.)
	before := unix.Umask(socketUmask)
	defer unix.Umask(before)
	return (&net.ListenConfig{}).Listen(ctx, "unix", path)
}

// lockSocket keeps other starting processes from replacing the socket that this one creates,
// until unlock, which removes the lock file at the path.
func lockSocket(ctx context.Context, path string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, socketPatience)
	defer cancel()
	for {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && isAt(file, path) {
			return func() {
				_ = os.Remove(path) // before unlocking: afterwards it may be another process's file
				_ = file.Close()
			}, nil
		}
		_ = file.Close()
		if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%s is locked by another process", path)
		case <-time.After(socketPatience / 50):
		}
	}
}

// isAt reports whether an open file is still the one at its path: the previous holder of the
// lock may have removed it.
func isAt(file *os.File, path string) bool {
	ours, err := file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(path)
	return err == nil && os.SameFile(ours, there)
}

// removeStale removes a socket that no process listens on any more.
func removeStale(ctx context.Context, path string) error {
	conn, err := (&net.Dialer{Timeout: socketPatience}).DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		_ = conn.Close()
		return errors.New("another process listens there")
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case !errors.Is(err, unix.ECONNREFUSED): // returned for any other kind of file too
		return fmt.Errorf("whether another process listens there: %w", err)
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist): // its process has just ended
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return errors.New("there is a file that is no socket")
	}
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
