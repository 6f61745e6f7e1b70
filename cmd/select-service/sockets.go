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
	// socketUmask takes from a socket file what others than owner and group may do: its
	// mode is 0660. Who may write to it may connect.
	socketUmask = 0o117
	// socketPatience bounds how long another process may take to answer, or to make its
	// own socket.
	socketPatience = time.Second
)

// onSocket reports whether the listener is a unix socket.
func (l *listener) onSocket() bool { return l.flag == socketFlag }

// listenSocket makes a unix socket at a path. The file of a process that has been killed
// is replaced; one whose process lives, and any other file, is an error. Closing the
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
	// It must not be open to others before a change of its mode. (Nothing else makes files
	// at this time.)
	before := unix.Umask(socketUmask)
	defer unix.Umask(before)
	return (&net.ListenConfig{}).Listen(ctx, "unix", path)
}

// lockSocket keeps other processes that start from replacing a socket that this one has
// just made, until unlock, which removes the file at the path.
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
				_ = os.Remove(path) // before the lock: it may be another's file after
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

// isAt reports whether a file is still the one at its path: whoever had locked it before has
// removed it.
func isAt(file *os.File, path string) bool {
	ours, err := file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(path)
	return err == nil && os.SameFile(ours, there)
}

// removeStale removes a socket that nobody listens on any more.
func removeStale(ctx context.Context, path string) error {
	conn, err := (&net.Dialer{Timeout: socketPatience}).DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		_ = conn.Close()
		return errors.New("another process listens there")
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case !errors.Is(err, unix.ECONNREFUSED): // the answer for files of every kind
		return fmt.Errorf("whether another process listens there: %w", err)
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist): // it has just ended
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
