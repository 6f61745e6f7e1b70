package filewatch

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/rs/zerolog"
)

const (
	// pollEvery is the interval at which the files are read.
	pollEvery = time.Second
	// maxSize is the longest file in bytes.
	maxSize = 1 << 20
)

// Watcher follows files that are used together, such as a certificate and its key. New contents
// are used once two reads a second apart agree on them, so that files are not used while they
// are being written. If contents are faulty, the previous ones stay in use.
type Watcher struct {
	what  string
	paths []string
	use   func(contents [][]byte) error
	asked chan struct{}

	// Only Load and Run use these.
	seen  observation // the last read
	acted observation // the last observation that was acted on
}

// observation is the result of one read: the hash of the contents, or an error.
type observation struct {
	sum   [sha256.Size]byte
	fault string
}

// Load reads the files and uses them. what is their name in errors and in the log. use is
// called with the contents in the order of the paths, and must change nothing if it fails.
func Load(what string, paths []string, use func(contents [][]byte) error) (*Watcher, error) {
	w := &Watcher{what: what, paths: paths, use: use, asked: make(chan struct{}, 1)}
	o, contents := w.read()
	if o.fault == "" {
		if err := use(contents); err != nil {
			o.fault = err.Error()
		}
	}
	if o.fault != "" {
		return nil, fmt.Errorf("%s: %s", what, o.fault)
	}
	w.seen, w.acted = o, o
	return w, nil
}

// Reload makes Run check the files now, and use what it reads at once. A nil Watcher has no files.
func (w *Watcher) Reload() {
	if w == nil {
		return
	}
	select {
	case w.asked <- struct{}{}:
	default: // already requested
	}
}

// Run follows the files until ctx ends. A nil Watcher has no files.
func (w *Watcher) Run(ctx context.Context, log zerolog.Logger) error {
	if w == nil {
		return nil
	}
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.asked:
			w.look(log, true)
		case <-tick.C:
			w.look(log, false)
		}
	}
}

// look reads the files, and uses contents that are new and that two reads agree on. asked:
// Reload was called, so one read is enough.
func (w *Watcher) look(log zerolog.Logger, asked bool) {
	now, contents := w.read()
	agreed := asked || now == w.seen
	w.seen = now
	if !agreed || now == w.acted {
		return
	}
	w.acted = now
	fault := now.fault
	if fault == "" {
		if err := w.use(contents); err != nil {
			fault = err.Error()
		}
	}
	if fault != "" {
		log.Error().Str("who", "file").Str("action", "reload "+w.what).Str("result", "refused").Str("error", fault).
			Msg(w.what + ": not reloaded, what was loaded before stays in force")
		return
	}
	log.Info().Str("who", "file").Str("action", "reload "+w.what).Str("result", "ok").Strs("files", w.paths).
		Msg(w.what + ": reloaded")
}

func (w *Watcher) read() (observation, [][]byte) {
	sum := sha256.New()
	contents := make([][]byte, len(w.paths))
	for i, path := range w.paths {
		content, err := Read(path, maxSize)
		if err != nil {
			return observation{fault: err.Error()}, nil
		}
		contents[i] = content
		part := sha256.Sum256(content)
		_, _ = sum.Write(part[:]) // a hash never fails
	}
	return observation{sum: [sha256.Size]byte(sum.Sum(nil))}, contents
}

// Read returns the content of a regular file of at most limit bytes.
func Read(path string, limit int) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // opening a pipe would block until there is a writer
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if len(content) > limit {
		return nil, fmt.Errorf("%s: the file has more than %d bytes", path, limit)
	}
	return content, nil
}
