package client_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/pkg/client"
)

var tokens = client.Prompt{TokenIDs: []uint32{1, 2, 3}}

// operations are one call of each kind. book: it books; blind: it is
// not repeated when it is unknown whether it was done.
var operations = []struct {
	name              string
	book, blind, read bool
	call              func(ctx context.Context, c *client.Client) error
}{
	{name: "select", read: true, call: func(ctx context.Context, c *client.Client) error {
		_, err := c.Select(ctx, client.SelectRequest{Prompt: tokens})
		return err
	}},
	{name: "select_and_reserve", book: true, call: func(ctx context.Context, c *client.Client) error {
		_, err := c.SelectAndReserve(ctx, client.SelectRequest{Prompt: tokens})
		return err
	}},
	{name: "select_pair", book: true, call: func(ctx context.Context, c *client.Client) error {
		_, err := c.SelectPair(ctx, client.PairRequest{Prompt: tokens})
		return err
	}},
	{name: "lease", book: true, call: func(ctx context.Context, c *client.Client) error {
		_, err := c.Lease(ctx, client.SelectRequest{Prompt: tokens})
		return err
	}},
	{name: "lease on", book: true, call: func(ctx context.Context, c *client.Client) error {
		_, err := c.LeaseOn(ctx, client.ReserveRequest{Worker: new(uint64(1)), Prompt: tokens})
		return err
	}},
	{name: "prefill_complete", call: func(ctx context.Context, c *client.Client) error { return c.PrefillComplete(ctx, "old") }},
	{name: "output_block", blind: true, call: func(ctx context.Context, c *client.Client) error { return c.OutputBlock(ctx, "old", nil) }},
	{name: "renew", call: func(ctx context.Context, c *client.Client) error { return c.Renew(ctx, "old") }},
	{name: "free", call: func(ctx context.Context, c *client.Client) error { return c.Free(ctx, "old") }},
	{name: "loads", read: true, call: func(ctx context.Context, c *client.Client) error {
		_, err := c.Loads(ctx, client.Scope{})
		return err
	}},
	{name: "delete worker", call: func(ctx context.Context, c *client.Client) error { return c.DeleteWorker(ctx, 7) }},
}

const (
	lost    = iota // unknown whether it was done: retried unless blind
	refused        // it was not done: retried
	final          // not retried
)

func isFree(request string) bool { return strings.HasPrefix(request, "DELETE /reservations/") }

// TestFaults proves which calls are sent again after which faults, that a reservation
// is made once at most, and that one whose caller got an error is freed.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, f := range []struct {
		name  string
		fault fault
		kind  int
		is    error // of the error, if there is one
		only  func(book, read bool) bool
	}{
		{name: "lost before", fault: lostBefore, kind: lost, is: client.ErrMaybeDone},
		{name: "lost after", fault: lostAfter, kind: lost, is: client.ErrMaybeDone},
		{name: "half", fault: half, kind: lost, is: client.ErrMaybeDone},
		{name: "garbage", fault: garbage, kind: lost, is: client.ErrMaybeDone, only: func(book, read bool) bool { return book || read }},
		{name: "another's", fault: another, kind: final, is: client.ErrMaybeDone, only: func(book, _ bool) bool { return book }},
		{name: "proxy 502", fault: answers(502, "<html>"), kind: lost, is: client.ErrMaybeDone},
		{name: "proxy 503", fault: answers(503, "upstream connect error"), kind: lost, is: client.ErrMaybeDone},
		{name: "proxy 504", fault: answers(504, ""), kind: lost, is: client.ErrMaybeDone},
		{name: "half an error", fault: answers(404, `{"error`, "Content-Length", "100"), kind: lost, is: client.ErrMaybeDone},
		{name: "overload", fault: answers(503, overloaded), kind: refused},
		{name: "no worker", fault: answers(503, `{"error":"no schedulable workers"}`), kind: final, is: client.ErrUnavailable},
		{name: "queue full", fault: answers(429, `{"error":"full","details":{"limit":1}}`), kind: final, is: client.ErrQueueFull},
		{name: "redirect", fault: answers(307, "", "Location", "/elsewhere"), kind: final},
		{name: "found", fault: answers(302, "", "Location", "/elsewhere"), kind: final},
		{name: "internal", fault: answers(500, `{"error":"internal error"}`), kind: final, is: client.ErrInternal},
		{name: "bad request", fault: answers(400, `{"error":"no"}`), kind: final, is: client.ErrBadRequest},
		{name: "bad shape", fault: answers(422, `{"error":"no"}`), kind: final, is: client.ErrBadRequest},
		{name: "conflict", fault: answers(409, `{"error":"no"}`), kind: final, is: client.ErrConflict},
		{name: "not found", fault: answers(404, `{"error":"no"}`), kind: final, is: client.ErrNotFound},
		{name: "proxy 404", fault: answers(404, "no backend"), kind: final},
	} {
		for _, op := range operations {
			if f.only != nil && !f.only(op.book, op.read) {
				continue
			}
			t.Run(f.name+"/"+op.name, func(t *testing.T) {
				t.Parallel() // Close waits for the end of what may be there
				s := serve(t)
				c := s.client(t)
				s.live["old"] = "{}"
				s.next(f.fault)
				err := op.call(t.Context(), c)
				again := f.kind == refused || f.kind == lost && !op.blind
				sent := s.requests()
				if op.book && errors.Is(err, client.ErrMaybeDone) { // its end may be there already
					sent = slices.DeleteFunc(sent, isFree)
				}
				if want := 1; again {
					want = 2
					if err != nil || len(sent) != want {
						t.Errorf("%v after %q, want success after two attempts", err, sent)
					}
				} else if err == nil || f.is != nil && !errors.Is(err, f.is) || len(sent) != want {
					t.Errorf("%v after %q, want one attempt and %v", err, sent, f.is)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				want := 1
				if op.name == "free" && again {
					want = 0
				}
				if (op.name == "select_and_reserve" || op.name == "select_pair") && again { // it is not the client's to free
					want = 2
				}
				if n := s.booked(); n != want {
					t.Errorf("%d reservations left, want %d: %q", n, want, s.requests())
				}
			})
		}
	}
}

// TestForever proves that attempts are bounded, that the error says that the call
// may have been done even if the last attempt was refused, and that a reservation that
// may be there is freed.
func TestForever(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		faults []fault
		is     []error
		sent   int
		freed  bool
	}{
		{"lost", []fault{lostAfter, lostAfter, lostAfter}, []error{client.ErrMaybeDone}, 3, true},
		{"refused", slices.Repeat([]fault{answers(503, overloaded)}, 3), []error{client.ErrOverloaded, client.ErrUnavailable}, 3, false},
		{"lost, refused", []fault{lostAfter, answers(429, `{"error":"x"}`)}, []error{client.ErrMaybeDone, client.ErrQueueFull}, 2, true},
		{"lost, conflict", []fault{lostAfter, answers(409, `{"error":"x"}`)}, []error{client.ErrMaybeDone, client.ErrConflict}, 2, true},
		{"internal", []fault{answers(500, `{"error":"x"}`)}, []error{client.ErrMaybeDone, client.ErrInternal}, 1, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			c := s.client(t)
			s.next(tc.faults...)
			_, err := c.SelectAndReserve(t.Context(), client.SelectRequest{Prompt: tokens})
			for _, is := range tc.is {
				if !errors.Is(err, is) {
					t.Errorf("%v is not %v", err, is)
				}
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			want := slices.Repeat([]string{"POST /select_and_reserve"}, tc.sent)
			all := s.requests()
			got := slices.DeleteFunc(slices.Clone(all), isFree)
			if tc.freed != (len(all) > len(got)) || !slices.Equal(got, want) {
				t.Errorf("sent %q", all)
			}
			if s.booked() != 0 {
				t.Error("the reservation is left")
			}
		})
	}
}

// TestForeignID proves that a conflict over an id of the caller's does not end
// the reservation of another caller.
func TestForeignID(t *testing.T) {
	s := serve(t)
	c := s.client(t)
	s.live["x"] = "{}"
	s.next(lostBefore, answers(409, `{"error":"x"}`))
	_, err := c.Lease(t.Context(), client.SelectRequest{ID: "x", Prompt: tokens})
	_ = c.Close()
	if !errors.Is(err, client.ErrConflict) || s.booked() != 1 {
		t.Errorf("%v, %d reservations", err, s.booked())
	}
}

// TestRefusedConnection proves that every call is repeated while no server listens,
// output blocks included, and that it is clear that nothing was sent.
func TestRefusedConnection(t *testing.T) {
	s := serve(t)
	c := s.client(t)
	s.Close()
	for _, op := range operations {
		err := op.call(t.Context(), c)
		lost, ok := errors.AsType[*client.LostError](err)
		if !ok || !lost.Unsent || errors.Is(err, client.ErrMaybeDone) {
			t.Errorf("%s: %v", op.name, err)
		}
	}
}

// TestSilent proves that a call ends with its context, and that a reservation that was
// made meanwhile is freed.
func TestSilent(t *testing.T) {
	for _, op := range operations {
		s := serve(t)
		c := s.client(t)
		s.live["old"] = "{}"
		ctx, cancel := context.WithCancel(t.Context())
		s.next(func(w http.ResponseWriter, r *http.Request, act http.HandlerFunc) {
			cancel() // the request has arrived
			silent(w, r, act)
		})
		err := op.call(ctx, c)
		cancel()
		if !errors.Is(err, context.Canceled) || !errors.Is(err, client.ErrMaybeDone) {
			t.Errorf("%s: %v", op.name, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if n := s.booked(); n > 1 {
			t.Errorf("%s: %d reservations left", op.name, n)
		}
	}
}

// TestRetryAfter proves that a wait is at least what the service asks for, at most
// Max, and ends with the context.
func TestRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		atMost := func(most time.Duration) *client.Client {
			b := client.Backoff{Attempts: 2, Base: 0, Jitter: 1, Max: most}
			return f.direct(t, func(o *client.Options) { o.Retry = &client.Retry{Overload: b, Connection: b} })
		}
		day, second := atMost(24*time.Hour), atMost(time.Second)
		for _, after := range []string{"3600", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			f.next(answers(503, overloaded, "Retry-After", after))
			_, err := day.Select(ctx, client.SelectRequest{Prompt: tokens})
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, client.ErrOverloaded) || len(f.requests()) != 1 {
				t.Errorf("Retry-After %s: %v", after, err)
			}
			if e, ok := errors.AsType[*client.Error](err); !ok || e.RetryAfter < 59*time.Minute || e.Message != "all busy" {
				t.Errorf("Retry-After %s: %+v", after, e)
			}
		}
		for c, wait := range map[*client.Client]time.Duration{day: time.Hour, second: time.Second} {
			f.next(answers(503, overloaded, "Retry-After", "3600"))
			begin := time.Now()
			if _, err := c.Select(t.Context(), client.SelectRequest{Prompt: tokens}); err != nil {
				t.Error(err)
			}
			if took := time.Since(begin); took < wait || took > wait+time.Millisecond {
				t.Errorf("answered after %v, want %v", took, wait)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestEndedContext proves that nothing is sent for a caller that has gone already.
func TestEndedContext(t *testing.T) {
	for _, op := range operations {
		s := serve(t)
		c := s.client(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := op.call(ctx, c); !errors.Is(err, context.Canceled) || errors.Is(err, client.ErrMaybeDone) {
			t.Errorf("%s: %v", op.name, err)
		}
		if err := c.Close(); err != nil || len(s.requests()) != 0 {
			t.Errorf("%s: sent %q, %v", op.name, s.requests(), err)
		}
	}
}
