package blackbox_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/select-service/select-service/test/checks/e2e"
)

// stopIn is how long the service may take to end after a signal, if nothing else
// keeps the machine busy.
const stopIn = 5 * time.Second

// queued starts a service that has one busy worker and n requests waiting for
// it, each with a context of its own that cancel ends.
func queued(t *testing.T, n int) (s *service, answers chan result, cancel context.CancelFunc) {
	t.Helper()
	s = start(t, eventsOff("DYN_ROUTER_QUEUE_THRESHOLD", "0"))
	s.register(t, 1)
	s.Must(t, http.StatusOK, "POST", "/select_and_reserve", object{"token_ids": []int{1, 2, 3, 4}, "reservation_id": "first"}, nil)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	answers = make(chan result, n)
	for i := range n {
		path := []string{"/select", "/select_and_reserve"}[i%2]
		go func() {
			a, err := s.Call(ctx, "POST", path, object{"token_ids": []int{i, 2, 3, 4, 5}})
			answers <- result{a, err}
		}()
	}
	e2e.Eventually(t, "all requests wait", func() error {
		if got := s.loads(t).Pending; got != n {
			return fmt.Errorf("%d of %d wait", got, n)
		}
		return nil
	})
	return s, answers, cancel
}

type result struct {
	e2e.Answer
	err error
}

// TestDisconnectLeavesQueue proves that a caller who goes away while it waits
// leaves the queue, that nothing is booked for it, and that the queue serves
// who comes later.
func TestDisconnectLeavesQueue(t *testing.T) {
	t.Parallel()
	const n = 20
	s, answers, cancel := queued(t, n)
	cancel()
	for range n {
		if r := <-answers; r.err == nil {
			t.Errorf("a cancelled request was answered: %v", r)
		}
	}
	e2e.Eventually(t, "the queue is empty", func() error {
		if got := s.loads(t).Pending; got != 0 {
			return fmt.Errorf("%d wait", got)
		}
		return nil
	})
	late := make(chan result, 1)
	go func() {
		a, err := s.Call(context.Background(), "POST", "/select", object{"token_ids": []int{9, 9, 9, 9}})
		late <- result{a, err}
	}()
	e2e.Eventually(t, "the late request waits", func() error {
		if got := s.loads(t).Pending; got != 1 {
			return fmt.Errorf("%d wait", got)
		}
		return nil
	})
	s.Must(t, http.StatusOK, "DELETE", "/reservations/first", nil, nil)
	if r := <-late; r.err != nil || r.Status != http.StatusOK {
		t.Errorf("late request: %v %v", r, r.err)
	}
	if l := s.loads(t).Loads; len(l) != 1 || l[0].Requests != 0 || l[0].Prefill != 0 || l[0].Decode != 0 {
		t.Errorf("loads after all: %+v, want none", l)
	}
}

// TestTerminateUnderLoad proves that SIGTERM ends the service, within five seconds
// on an idle machine: requests under way are answered, those that wait with 503,
// and the exit code is 0.
func TestTerminateUnderLoad(t *testing.T) {
	t.Parallel()
	const waiting, clients = 20, 8
	s, answers, _ := queued(t, waiting)
	half := halfSent(t, s)

	var wg sync.WaitGroup
	var served, refused atomic.Int64
	var signalled atomic.Bool
	for range clients {
		wg.Go(func() {
			for {
				a, err := s.Call(context.Background(), "POST", "/potential_loads", object{"token_ids": []int{1, 2, 3, 4}})
				switch {
				case err != nil && signalled.Load() && gone(err):
					return
				case err != nil:
					t.Errorf("a request got no answer: %v", err)
					return
				case a.Status == http.StatusOK:
					served.Add(1)
				case a.Status == http.StatusServiceUnavailable && signalled.Load():
					refused.Add(1)
				default:
					t.Errorf("unexpected answer %v", a)
					return
				}
			}
		})
	}
	e2e.Eventually(t, "the load runs", func() error {
		if n := served.Load(); n < 100 {
			return fmt.Errorf("%d requests served", n)
		}
		return nil
	})
	signalled.Store(true)
	began := time.Now()
	if err := s.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for i := range waiting {
		r := <-answers
		if i == 0 { // it stops, and has only begun to wait for what is under way
			half.finish(t, began)
		}
		if r.err != nil || r.Status != http.StatusServiceUnavailable || !strings.Contains(string(r.Body), `"error"`) {
			t.Errorf("a waiting request: want 503 with an error, got %v %v", r, r.err)
		}
	}
	code, ended := s.Wait(e2e.Patience)
	took := time.Since(began).Round(time.Millisecond)
	if !ended || code != 0 || took > stopIn && e2e.Alone() {
		t.Errorf("after %v: ended %v, exit code %d, want 0 within %v", took, ended, code, stopIn)
	}
	wg.Wait()
	t.Logf("ended after %v; %d served, %d refused", took, served.Load(), refused.Load())
}

// gone reports whether a request failed because nobody listens any more.
func gone(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) ||
		errors.Is(err, syscall.EPIPE)
}

// underWay is a request of which the body is not sent to its end.
type underWay struct {
	conn net.Conn
	rest string
}

func halfSent(t *testing.T, s *service) underWay {
	t.Helper()
	conn, err := net.Dial("tcp", s.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	head := "POST /overlap_scores HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 23\r\n\r\n"
	if _, err := io.WriteString(conn, head+`{"token_ids":`); err != nil {
		t.Fatal(err)
	}
	return underWay{conn, `[1,2,3,4]}`}
}

// underWayFor is how long requests under way have to end.
const underWayFor = 4 * time.Second

// finish sends the rest and expects an answer, unless the time for it is over since the signal.
func (u underWay) finish(t *testing.T, signal time.Time) {
	t.Helper()
	if _, err := io.WriteString(u.conn, u.rest); err != nil && time.Since(signal) < underWayFor {
		t.Errorf("request under way: %v", err)
		return
	}
	if err := u.conn.SetReadDeadline(time.Now().Add(e2e.Patience)); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(u.conn), nil)
	if err != nil {
		if took := time.Since(signal); took < underWayFor {
			t.Errorf("request under way got no answer after %v: %v", took, err)
		}
		return
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("request under way: status %d, want 200 or 503", resp.StatusCode)
	}
}
