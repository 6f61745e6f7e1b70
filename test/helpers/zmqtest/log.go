package zmqtest

import (
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/select-service/select-service/pkg/memory"
)

// Log records what a source calls back.
type Log struct {
	change chan struct{}

	// mu guards the fields below.
	mu     sync.Mutex
	events []string
	pause  bool
}

// NewLog returns an empty log.
func NewLog() *Log { return &Log{change: make(chan struct{}, 1)} }

// Add adds an event. It returns false if the socket is to be paused.
func (l *Log) Add(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, s)
	select {
	case l.change <- struct{}{}:
	default:
	}
	return !l.pause
}

// Text is how a log has a message. Of long frames it has the length and a checksum:
// to quote them takes much longer than to receive them.
func Text(frames [][]byte) string {
	shown := make([]string, len(frames))
	for i, f := range frames {
		if shown[i] = string(f); len(f) > 1<<10 {
			shown[i] = fmt.Sprintf("%d bytes, %08x", len(f), crc32.ChecksumIEEE(f))
		}
	}
	return fmt.Sprintf("%q", shown)
}

// Message takes a message of a subscription.
func (l *Log) Message(frames [][]byte, buffer *memory.Buffer, received time.Time) bool {
	if age := time.Since(received); age < 0 || age > Patience {
		l.Add(fmt.Sprintf("received %v ago", age)) // no test expects this
	}
	return l.Answer(frames, buffer)
}

// Answer takes an answer to a request.
func (l *Log) Answer(frames [][]byte, buffer *memory.Buffer) bool {
	defer buffer.Release(nil)
	size := int64(0)
	for _, f := range frames {
		size += int64(len(f))
	}
	if buffer.Size() < size {
		l.Add(fmt.Sprintf("%d bytes reserved for %d", buffer.Size(), size)) // no test expects this
	}
	return l.Add(Text(frames))
}

// Status takes the status of a subscription: "up" or "down".
func (l *Log) Status(up bool) {
	if up {
		l.Add("up")
	} else {
		l.Add("down")
	}
}

// SetPause says whether the socket is to be paused after the next message.
func (l *Log) SetPause(pause bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pause = pause
}

// Snapshot returns what has come so far.
func (l *Log) Snapshot() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.events)
}

// Await waits until ok holds for the events.
func (l *Log) Await(t testing.TB, what string, ok func(events []string) bool) {
	t.Helper()
	for !ok(l.Snapshot()) {
		select {
		case <-l.change: // as long as something comes there is hope
		case <-time.After(Patience):
			t.Fatalf("%s: not seen; got %d events, first ones %.40q", what, len(l.Snapshot()), l.Snapshot()[:min(10, len(l.Snapshot()))])
		}
	}
}

// Has reports whether there are these events, in this order, others between them or not.
func Has(want ...string) func([]string) bool {
	return func(events []string) bool {
		for _, w := range want {
			i := slices.Index(events, w)
			if i < 0 {
				return false
			}
			events = events[i+1:]
		}
		return true
	}
}

// First is how a log has the message 1 with the payload "one".
const First = `["" "\x00\x00\x00\x00\x00\x00\x00\x01" "one"]`
