package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// patience bounds an attempt of a call that the service answers at once. A call that
// hangs would keep those behind it, about the same reservation, from being made.
const patience = 10 * time.Second

// PrefillComplete takes the booking's prefill tokens off its rank; to be called
// at the first output token. Repetitions are no errors.
func (c *Client) PrefillComplete(ctx context.Context, id string) error {
	return c.about(ctx, id, func() error {
		return c.do(ctx, call{method: http.MethodPost, path: reservation(id) + "/prefill_complete", repeatable: true, limit: patience}, nil)
	})
}

// OutputBlock adds one generated block to the booking. decay, if not nil, is the
// weight in [0, 1] of the blocks that only this booking holds from now on. After
// Free of the same id it does nothing (decision E6). It is not repeated when its
// answer is lost: the block might count twice.
func (c *Client) OutputBlock(ctx context.Context, id string, decay *float64) error {
	return c.about(ctx, id, func() error {
		if c.turns.wasFreed(id) {
			return nil
		}
		body := struct {
			Decay *float64 `json:"decay_fraction,omitempty"`
		}{decay}
		return c.do(ctx, call{method: http.MethodPost, path: reservation(id) + "/output_block", body: body, limit: patience}, nil)
	})
}

// Renew gives a booking with a lease its full time again.
func (c *Client) Renew(ctx context.Context, id string) error {
	return c.about(ctx, id, func() error { return c.renew(ctx, id) })
}

func (c *Client) renew(ctx context.Context, id string) error {
	return c.do(ctx, call{method: http.MethodPost, path: reservation(id) + "/renew", repeatable: true, limit: patience}, nil)
}

// Free ends a booking. ErrNotFound: there was none.
func (c *Client) Free(ctx context.Context, id string) error {
	return c.about(ctx, id, func() error { return c.free(ctx, id) })
}

func (c *Client) free(ctx context.Context, id string) error {
	err := c.do(ctx, call{method: http.MethodDelete, path: reservation(id), repeatable: true, gone: true, limit: patience}, nil)
	if err == nil || errors.Is(err, ErrNotFound) {
		c.turns.free(id)
	}
	return err
}

// about runs a call about one reservation when those before it are done.
func (c *Client) about(ctx context.Context, id string, f func() error) error {
	give, err := c.turns.take(ctx, id)
	if err != nil {
		return err
	}
	defer give()
	return f()
}

// release ends a booking whose context may have ended. It does not wait for long
// for a call that hangs: the booking has to go all the same.
func (c *Client) release(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freeTimeout)
	defer cancel()
	waiting, stop := context.WithTimeout(ctx, freeTimeout/2)
	defer stop()
	if give, err := c.turns.take(waiting, id); err == nil {
		defer give()
	}
	return c.end(ctx, id)
}

// end is free for a booking that may be there; only some are ended at once, so
// that many leases do not make as many connections.
func (c *Client) end(ctx context.Context, id string) error {
	var err error
	select {
	case c.ends <- struct{}{}:
		err = c.free(ctx, id)
		<-c.ends
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("free reservation %s: %w", id, err)
	}
	return nil
}

func reservation(id string) string { return "/reservations/" + url.PathEscape(id) }
