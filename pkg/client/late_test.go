package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/select-service/select-service/pkg/client"
)

// after does what was asked when its caller has gone and some time has passed.
func after(d time.Duration) fault {
	return func(_ http.ResponseWriter, r *http.Request, act http.HandlerFunc) {
		go func() {
			time.Sleep(d)
			act(httptest.NewRecorder(), r)
		}()
		<-r.Context().Done()
	}
}

// TestLateBooking proves that a reservation is freed that is made only after its caller
// has gone and the first frees found nothing, that calls about its id wait for that,
// and that Close does.
func TestLateBooking(t *testing.T) {
	for _, late := range []time.Duration{150 * time.Millisecond, time.Second, 4 * time.Second} {
		for name, book := range map[string]func(ctx context.Context, c *client.Client) error{
			"select_and_reserve": func(ctx context.Context, c *client.Client) error {
				_, err := c.SelectAndReserve(ctx, client.SelectRequest{ID: "x", Prompt: tokens})
				return err
			},
			"reserve": func(ctx context.Context, c *client.Client) error {
				_, err := c.Reserve(ctx, client.ReserveRequest{ID: "x", Worker: new(uint64(1)), Prompt: tokens})
				return err
			},
			"lease": func(ctx context.Context, c *client.Client) error {
				_, err := c.Lease(ctx, client.SelectRequest{ID: "x", Prompt: tokens})
				return err
			},
		} {
			t.Run(fmt.Sprint(name, " ", late), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFake()
					c := f.direct(t)
					f.next(after(late), nil, lostAfter, lostBefore) // frees get lost, too
					ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
					defer cancel()
					start := time.Now()
					if err := book(ctx, c); !errors.Is(err, client.ErrMaybeDone) || time.Since(start) > time.Second {
						t.Errorf("%v after %v", err, time.Since(start))
					}
					if err := c.PrefillComplete(t.Context(), "x"); !errors.Is(err, client.ErrNotFound) || time.Since(start) < late {
						t.Errorf("a call about it: %v after %v", err, time.Since(start))
					}
					if err := c.Close(); err != nil {
						t.Error(err)
					}
					if f.booked() != 0 || time.Since(start) > 6*time.Second {
						t.Errorf("left %q after %v: %q", f.left(), time.Since(start), f.requests())
					}
				})
			})
		}
	}
}

// TestNeverBooked proves that frees of what never comes are few and end after 5 s.
func TestNeverBooked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := f.direct(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		f.next(func(_ http.ResponseWriter, r *http.Request, _ http.HandlerFunc) { <-r.Context().Done() })
		if _, err := c.Lease(ctx, client.SelectRequest{Prompt: tokens}); err == nil {
			t.Error("no error")
		}
		start := time.Now()
		_ = c.Close()
		if n := len(f.requests()) - 1; time.Since(start) != 5*time.Second || n < 6 || n > 10 {
			t.Errorf("%d frees in %v", n, time.Since(start))
		}
	})
}

// TestOneLease proves that an id has one lease at a time in a client: another one
// is refused while the first lives or is being ended, and possible after that; and
// that a repetition of the reservation that fails does not end what the lease holds.
func TestOneLease(t *testing.T) {
	req := client.SelectRequest{ID: "x", Prompt: tokens}
	again := map[string]func(c *client.Client) error{
		"lease": func(c *client.Client) error {
			_, err := c.Lease(context.Background(), req)
			return err
		},
		"lease on": func(c *client.Client) error {
			_, err := c.LeaseOn(context.Background(), client.ReserveRequest{ID: "x"})
			return err
		},
	}
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := f.direct(t)
		l, err := c.Lease(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		f.next()
		for name, call := range again {
			if err := call(c); !errors.Is(err, client.ErrConflict) || len(f.requests()) != 0 {
				t.Errorf("%s of a leased id: %v, sent %q", name, err, f.requests())
			}
		}
		f.next(silent)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.SelectAndReserve(short, req); !errors.Is(err, client.ErrMaybeDone) {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if f.booked() != 1 || l.Err() != nil || slices.ContainsFunc(f.requests(), isFree) {
			t.Errorf("%d reservations, %v, sent %q", f.booked(), l.Err(), f.requests())
		}

		gate := make(chan struct{})
		f.hook("DELETE x", func() { <-gate })
		freed := make(chan error)
		go func() { freed <- l.Free() }()
		synctest.Wait()
		waits := make(chan error)
		go func() { // has its turn behind the free
			other, err := c.Lease(context.Background(), req)
			if err == nil {
				err = other.Free()
			}
			waits <- err
		}()
		synctest.Wait()
		close(gate)
		if err := errors.Join(<-freed, <-waits, c.Close()); err != nil || f.booked() != 0 {
			t.Errorf("%v, left %q", err, f.left())
		}
	})
}

// TestEndingLease proves that a lease that is being ended does not keep a reservation
// that failed from being freed: the request for it may arrive behind the lease's end.
func TestEndingLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := f.direct(t)
		req := client.SelectRequest{ID: "x", Prompt: tokens}
		l, err := c.Lease(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		f.next(after(3*time.Second), func(w http.ResponseWriter, r *http.Request, act http.HandlerFunc) {
			act(w, r)
			time.Sleep(time.Second) // the repetition fails before the free has its answer
		})
		short, cancel := context.WithTimeout(t.Context(), 2600*time.Millisecond)
		defer cancel()
		repeated := make(chan error)
		go func() {
			_, err := c.SelectAndReserve(short, req)
			repeated <- err
		}()
		synctest.Wait()
		if err := l.Free(); err != nil { // does not wait for the hanging call for ever
			t.Error(err)
		}
		if err := <-repeated; !errors.Is(err, client.ErrMaybeDone) {
			t.Error(err)
		}
		if err := c.Close(); err != nil || f.booked() != 0 {
			t.Errorf("%v, left %q", err, f.left())
		}
	})
}

// TestBadLease proves that an answer with a lease that the service cannot have given
// is an error, and that the reservation is freed.
func TestBadLease(t *testing.T) {
	for _, seconds := range []string{"-1", "1e-12", "0.0999", "86400.1", "1e18", "1e308", "1e400", "null", `"30"`} {
		for _, id := range []string{"", "x"} {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				c := f.direct(t)
				f.leaseSeconds = seconds
				l, err := c.Lease(t.Context(), client.SelectRequest{ID: id, Prompt: tokens})
				if seconds == "null" && id != "" { // as of a reservation of the caller's
					if !errors.Is(err, client.ErrConflict) || f.booked() != 1 {
						t.Errorf("no lease: %v, %d reservations", err, f.booked())
					}
				} else if lost, ok := errors.AsType[*client.LostError](err); !ok || lost.Unsent || l != nil {
					t.Errorf("%s s: %v", seconds, err)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				if f.booked() != 0 && errors.Is(err, client.ErrMaybeDone) {
					t.Errorf("%s s: left %q", seconds, f.left())
				}
			})
		}
	}
}

// TestForeignBooking proves that a lease whose id is another reservation now is lost:
// calls about it are refused, and its end leaves the other reservation alone.
func TestForeignBooking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := f.direct(t)
		l := lease(t.Context(), t, c)
		f.next(answers(409, `{"error":"reservation has no lease"}`))
		time.Sleep(15 * time.Second)
		select {
		case <-l.Done():
		default:
			t.Error("the lease goes on")
		}
		f.next()
		for name, err := range map[string]error{
			"err": l.Err(), "prefill": l.PrefillComplete(t.Context()), "output": l.OutputBlock(t.Context(), nil),
		} {
			if !errors.Is(err, client.ErrLeaseLost) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := errors.Join(l.Free(), c.Close()); err != nil || f.booked() != 1 || len(f.requests()) != 0 {
			t.Errorf("%v, %d reservations, sent %q", err, f.booked(), f.requests())
		}
	})
}
