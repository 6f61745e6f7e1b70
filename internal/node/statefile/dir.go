package statefile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/select-service/select-service/internal/transport/atomicfile"
)

// The files of a directory.
const (
	snapshotName = "snapshot"
	tempName     = snapshotName + atomicfile.TempSuffix // a snapshot being written
	refusedName  = "snapshot.refused"                   // the last snapshot that was refused
	lockName     = "lock"                               // locked while a process uses the directory
)

// errNone is the error if there is no snapshot yet.
var errNone = errors.New("no snapshot")

// InUseError refuses a directory that another process uses.
type InUseError struct {
	Path    string
	Process int // its process id, 0 if unknown
}

// Error names the directory and the process.
func (e *InUseError) Error() string {
	if e.Process == 0 {
		return fmt.Sprintf("data directory %s is used by another process", e.Path)
	}
	return fmt.Sprintf("data directory %s is used by process %d", e.Path, e.Process)
}

// Dir is the directory of a process's state. Only the owner can read and write its files.
type Dir struct {
	path string
	lock *os.File
}

// OpenDir creates the directory if needed, and locks it for this process. The error is an
// *InUseError if another process has it.
func OpenDir(path string) (*Dir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	d := &Dir{path: path}
	lock, err := os.OpenFile(d.file(lockName), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer lock.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock data directory %s: %w", path, err)
		}
		var text [20]byte
		n, _ := lock.ReadAt(text[:], 0)
		process, _ := strconv.Atoi(strings.TrimSpace(string(text[:n])))
		return nil, &InUseError{path, process}
	}
	d.lock = lock
	_ = lock.Truncate(0) // the process id is for people only
	_, _ = lock.WriteAt(fmt.Appendln(nil, os.Getpid()), 0)
	_ = os.Remove(d.file(tempName)) // left by a killed process
	return d, nil
}

func (d *Dir) file(name string) string { return filepath.Join(d.path, name) }

// Path is the directory.
func (d *Dir) Path() string { return d.path }

// openLast opens and checks the last snapshot. Errors are errNone, those of reading, and *RefusedError;
// a refused file is renamed and replaces an earlier refused one.
func (d *Dir) openLast() (*file, error) {
	in, err := os.OpenFile(d.file(snapshotName), os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errNone
	}
	if err != nil {
		return nil, fmt.Errorf("open snapshot: %w", err)
	}
	f, err := open(in)
	if err == nil {
		return f, nil
	}
	_ = in.Close()
	var refused *RefusedError
	if errors.As(err, &refused) {
		if err := os.Rename(d.file(snapshotName), d.file(refusedName)); err != nil {
			return nil, errors.Join(refused, err)
		}
	}
	return nil, err
}

// Write writes a new snapshot with fill, and replaces the last one when the new one is safe on
// disk. After an error the last one is still there.
func (d *Dir) Write(now time.Time, fill func(*writer) error) (bytes int64, err error) {
	err = atomicfile.Write(d.file(snapshotName), func(out io.Writer) error {
		w, err := newWriter(out, newHeader(now))
		if err == nil {
			err = fill(w)
		}
		if err == nil {
			err = w.end()
		}
		bytes = w.Bytes()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("write snapshot: %w", err)
	}
	return bytes, nil
}

// Close unlocks the directory. A nil Dir does nothing.
func (d *Dir) Close() error {
	if d == nil {
		return nil
	}
	return d.lock.Close()
}
