package kvpub

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pebbe/zmq4"
)

// patience only ends a test that would hang: no passing test waits that long.
const patience = 2 * time.Minute

func opened(t *testing.T, topic string) *Publisher {
	t.Helper()
	p, err := Open(Options{Bind: "127.0.0.1", Topic: topic})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return p
}

func dial(t *testing.T, kind zmq4.Type, endpoint string) *zmq4.Socket {
	t.Helper()
	s, err := zmq4.NewSocket(kind)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	err = errors.Join(s.SetRcvtimeo(patience), s.SetLinger(0), s.SetRcvhwm(0))
	if kind == zmq4.SUB {
		err = errors.Join(err, s.SetSubscribe(""))
	}
	if err := errors.Join(err, s.Connect(endpoint)); err != nil {
		t.Fatal(err)
	}
	return s
}

func send(t *testing.T, s *zmq4.Socket, parts ...any) {
	t.Helper()
	if _, err := s.SendMessage(parts...); err != nil {
		t.Fatal(err)
	}
}

func receive(t *testing.T, s *zmq4.Socket) [][]byte {
	t.Helper()
	frames, err := s.RecvMessageBytes(0)
	if err != nil {
		t.Fatal(err)
	}
	return frames
}

func awaitSubscribers(t *testing.T, p *Publisher, n int) {
	t.Helper()
	deadline := time.After(patience)
	for p.Subscribers() != n {
		select {
		case <-deadline:
			t.Fatalf("%d subscribers, want %d", p.Subscribers(), n)
		case <-time.After(time.Millisecond):
		}
	}
}

// TestLive proves the frames of the live stream and the count of subscribers.
func TestLive(t *testing.T) {
	p := opened(t, "kv@1")
	sub := dial(t, zmq4.SUB, p.Events())
	awaitSubscribers(t, p, 1)
	for i := range 3 {
		p.Publish([]byte(fmt.Sprint("payload ", i)))
	}
	for i := range 3 {
		frames := receive(t, sub)
		want := []string{"kv@1", strings.Repeat("\x00", 7) + string(rune(i)), fmt.Sprint("payload ", i)}
		if got := texts(frames); !slices.Equal(got, want) {
			t.Errorf("frames = %q, want %q", got, want)
		}
	}
	sub.Close()
	awaitSubscribers(t, p, 0)
}

// TestReplay proves that the ring repeats what was asked for, in vLLM's frames,
// and forgets the oldest.
func TestReplay(t *testing.T) {
	p := opened(t, "")
	sub := dial(t, zmq4.SUB, p.Events())
	awaitSubscribers(t, p, 1)
	const extra = 5
	for i := range Steps + extra {
		p.Publish([]byte(fmt.Sprint(i)))
	}
	for range Steps + extra {
		receive(t, sub) // so that all are in the ring
	}
	asker := dial(t, zmq4.DEALER, p.Replay())
	send(t, asker, "malformed")
	tests := map[string]struct{ from, first, count uint64 }{
		"all":      {0, extra, Steps},
		"the end":  {Steps, Steps, extra},
		"the last": {Steps + extra - 1, Steps + extra - 1, 1},
		"none":     {Steps + extra, 0, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			send(t, asker, "", number(tc.from))
			for i := range tc.count {
				frames := receive(t, asker)
				want := []string{"", "", string(number(tc.first + i)), fmt.Sprint(tc.first + i)}
				if got := texts(frames); !slices.Equal(got, want) {
					t.Fatalf("answer %d = %q, want %q", i, got, want)
				}
			}
			end := receive(t, asker)
			if len(end) != 4 || binary.BigEndian.Uint64(end[2]) != ^uint64(0) || len(end[3]) != 0 {
				t.Errorf("end mark = %q", texts(end))
			}
		})
	}
}

// TestOpenFails proves that a host that is not ours is an error, not a panic.
func TestOpenFails(t *testing.T) {
	if _, err := Open(Options{Bind: "192.0.2.1"}); err == nil {
		t.Error("bound to a foreign address")
	}
}

// TestPublishAfterClose proves that a late event does not block or panic.
func TestPublishAfterClose(t *testing.T) {
	p, err := Open(Options{Bind: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	p.Publish([]byte("late"))
}

func texts(frames [][]byte) []string {
	var all []string
	for _, f := range frames {
		all = append(all, string(f))
	}
	return all
}
