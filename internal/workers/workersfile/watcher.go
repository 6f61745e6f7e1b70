package workersfile

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/transport/filewatch"
	"github.com/select-service/select-service/internal/workers"
	"github.com/select-service/select-service/pkg/catalog"
)

const (
	// pollEvery is the interval at which the file is checked.
	pollEvery = time.Second
	// freshReads is how many times the file is read after its status has changed: a second
	// write within the resolution of file times does not change the status.
	freshReads = 3
)

// Stats counts what a Watcher has done.
type Stats struct {
	Applied uint64 // applied changes of the file
	Failed  uint64 // changes that could not be read, or were invalid or refused
	// Stale reports whether the registered workers differ from the file.
	Stale bool
}

// Watcher follows a file. It polls, so that it works on any file system and with any way of
// replacing the file, also by a symbolic link above it. New content is applied once two reads a
// second apart agree on it, so that a file is not applied while it is being written. If the
// content is faulty, the old set stays.
//
// It is a workers.Source.
type Watcher struct {
	path  string
	first *File // registered by Run
	log   zerolog.Logger
	asked chan struct{}

	// Only Run uses these.
	apply  workers.Apply
	status fs.FileInfo // at the last read, nil if there was none
	reads  int         // further reads to make with unchanged status
	seen   observation // the last read
	acted  observation // the last observation that was acted on
	retry  *File       // a valid file that was refused; nil: none
	failed string      // the last logged error

	applied, failures atomic.Uint64
	stale             atomic.Bool
}

// observation is the result of one read: the hash of a content, or an error.
type observation struct {
	sum   [sha256.Size]byte
	fault string
}

// NewWatcher returns a watcher of the file at path; first was loaded from it.
func NewWatcher(path string, first *File, log zerolog.Logger) *Watcher {
	o := observation{sum: first.sum}
	return &Watcher{path: path, first: first, log: log.With().Str("workers_file", path).Logger(), asked: make(chan struct{}, 1), seen: o, acted: o}
}

// Stats returns the counts so far.
func (w *Watcher) Stats() Stats {
	return Stats{Applied: w.applied.Load(), Failed: w.failures.Load(), Stale: w.stale.Load()}
}

// Kind is part of workers.Source.
func (*Watcher) Kind() catalog.SourceKind { return catalog.SourceFile }

// Run registers the workers of the first file and follows the file until ctx ends. It fails if
// they are refused.
func (w *Watcher) Run(ctx context.Context, apply workers.Apply) error {
	w.apply = apply
	d, err := apply(w.first.set())
	if err != nil {
		return fmt.Errorf("workers file %s: %w", w.path, w.first.Locate(err))
	}
	w.log.Info().Int("workers", len(d.Added)).Msg("workers are registered from the file")
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.asked:
			w.reads = freshReads
			w.look()
		case <-tick.C:
			w.poll()
		}
	}
}

// Reload makes Run read the file again, whether or not it looks changed. A nil Watcher has no
// file.
func (w *Watcher) Reload() {
	if w == nil {
		return
	}
	select {
	case w.asked <- struct{}{}:
	default: // already requested
	}
}

// poll checks the file once.
func (w *Watcher) poll() {
	if !w.unchanged() {
		w.look()
	} else if w.retry != nil {
		w.use(w.retry) // the reason for the refusal may be gone
	}
}

// unchanged reports whether the file need not be read.
func (w *Watcher) unchanged() bool {
	was := w.status
	now, err := os.Stat(w.path)
	if err != nil {
		w.status = nil
		return false
	}
	w.status = now
	if was == nil || !os.SameFile(was, now) || was.Size() != now.Size() || !was.ModTime().Equal(now.ModTime()) {
		w.reads = freshReads
	}
	if w.reads == 0 {
		return true
	}
	w.reads--
	return false
}

// look reads the file and applies a content that two reads agree on.
func (w *Watcher) look() {
	var now observation
	content, err := filewatch.Read(w.path, MaxSize)
	if err != nil {
		now.fault = err.Error()
	} else {
		now.sum = sha256.Sum256(content)
	}
	agreed := now == w.seen
	w.seen = now
	switch {
	case !agreed:
		w.reads = freshReads
	case now == w.acted:
		if w.retry != nil {
			w.use(w.retry)
		}
	default:
		w.acted, w.retry, w.failed = now, nil, "" // the new content may have the same fault, to be logged again
		if err != nil {
			w.fail(now.fault)
			return
		}
		file, err := decode(w.path, content, w.first.engines...)
		if err != nil {
			w.fail(err.Error())
			return
		}
		w.use(file)
	}
}

// use applies a file.
func (w *Watcher) use(file *File) {
	d, err := w.apply(file.set())
	if err != nil {
		w.retry = file
		w.fail(file.Locate(err).Error())
		return
	}
	w.retry, w.failed = nil, ""
	w.applied.Add(1)
	w.stale.Store(false)
	w.log.Info().Str("who", "file").Str("action", "reload workers").Str("result", "ok").Int("added", len(d.Added)).Int("changed", len(d.Changed)).Int("removed", len(d.Removed)).
		Int("unchanged", d.Unchanged).Msg("workers file applied")
}

// fail logs an error, but not repeatedly until another one happens or a file is applied.
func (w *Watcher) fail(text string) {
	w.stale.Store(true)
	if text == w.failed {
		return
	}
	w.failed = text
	w.failures.Add(1)
	w.log.Error().Str("error", text).Msg("workers file not applied: the workers stay as they are")
}
