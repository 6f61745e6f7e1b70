package zmqsock_test

import (
	"context"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/budget"
	"github.com/select-service/select-service/internal/zmqsock"
	"github.com/select-service/select-service/internal/zmqsock/zmqtest"
	"github.com/select-service/select-service/internal/zmtp"
)

// start runs a hub for the length of the test.
func start(t testing.TB, opt zmqsock.Options) *zmqsock.Hub {
	t.Helper()
	return run(t, zmqsock.New(opt))
}

func run(t testing.TB, h *zmqsock.Hub) *zmqsock.Hub {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return h
}

// log records what a hub calls back.
type log struct {
	mu     sync.Mutex
	events []string
	pause  bool
	change chan struct{}
}

func newLog() *log { return &log{change: make(chan struct{}, 1)} }

func (l *log) add(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, s)
	select {
	case l.change <- struct{}{}:
	default:
	}
	return !l.pause
}

func (l *log) message(frames [][]byte) bool { return l.add(text(frames)) }

// text is how a log has a message. Of long frames it has the length and a checksum:
// to quote them takes much longer than to receive them.
func text(frames [][]byte) string {
	shown := make([]string, len(frames))
	for i, f := range frames {
		if shown[i] = string(f); len(f) > 1<<10 {
			shown[i] = fmt.Sprintf("%d bytes, %08x", len(f), crc32.ChecksumIEEE(f))
		}
	}
	return fmt.Sprintf("%q", shown)
}

// timed takes a message of a subscription.
func (l *log) timed(frames [][]byte, memory *budget.Buffer, received time.Time) bool {
	size := 0
	for _, f := range frames {
		size += len(f)
	}
	if want := int64(budget.BufferSize(size)) + zmtp.MessageOverhead; memory.Reserved != want {
		l.add(fmt.Sprintf("%d bytes reserved, not %d", memory.Reserved, want)) // no test expects this
	}
	defer memory.Release(nil)
	if age := time.Since(received); age < 0 || age > zmqtest.Patience {
		l.add(fmt.Sprintf("received %v ago", age)) // no test expects this
	}
	return l.message(frames)
}

func (l *log) answer(frames [][]byte, memory *budget.Buffer) bool {
	defer memory.Release(nil)
	return l.message(frames)
}

func (l *log) status(up bool) {
	if up {
		l.add("up")
	} else {
		l.add("down")
	}
}

func (l *log) setPause(pause bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pause = pause
}

func (l *log) snapshot() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.events)
}

// await waits until ok holds for the events.
func (l *log) await(t testing.TB, what string, ok func(events []string) bool) {
	t.Helper()
	for !ok(l.snapshot()) {
		select {
		case <-l.change: // as long as something comes there is hope
		case <-time.After(zmqtest.Patience):
			t.Fatalf("%s: not seen; got %d events, first ones %.40q", what, len(l.snapshot()), l.snapshot()[:min(10, len(l.snapshot()))])
		}
	}
}

func has(want ...string) func([]string) bool {
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

func subscribe(t testing.TB, h *zmqsock.Hub, endpoint string, l *log) uint64 {
	t.Helper()
	id, err := h.Subscribe(endpoint, nil, l.timed, l.status)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// rebind runs bind until the port of a closed socket is free again: libzmq gives
// it back in the background.
func rebind(t testing.TB, bind func() error) {
	t.Helper()
	err := bind()
	for begin := time.Now(); err != nil && strings.Contains(err.Error(), "address already in use") && time.Since(begin) < zmqtest.Patience; {
		err = bind()
	}
	if err != nil {
		t.Fatal(err)
	}
}

const first = `["" "\x00\x00\x00\x00\x00\x00\x00\x01" "one"]`
