package client

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"
)

// attemptTimeout bounds an attempt of a call that the service answers at once, because a
// call that hangs delays the later calls about the same reservation.
const attemptTimeout = 10 * time.Second

// PrefillComplete takes the reservation's prefill tokens off its rank; call it at the
// first output token. Calling it again is not an error.
func (c *Client) PrefillComplete(ctx context.Context, id string) error {
	return c.inOrder(ctx, id, func() error {
		return c.do(ctx, call{method: http.MethodPost, path: reservation(id) + "/prefill_complete", repeatable: true, limit: attemptTimeout}, nil)
	})
}

// OutputBlock adds one generated block to the reservation. decay, if not nil, is the
// new weight, in [0, 1], of the blocks that only this reservation holds on its rank.
// After Free of the same id it does nothing (decision E6). It is not retried when its
// answer is lost, because the block might count twice.
func (c *Client) OutputBlock(ctx context.Context, id string, decay *float64) error {
	return c.inOrder(ctx, id, func() error {
		if c.order.wasFreed(id) {
			return nil
		}
		body := struct {
			Decay *float64 `json:"decay_fraction,omitempty"`
		}{decay}
		return c.do(ctx, call{method: http.MethodPost, path: reservation(id) + "/output_block", body: body, limit: attemptTimeout}, nil)
	})
}

// Renew restarts the lease of a reservation. ErrNotFound: there is no such reservation.
// ErrConflict: it has no lease.
func (c *Client) Renew(ctx context.Context, id string) error {
	return c.inOrder(ctx, id, func() error { return c.renew(ctx, id) })
}

func (c *Client) renew(ctx context.Context, id string) error {
	return c.do(ctx, call{method: http.MethodPost, path: reservation(id) + "/renew", repeatable: true, limit: attemptTimeout}, nil)
}

// Free ends a reservation. ErrNotFound: there is no such reservation.
func (c *Client) Free(ctx context.Context, id string) error {
	return c.inOrder(ctx, id, func() error { return c.free(ctx, id, true) })
}

// free ends a reservation. known: the reservation was made for certain, so that a 404
// after a lost attempt means that the lost attempt ended it.
func (c *Client) free(ctx context.Context, id string, known bool) error {
	err := c.do(ctx, call{method: http.MethodDelete, path: reservation(id), repeatable: true, goneIsDone: known, limit: attemptTimeout}, nil)
	if err == nil || errors.Is(err, ErrNotFound) {
		c.order.markFreed(id)
	}
	return err
}

// inOrder runs a call about one reservation after the earlier ones are done.
func (c *Client) inOrder(ctx context.Context, id string, f func() error) error {
	release, err := c.order.acquire(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	return f()
}

// uncertainBackoff is the wait between the attempts to free a reservation that may have
// been made: short at first, for a booking request that is a little late, then growing,
// for one that a proxy or a busy service still holds.
var uncertainBackoff = Backoff{Base: time.Second / 10, Jitter: time.Second / 10, Max: time.Second}

// freeUncertain frees a reservation that may have been made. The request that books it may
// still be under way and arrive after an attempt, which then finds nothing. Hence it tries
// again until an attempt succeeds or freeTimeout has passed. A reservation that is left
// ends by the service's own limits.
func (c *Client) freeUncertain(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freeTimeout)
	defer cancel()
	for attempt := 1; c.freeInBackground(ctx, id, false) != nil; attempt++ {
		if pause(ctx, uncertainBackoff.wait(attempt, 0)) != nil {
			return
		}
	}
}

// freeInBackground is free with a bound on how many run at once, so that many frees do
// not open as many connections.
func (c *Client) freeInBackground(ctx context.Context, id string, known bool) error {
	select {
	case c.freeSlots <- struct{}{}:
		defer func() { <-c.freeSlots }()
		return c.free(ctx, id, known)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func reservation(id string) string { return "/reservations/" + url.PathEscape(id) }
