package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/pkg/client"
)

// lease takes one, which must work.
func lease(ctx context.Context, t *testing.T, c *client.Client) *client.Lease {
	t.Helper()
	l, err := c.Lease(ctx, client.SelectRequest{Prompt: tokens})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func away(http.ResponseWriter, *http.Request, http.HandlerFunc) { panic(io.EOF) }

// TestLeaseLife proves that a lease is renewed each third of its time, ends once,
// by Free, by its context or by Close, and is silent after that.
func TestLeaseLife(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(c *client.Client, l *client.Lease, cancel func()) error
	}{
		{"free", func(_ *client.Client, l *client.Lease, _ func()) error { return errors.Join(l.Free(), l.Free()) }},
		{"context", func(_ *client.Client, l *client.Lease, cancel func()) error { cancel(); <-l.Done(); return l.Free() }},
		{"close", func(c *client.Client, l *client.Lease, _ func()) error {
			return errors.Join(c.Close(), c.Close(), l.Free())
		}},
		{"all at once", func(c *client.Client, l *client.Lease, cancel func()) error {
			var g sync.WaitGroup
			faults := make([]error, 4)
			for i, end := range []func() error{l.Free, c.Close, func() error { cancel(); return nil }, l.Free} {
				g.Go(func() { faults[i] = end() })
			}
			g.Wait()
			return errors.Join(faults...)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				c := f.direct(t)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				l := lease(ctx, t, c)
				time.Sleep(95 * time.Second)
				if err := tc.end(c, l, cancel); err != nil {
					t.Error(err)
				}
				<-l.Done()
				if err := l.OutputBlock(t.Context(), nil); err != nil || l.Err() != nil {
					t.Errorf("output block after the end: %v, %v", err, l.Err())
				}
				time.Sleep(time.Minute)
				seen := f.requests()
				path := "/reservations/" + l.ID()
				want := slices.Concat([]string{"POST /select_and_reserve"}, slices.Repeat([]string{"POST " + path + "/renew"}, 9), []string{"DELETE " + path})
				if !slices.Equal(seen, want) || f.booked() != 0 {
					t.Errorf("sent %q", seen)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				if _, err := c.Lease(t.Context(), client.SelectRequest{}); !errors.Is(err, client.ErrClosed) {
					t.Errorf("lease after Close: %v", err)
				}
				if _, err := c.SelectAndReserve(t.Context(), client.SelectRequest{}); !errors.Is(err, client.ErrClosed) {
					t.Errorf("booking after Close: %v", err)
				}
			})
		})
	}
}

// TestLeaseLost proves that a lease that the service does not know ends, and one
// that it only cannot be asked about goes on.
func TestLeaseLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := f.direct(t)
		l := lease(t.Context(), t, c)
		f.next(slices.Repeat([]fault{away}, 12)...)
		time.Sleep(45 * time.Second)
		select {
		case <-l.Done():
			t.Fatal("ended without a word of the service")
		default:
		}
		if seen := f.requests(); len(seen) < 13 {
			t.Errorf("%d renewals, want more after the service came back", len(seen))
		}
		f.mu.Lock()
		clear(f.live)
		f.mu.Unlock()
		<-l.Done()
		if !errors.Is(l.Err(), client.ErrLeaseLost) || l.Free() != nil {
			t.Errorf("lost lease: %v, %v", l.Err(), l.Free())
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestFreeAway proves that ending a lease takes some seconds if the service is
// away, and says so.
func TestFreeAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := f.direct(t)
		l := lease(t.Context(), t, c)
		f.next(slices.Repeat([]fault{away}, 100)...)
		start := time.Now()
		if err := c.Close(); err == nil || !errors.Is(l.Free(), client.ErrMaybeDone) {
			t.Errorf("freed: %v", err)
		}
		if d := time.Since(start); d > 6*time.Second {
			t.Errorf("took %v", d)
		}
	})
}

// TestHangingCall proves that a call that hangs neither lets the lease expire nor
// keeps it from being freed, and that it is repeated in the end.
func TestHangingCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := f.direct(t)
		l := lease(t.Context(), t, c)
		f.next(silent)
		if err := l.PrefillComplete(t.Context()); err != nil || f.prefills != 2 {
			t.Errorf("%v, done %d times", err, f.prefills)
		}
		f.next(silent)
		done := make(chan error)
		go func() { done <- l.PrefillComplete(t.Context()) }()
		synctest.Wait()
		start := time.Now()
		if err := l.Free(); err != nil || f.booked() != 0 || time.Since(start) > 5*time.Second {
			t.Errorf("free behind a call that hangs: %v after %v", err, time.Since(start))
		}
		if err := <-done; !errors.Is(err, client.ErrNotFound) {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestCloseInterrupts proves that Close does not wait for a reservation that waits in
// the queue or between two attempts, and leaves none of it.
func TestCloseInterrupts(t *testing.T) {
	for name, fault := range map[string]fault{"queue": silent, "back-off": answers(503, overloaded, "Retry-After", "60")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				c := f.direct(t)
				f.next(fault)
				done := make(chan error, 2)
				go func() {
					_, err := c.Lease(t.Context(), client.SelectRequest{ID: "x", Prompt: tokens})
					done <- err
				}()
				synctest.Wait()
				go func() { // waits for its turn behind the first
					_, err := c.Lease(t.Context(), client.SelectRequest{ID: "x", Prompt: tokens})
					done <- err
				}()
				synctest.Wait()
				start := time.Now()
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				for range 2 {
					if err := <-done; !errors.Is(err, client.ErrClosed) {
						t.Error(err)
					}
				}
				if f.booked() != 0 || time.Since(start) > 5*time.Second {
					t.Errorf("%d reservations left after %v", f.booked(), time.Since(start))
				}
			})
		})
	}
}

// TestFailedIDAgain proves that the end of a reservation that failed is over before
// the same id is booked again.
func TestFailedIDAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := f.direct(t)
		for range 50 {
			f.next(silent)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := c.Lease(ctx, client.SelectRequest{ID: "x", Prompt: tokens})
			cancel()
			if err == nil {
				t.Fatal("no error")
			}
			l, err := c.Lease(t.Context(), client.SelectRequest{ID: "x", Prompt: tokens})
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if f.booked() != 1 {
				t.Fatalf("the lease was freed: %q", f.requests())
			}
			if err := l.Free(); err != nil {
				t.Error(err)
			}
		}
		_ = c.Close()
	})
}

// TestCloseRace proves that whatever Close meets, every reservation is ended: leases
// being made, renewed, used and freed, in many goroutines. No time passes meanwhile,
// so that no call ends for want of it.
func TestCloseRace(t *testing.T) {
	for round := range int64(10) {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { closeRace(t, 10*round) })
		})
	}
}

// closeRace closes a client after at least so many leases.
func closeRace(t *testing.T, leases int64) {
	f := newFake()
	c := f.direct(t, func(o *client.Options) { o.Lease = time.Second })
	var g sync.WaitGroup
	var made atomic.Int64
	for i := range 8 {
		g.Go(func() {
			for {
				l, err := c.Lease(t.Context(), client.SelectRequest{Prompt: tokens})
				if err != nil {
					if !errors.Is(err, client.ErrClosed) {
						t.Error(err)
					}
					return
				}
				made.Add(1)
				_ = l.PrefillComplete(t.Context())
				if i%2 == 0 {
					if err := l.Free(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	for made.Load() < leases {
		runtime.Gosched() // to sleep would wait for all others to be blocked
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	g.Wait()
	if left := f.left(); len(left) > 0 {
		t.Fatalf("reservations %q are left", left)
	}
}

// TestManyLeases proves that the ends of many leases use few connections.
func TestManyLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		var now, most atomic.Int64
		c := f.direct(t)
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 1000 {
			id := fmt.Sprint(i)
			if _, err := c.Lease(ctx, client.SelectRequest{ID: id, Prompt: tokens}); err != nil {
				t.Fatal(err)
			}
			f.hook("DELETE "+id, func() {
				if n := now.Add(1); n > most.Load() {
					most.Store(n)
				}
				time.Sleep(time.Millisecond)
				now.Add(-1)
			})
		}
		cancel()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if f.booked() != 0 || most.Load() > 64 {
			t.Errorf("%d left, %d at once", f.booked(), most.Load())
		}
	})
}
