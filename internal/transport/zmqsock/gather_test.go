package zmqsock_test

import (
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"github.com/select-service/select-service/internal/transport/zmqsock"
	"github.com/select-service/select-service/test/helpers/zmqtest"
)

// samples has what a callback of Sample got.
type samples struct {
	mu      sync.Mutex
	numbers []uint64 // of messages
	lasts   int      // of these, how many were the last that had come
	open    bool     // the last one was not
	closed  bool     // nothing may come any more
	t       *testing.T
}

func (s *samples) take(frames [][]byte, received time.Time, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || received.IsZero() || len(frames) != 3 {
		s.t.Errorf("got %q at %v, closed %t", frames, received, s.closed)
		return
	}
	s.numbers = append(s.numbers, binary.BigEndian.Uint64(frames[1]))
	if s.open = !last; last {
		s.lasts++
	}
}

func (s *samples) got() (n, lasts int, open bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.numbers), s.lasts, s.open
}

// TestSample: every message of a publisher is given, in order, whether it is read at once or has
// gathered with others; the last of those that have come together is known. A connection on which
// nothing gathers is read at once again. When a socket is closed nothing more comes, and what read
// for it ends with the last one (see TestMain).
func TestSample(t *testing.T) {
	for _, gathers := range []bool{false, true} {
		h := start(t, zmqsock.DefaultOptions())
		if gathers {
			h.GatherFew()
		}
		pub := zmqtest.NewPublisher(t, "")
		defer pub.Close()
		s := &samples{t: t}
		id, err := h.Sample(pub.Endpoint, s.take, func(bool) {})
		if err != nil {
			t.Fatal(err)
		}
		pub.Subscribers(1)
		const count = 600
		large := make([]byte, 40_000) // more than a read buffer
		for n := range uint64(count) {
			payload := []byte("report")
			if n%100 == 50 {
				payload = large
			}
			pub.Publish(n, payload)
			if n%200 == 0 {
				eventually(t, "a message is read", func() bool { got, _, open := s.got(); return got > int(n) && !open })
			}
		}
		eventually(t, "all messages", func() bool { got, _, _ := s.got(); return got == count })
		_, lasts, open := s.got()
		if open || lasts == 0 {
			t.Errorf("gathers %t: %d were the last of those that came, at the end %t", gathers, lasts, !open)
		}
		for i, n := range s.numbers {
			if n != uint64(i) {
				t.Fatalf("gathers %t: message %d is %d", gathers, i, n)
			}
		}
		if gathers {
			pub.Publish(count, []byte("x"))
			pub.Publish(count+1, []byte("x"))
			eventually(t, "messages gather", func() bool { return h.Gathering() == 1 })
			eventually(t, "they do not if none come", func() bool { return h.Gathering() == 0 })
		}
		h.Close(id)
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		pub.Publish(count+2, []byte("late"))
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(zmqtest.Patience); !ok(); <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}
