package replicas_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/transport/zmqsock"
	"github.com/select-service/select-service/test/checks/e2e"
)

// TestLink proves that a link counts what it loses, to the message, and that it
// does repeat and reorder: faults that are not made would prove nothing.
func TestLink(t *testing.T) {
	const messages = 3000
	tests := map[string]struct {
		fate                  fate
		loses, repeats, mixes bool
	}{
		"clean":      {},
		"drop":       {fate: fate{drop: 0.3}, loses: true},
		"duplicate":  {fate: fate{duplicate: 0.3}, repeats: true},
		"scatter":    {fate: fate{scatter: 0.3}, mixes: true},
		"delay":      {fate: fate{delay: 30 * time.Millisecond}},
		"cut":        {fate: fate{cut: true}, loses: true},
		"closed":     {fate: fate{closed: true}, loses: true},
		"everything": {fate: fate{drop: 0.1, duplicate: 0.2, scatter: 0.3, delay: time.Millisecond}, loses: true, repeats: true, mixes: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWire(t)
			w.link.become(t, tc.fate)
			for n := range uint64(messages) {
				w.send(t, eventTopic, n)
			}
			e2e.Eventually(t, "every message arrived or was lost", func() error {
				got, repeated, _ := w.arrivals()
				lost, counted := int(w.link.lost.Load()), int(w.link.duplicated.Load())
				if got+lost != messages || repeated != counted {
					return fmt.Errorf("%d arrived, %d lost; %d repeated, %d of them arrived", got, lost, counted, repeated)
				}
				return nil
			})
			_, repeated, late := w.arrivals()
			if loses := w.link.lost.Load() > 0; loses != tc.loses || (repeated > 0) != tc.repeats || (late > 0) != tc.mixes {
				t.Errorf("%d lost, %d repeated, %d late", w.link.lost.Load(), repeated, late)
			}
		})
	}
}

// wire is a publisher, a link and a follower.
type wire struct {
	link      *link
	publisher *zmqsock.Mesh

	mu      sync.Mutex // guards what follows
	joined  bool
	numbers []uint64 // as they arrived
}

// newWire returns when messages go all the way.
func newWire(t *testing.T) *wire {
	t.Helper()
	hub := startHub(t)
	from := fmt.Sprintf("tcp://127.0.0.1:%d", e2e.FreePort(t))
	to := fmt.Sprintf("tcp://127.0.0.1:%d", e2e.FreePort(t))
	topics := []string{eventTopic, announceTopic}
	w := &wire{publisher: zmqsock.NewMesh(hub, from, topics)}
	if err := w.publisher.Open(); err != nil {
		t.Fatal(err)
	}
	w.link = newLink(t, hub, from, to, 1)
	if _, err := zmqsock.NewMesh(hub, "", topics).Follow(to, w.take, func(bool) {}); err != nil {
		t.Fatal(err)
	}
	e2e.Eventually(t, "the wire is connected", func() error {
		w.send(t, announceTopic, 0)
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.joined {
			return fmt.Errorf("nothing arrived")
		}
		return nil
	})
	return w
}

func (w *wire) send(t *testing.T, topic string, n uint64) {
	t.Helper()
	if err := w.publisher.Publish(topic, binary.BigEndian.AppendUint64(nil, n)); err != nil {
		t.Fatal(err)
	}
}

func (w *wire) take(topic string, payload []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if topic == announceTopic {
		w.joined = true
		return
	}
	w.numbers = append(w.numbers, binary.BigEndian.Uint64(payload))
}

// arrivals counts the distinct messages that arrived, those that came again,
// and those that came behind a later one.
func (w *wire) arrivals() (distinct, repeated, late int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen, last := make(map[uint64]struct{}), uint64(0)
	for _, n := range w.numbers {
		if _, again := seen[n]; again {
			repeated++
			continue
		}
		seen[n] = struct{}{}
		if n < last {
			late++
		}
		last = max(last, n)
	}
	return len(seen), repeated, late
}

// startHub runs a hub for the sockets of a test.
func startHub(t *testing.T) *zmqsock.Hub {
	t.Helper()
	hub := zmqsock.New(zmqsock.DefaultOptions())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- hub.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("hub: %v", err)
		}
	})
	return hub
}
