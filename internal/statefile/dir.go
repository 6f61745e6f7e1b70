package statefile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The files of a directory.
const (
	snapshotName = "snapshot"
	tempName     = "snapshot.tmp"     // being written
	refusedName  = "snapshot.refused" // the last one that was not used
	lockName     = "lock"             // locked while a process uses the directory
)

// ErrNone says that there is no snapshot yet.
var ErrNone = errors.New("no snapshot")

// InUseError refuses a directory that another process uses.
type InUseError struct {
	Path    string
	Process int // 0 if it is not known
}

// Error names the directory and the process.
func (e *InUseError) Error() string {
	if e.Process == 0 {
		return fmt.Sprintf("data directory %s is used by another process", e.Path)
	}
	return fmt.Sprintf("data directory %s is used by process %d", e.Path, e.Process)
}

// Dir is the directory of a process's state. Its files can be read and written by
// their owner alone.
type Dir struct {
	path string
	lock *os.File
}

// OpenDir makes the directory if it does not exist, and locks it for this process:
// *InUseError if another one has it.
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
	_ = lock.Truncate(0) // the number of the process is for people
	_, _ = lock.WriteAt(fmt.Appendln(nil, os.Getpid()), 0)
	_ = os.Remove(d.file(tempName)) // of a process that was killed
	return d, nil
}

func (d *Dir) file(name string) string { return filepath.Join(d.path, name) }

// Path is the directory.
func (d *Dir) Path() string { return d.path }

// Open opens and checks the snapshot. Errors are ErrNone, *RefusedError, after which
// the file is kept under another name, in place of an earlier one, and those of
// reading.
func (d *Dir) Open() (*File, error) {
	in, err := os.OpenFile(d.file(snapshotName), os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, ErrNone
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

// Write makes a new snapshot of what fill writes, and puts it in the place of the
// last one once it is safe on disk. After an error the last one is still there.
func (d *Dir) Write(now time.Time, fill func(*Writer) error) (bytes int64, err error) {
	_ = os.Remove(d.file(tempName))
	out, err := os.OpenFile(d.file(tempName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, fmt.Errorf("write snapshot: %w", err)
	}
	w, err := newWriter(out, newHeader(now))
	if err == nil {
		err = fill(w)
	}
	if err == nil {
		err = w.end()
	}
	if err == nil {
		err = out.Sync()
	}
	if closeErr := out.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(d.file(tempName), d.file(snapshotName))
	}
	if err != nil {
		_ = os.Remove(d.file(tempName))
		return 0, fmt.Errorf("write snapshot: %w", err)
	}
	return w.Bytes(), d.sync()
}

// sync makes the new name safe.
func (d *Dir) sync() error {
	dir, err := os.Open(d.path)
	if err != nil {
		return fmt.Errorf("sync data directory: %w", err)
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("sync data directory: %w", err)
	}
	return nil
}

// Close gives the directory up. A nil Dir has none.
func (d *Dir) Close() error {
	if d == nil {
		return nil
	}
	return d.lock.Close()
}
