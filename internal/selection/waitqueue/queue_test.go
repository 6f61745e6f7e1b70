package waitqueue_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/internal/selection/waitqueue"
)

// server runs requests while it has places.
type server struct {
	places int
	ran    []string
}

// request is one of a server. panics makes Run and TooLate panic.
type request struct {
	*server
	name       string
	refreshErr error
	waitErr    error
	lateErr    error
	due        float64 // seconds after started, for Waiter.Due and Latest; 0: none
	panics     bool
	takes      time.Duration // in Run
	refreshed  int
}

func (r *request) Waiter() admission.Waiter {
	return admission.Waiter{Tokens: 10, Due: r.due, Latest: r.due}
}
func (r *request) Workers() int                      { return 1 }
func (r *request) CanRun(*admission.Class) bool      { return r.places > 0 }
func (r *request) CanRunNow(*admission.Class) bool   { return r.places > 0 || r.refreshErr != nil }
func (r *request) BeforeWait(*admission.Class) error { return r.waitErr }

func (r *request) TooLate(admission.Payer) error {
	if r.panics {
		panic("in TooLate")
	}
	return r.lateErr
}

func (r *request) Refresh(time.Duration) error {
	r.refreshed++
	return r.refreshErr
}

func (r *request) Run(admission.Payer) error {
	if r.panics {
		panic("in Run")
	}
	time.Sleep(r.takes)
	r.places--
	r.ran = append(r.ran, r.name)
	return nil
}

var started = time.Unix(1e9, 0)

func newQueue() *waitqueue.Queue {
	policy := admission.Config{Threshold: new(float64)}.ForModel("m")
	return waitqueue.New(waitqueue.Config{Started: started}, policy)
}

// enter queues a request that has to wait.
func enter(t *testing.T, q *waitqueue.Queue, r *request, second int) *waitqueue.Queued {
	t.Helper()
	since := started.Add(time.Duration(second) * time.Second)
	w, err := q.Enter(r, &since)
	if err != nil || w == nil {
		t.Fatalf("%s: %v, %v, want it to wait", r.name, w, err)
	}
	return w
}

// outcome is how a request ended; open: it has not.
func outcome(w *waitqueue.Queued) (open bool, err error) {
	select {
	case <-w.Done():
		return false, w.Err()
	default:
		return true, nil
	}
}

// TestTurns: a request runs at once while there is a place. Others wait, and run in
// the order of their arrival, those that were withdrawn left out, before a request
// that enters later.
func TestTurns(t *testing.T) {
	s, q := &server{places: 1}, newQueue()
	if w, err := q.Enter(&request{server: s, name: "first"}, new(started)); w != nil || err != nil {
		t.Fatalf("first: %v, %v", w, err)
	}
	late := enter(t, q, &request{server: s, name: "late"}, 3)
	early := enter(t, q, &request{server: s, name: "early"}, 1)
	gone := enter(t, q, &request{server: s, name: "gone"}, 2)
	if n, tokens := q.Pending(); n != 3 || tokens != 30 {
		t.Errorf("pending: %d requests, %d tokens", n, tokens)
	}
	if !q.Withdraw(gone) || q.Withdraw(gone) {
		t.Error("a request is withdrawn once")
	}
	s.places = 1
	q.Dispatch()
	if open, err := outcome(early); err != nil || open {
		t.Errorf("early: %v, open %t", err, open)
	}
	if open, _ := outcome(late); !open {
		t.Error("late had its turn without a place")
	}
	s.places = 2
	if w, err := q.Enter(&request{server: s, name: "last"}, new(started)); w != nil || err != nil {
		t.Fatalf("last: %v, %v", w, err)
	}
	if want := []string{"first", "early", "late", "last"}; !slices.Equal(s.ran, want) {
		t.Errorf("ran %v, want %v", s.ran, want)
	}
	if q.Withdraw(late) {
		t.Error("a request was withdrawn after its turn")
	}
}

// TestArrival: a request without a time of arrival gets that of its entrance, when
// those that can run before it have had their turn. It keeps the time that it has.
func TestArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, q := &server{}, newQueue()
		enter(t, q, &request{server: s, name: "slow", takes: time.Second}, 0)
		s.places = 1
		var since time.Time
		want := time.Now().Add(time.Second)
		for range 2 {
			if w, err := q.Enter(&request{server: s, name: "next"}, &since); w == nil || err != nil {
				t.Fatalf("next: %v, %v, want it to wait", w, err)
			}
			if !since.Equal(want) {
				t.Errorf("it came at %v, want %v", since, want)
			}
			time.Sleep(time.Minute)
		}
	})
}

// TestErrors: an error before the wait is the answer; a request that has lost its
// ranks gets that error in its turn, without running.
func TestErrors(t *testing.T) {
	s, q := &server{}, newQueue()
	refused, lost := errors.New("refused"), errors.New("no ranks left")
	if w, err := q.Enter(&request{server: s, waitErr: refused}, new(started)); w != nil || !errors.Is(err, refused) {
		t.Errorf("before the wait: %v, %v", w, err)
	}
	r := &request{server: s, name: "waits"}
	w := enter(t, q, r, 0)
	r.refreshErr = lost
	q.Dispatch()
	if _, err := outcome(w); !errors.Is(err, lost) || r.refreshed != 1 || len(s.ran) > 0 {
		t.Errorf("ended with %v after %d looks, ran %v", err, r.refreshed, s.ran)
	}
}

// TestPanic: a request that panics in the turn that another call gives it has an
// answer, and the queue goes on.
func TestPanic(t *testing.T) {
	s, q := &server{}, newQueue()
	bad := enter(t, q, &request{server: s, name: "bad", panics: true}, 0)
	good := enter(t, q, &request{server: s, name: "good"}, 1)
	s.places = 1
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		q.Dispatch()
	}()
	if open, err := outcome(bad); err == nil || open {
		t.Errorf("bad: %v, open %t", err, open)
	}
	q.Dispatch()
	if open, err := outcome(good); err != nil || open {
		t.Errorf("good: %v, open %t", err, open)
	}
}

// TestPanicWhenLate: the same for a request that panics when it becomes late.
func TestPanicWhenLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		q := waitqueue.New(waitqueue.Config{Started: time.Now()}, admission.Config{Threshold: new(float64)}.ForModel("m"))
		good, err := q.Enter(&request{server: s, name: "good"}, new(time.Time))
		if err != nil {
			t.Fatal(err)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			time.Sleep(2 * time.Second)
			_, _ = q.Enter(&request{server: s, due: 1, panics: true}, new(time.Time))
		}()
		if n, _ := q.Pending(); n != 1 {
			t.Errorf("%d requests wait, want 1", n)
		}
		s.places = 1
		q.Dispatch()
		if open, err := outcome(good); err != nil || open {
			t.Errorf("good: %v, open %t", err, open)
		}
		q.Close(errors.New("closed"))
	})
}

// TestClose: requests that wait and those that enter later get the reason.
func TestClose(t *testing.T) {
	s, q := &server{}, newQueue()
	waits := enter(t, q, &request{server: s}, 0)
	reason := errors.New("shutting down")
	q.Close(reason)
	if _, err := outcome(waits); !errors.Is(err, reason) {
		t.Errorf("waiting: %v", err)
	}
	if w, err := q.Enter(&request{server: s}, new(started)); w != nil || !errors.Is(err, reason) {
		t.Errorf("entering: %v, %v", w, err)
	}
	if n, _ := q.Pending(); n != 0 {
		t.Errorf("%d requests wait", n)
	}
}

// TestWithoutPolicy: nothing waits, and there is nothing to dispatch or to close.
func TestWithoutPolicy(t *testing.T) {
	q := waitqueue.New(waitqueue.Config{}, nil)
	q.Dispatch()
	q.Close(errors.New("closed"))
	if n, tokens := q.Pending(); q.Enabled() || n != 0 || tokens != 0 {
		t.Errorf("enabled %t, %d requests, %d tokens", q.Enabled(), n, tokens)
	}
}

// TestDeadlines: requests that want their first token by a time go in the order of these times, before others. When one cannot be
// in time any more, it is refused at that moment if it refuses to be late, else it goes last.
func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, begin := &server{}, time.Now()
		q := waitqueue.New(waitqueue.Config{Started: begin}, admission.Config{Threshold: new(float64)}.ForModel("m"))
		late := errors.New("too late")
		waits := map[string]*waitqueue.Queued{}
		for _, r := range []*request{
			{name: "late", due: 4}, {name: "none"}, {name: "second", due: 20}, {name: "first", due: 10}, {name: "refused", due: 5, lateErr: late},
		} {
			r.server = s
			w, err := q.Enter(r, new(time.Time))
			if err != nil || w == nil {
				t.Fatalf("%s: %v, %v, want it to wait", r.name, w, err)
			}
			waits[r.name] = w
		}
		time.Sleep(5*time.Second - time.Millisecond)
		synctest.Wait()
		if open, err := outcome(waits["refused"]); !open {
			t.Errorf("refused too early: %v", err)
		}
		<-waits["refused"].Done()
		if took := time.Since(begin); took > 5*time.Second+2*time.Millisecond || !errors.Is(waits["refused"].Err(), late) {
			t.Errorf("refused after %v: %v", took, waits["refused"].Err())
		}
		if w, err := q.Enter(&request{server: s, due: 1, lateErr: late}, new(time.Time)); w != nil || !errors.Is(err, late) {
			t.Errorf("too late from the beginning: %v, %v", w, err)
		}
		if n, _ := q.Pending(); n != 4 {
			t.Errorf("%d requests wait, want 4", n)
		}
		s.places = 4
		q.Dispatch()
		if want := []string{"first", "second", "none", "late"}; !slices.Equal(s.ran, want) {
			t.Errorf("ran %v, want %v", s.ran, want)
		}
		q.Close(errors.New("closed")) // its timer ends
	})
}
