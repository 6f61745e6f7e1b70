package retries_test

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/select-service/select-service/pkg/client"
	"github.com/select-service/select-service/test/checks/e2e"
)

// TestOvertaken proves that a booking whose caller has gone is freed although the
// free overtakes it: the service gets the booking when it has answered that there is
// none.
func TestOvertaken(t *testing.T) {
	t.Parallel()
	s := start(t)
	on := workerIDs[1]
	for name, book := range map[string]func(ctx context.Context, c *client.Client) error{
		"lease": func(ctx context.Context, c *client.Client) error {
			_, err := c.Lease(ctx, request(100, 1))
			return err
		},
		"select_and_reserve": func(ctx context.Context, c *client.Client) error {
			_, err := c.SelectAndReserve(ctx, request(100, 1))
			return err
		},
		"reserve": func(ctx context.Context, c *client.Client) error {
			_, err := c.Reserve(ctx, client.ReserveRequest{Model: model, Worker: &on, Prompt: promptOf(100, 1)})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			// The caller goes when its request is on the way.
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			freed := make(chan struct{})
			once := sync.OnceFunc(func() { close(freed) })
			p := newProxy(t, s.URL(), func(r *http.Request) loss {
				if r.Method == http.MethodDelete {
					return loss{after: once}
				}
				return loss{before: func() { cancel(); <-freed }}
			})
			t.Cleanup(once)
			c := newClient(t, p.URL, nil)
			before := s.event("booked")
			if err := book(ctx, c); !errors.Is(err, context.Canceled) || !errors.Is(err, client.ErrMaybeDone) {
				t.Errorf("the caller got %v", err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			if err := errors.Join(s.carries(0), s.balance()); err != nil || s.event("booked") != before+1 {
				t.Errorf("%v, %d bookings", err, s.event("booked")-before)
			}
		})
	}
}

// TestOtherBooking proves that a lease whose id is somebody else's booking by now is
// lost, and leaves that alone.
func TestOtherBooking(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := newClient(t, s.URL(), nil)
	lease, err := c.Lease(t.Context(), request(100, 1))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.direct.Free(t.Context(), lease.ID()); err != nil {
		t.Fatal(err)
	}
	other := request(50, 2)
	other.ID = lease.ID()
	if _, err := s.direct.SelectAndReserve(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	e2e.Eventually(t, "the lease is known as lost", lost(lease))
	if err := errors.Join(lease.Free(), c.Close(), s.carries(1)); err != nil {
		t.Error(err)
	}
	if err := errors.Join(s.direct.Free(t.Context(), other.ID), s.carries(0), s.balance()); err != nil {
		t.Error(err)
	}
}

// TestHeldID proves that a client with a lease refuses another one of the id, and
// does not end it when a repetition of the booking loses its answer.
func TestHeldID(t *testing.T) {
	t.Parallel()
	s := start(t)
	var cutting atomic.Bool
	p := newProxy(t, s.URL(), func(r *http.Request) loss {
		if cutting.Load() && r.URL.Path == "/v1.6/select_and_reserve" {
			return loss{cut: nothing}
		}
		return loss{}
	})
	c := newClient(t, p.URL, nil)
	req := request(100, 1)
	req.ID = "held"
	lease, err := c.Lease(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Lease(t.Context(), req); !errors.Is(err, client.ErrConflict) {
		t.Errorf("a second lease: %v", err)
	}
	cutting.Store(true)
	if _, err := c.SelectAndReserve(t.Context(), req); !errors.Is(err, client.ErrMaybeDone) {
		t.Errorf("a repetition without answers: %v", err)
	}
	if err := errors.Join(lease.PrefillComplete(t.Context()), lease.Err(), s.carries(1)); err != nil {
		t.Error(err)
	}
	if err := errors.Join(lease.Free(), s.carries(0), s.balance()); err != nil {
		t.Error(err)
	}
}
