package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
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
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close() // and with it the lock
	if err := lockDirectory(ctx, dir); err != nil {
		return nil, err
	}
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	// It must not be open to others before a change of its mode. (Nothing else makes files
	// at this time.)
	before := unix.Umask(socketUmask)
	defer unix.Umask(before)
	return (&net.ListenConfig{}).Listen(ctx, "unix", path)
}

// lockDirectory keeps other processes that start from replacing a socket that this one
// has just made, until the directory is closed.
func lockDirectory(ctx context.Context, dir *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, socketPatience)
	defer cancel()
	for {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is locked by another process", dir.Name())
		case <-time.After(socketPatience / 50):
		}
	}
}

// removeStale removes a socket that nobody listens on any more.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return errors.New("there is a file that is no socket")
	}
	conn, err := (&net.Dialer{Timeout: socketPatience}).DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
		return errors.New("another process listens there")
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("whether another process listens there: %w", err)
	}
	return os.Remove(path)
}
