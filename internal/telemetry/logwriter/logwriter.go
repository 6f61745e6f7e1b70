package logwriter

import (
	"bytes"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/select-service/select-service/internal/codec/redact"
)

// QueueBytes bounds the queued lines in bytes, about 5,000 lines. As many again may be in
// the write under way.
const QueueBytes = 1 << 20

// flushTime is how long Close waits for the output.
const flushTime = 500 * time.Millisecond

// Writer is an io.Writer of lines that never blocks and never fails. It is safe for
// concurrent use.
type Writer struct {
	out     io.Writer
	wake    chan struct{} // has an entry while waiting is not empty, and after Close
	ended   chan struct{} // closed when all is written
	dropped atomic.Uint64

	// mu guards waiting and closed. It is held for memory work only.
	mu      sync.Mutex
	waiting []byte // whole lines
	closed  bool
}

// New returns a writer of lines to out. Its goroutine ends with Close.
func New(out io.Writer) *Writer {
	w := &Writer{out: out, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	go w.run()
	return w
}

// Write queues one line. The line is dropped if the queue has no room for it, and after Close.
func (w *Writer) Write(line []byte) (int, error) {
	w.mu.Lock()
	taken := !w.closed && len(w.waiting)+len(line) <= QueueBytes
	if taken {
		w.waiting = append(w.waiting, line...)
	}
	w.mu.Unlock()
	if taken {
		w.signal()
	} else {
		w.dropped.Add(1)
	}
	return len(line), nil
}

// Dropped returns the number of lines that were dropped or that the output refused.
func (w *Writer) Dropped() uint64 { return w.dropped.Load() }

// Close waits until the queued lines are written, for at most half a second. If the output
// still blocks then, the lines and the goroutine are abandoned: the process is about to exit.
func (w *Writer) Close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.signal()
	late := time.NewTimer(flushTime)
	defer late.Stop()
	select {
	case <-w.ended:
	case <-late.C:
	}
}

func (w *Writer) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run writes all queued lines at once, again and again until Close.
func (w *Writer) run() {
	defer close(w.ended)
	var spare []byte
	for range w.wake {
		w.mu.Lock()
		lines, closed := w.waiting, w.closed
		w.waiting = spare[:0]
		w.mu.Unlock()
		if len(lines) > 0 {
			if _, err := w.out.Write(shown(lines)); err != nil { // there is nowhere else to report the error
				w.dropped.Add(uint64(bytes.Count(lines, []byte{'\n'})))
			}
		}
		spare = lines
		if closed {
			return
		}
	}
}

// shown returns lines without the credentials of URLs, which errors of libraries may name.
func shown(lines []byte) []byte {
	if bytes.IndexByte(lines, '@') < 0 {
		return lines
	}
	return []byte(redact.URLs(string(lines)))
}
