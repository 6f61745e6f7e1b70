package client

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

const (
	minLease = 100 * time.Millisecond
	maxLease = 24 * time.Hour
	// freeTimeout bounds the calls that end a lease; what they cannot reach, the
	// service ends by itself.
	freeTimeout = 5 * time.Second
)

// Lease is a booking that cannot be left behind. It is freed by Free, when the
// context it was made with ends, and by Client.Close; meanwhile it is renewed in
// the background, and if that stops the service ends it.
type Lease struct {
	client    *Client
	selection Selection
	stop      context.CancelFunc // ends keep
	over      chan struct{}      // closed when the booking is freed or lost
	err       error              // of the free; read after over
	lost      atomic.Bool
}

// ErrLeaseLost says that the service no longer knows the booking: it could not be
// renewed in time, or its worker is gone.
var ErrLeaseLost = errors.New("lease is lost")

// Lease chooses a worker and books the load until the lease is freed. The lease
// ends with ctx. If the booking fails after it may have been made, it is freed in
// the background.
func (c *Client) Lease(ctx context.Context, req SelectRequest) (*Lease, error) {
	return c.hold(ctx, func() (Selection, error) { return c.selectAndReserve(ctx, req, c.lease.Seconds()) })
}

// LeaseOn is Lease on a rank that the caller chose, or for what Select chose
// under the same ID. Only the fields of a Reservation are set in its Selection.
func (c *Client) LeaseOn(ctx context.Context, req ReserveRequest) (*Lease, error) {
	return c.hold(ctx, func() (Selection, error) {
		r, err := c.reserve(ctx, req, c.lease.Seconds())
		return Selection{
			ID: r.ID, Model: r.Model, RoutingGroup: r.RoutingGroup, Worker: r.Worker, DPRank: r.DPRank, Endpoint: r.Endpoint,
			LeaseSeconds: r.LeaseSeconds,
		}, err
	})
}

// hold books and takes the booking into care.
func (c *Client) hold(ctx context.Context, book func() (Selection, error)) (*Lease, error) {
	if !c.begin() {
		return nil, ErrClosed
	}
	selection, err := book()
	if err == nil && selection.LeaseSeconds == 0 { // an earlier booking of the caller's, which stays
		err = fmt.Errorf("%w: reservation %s was made without a lease", ErrConflict, selection.ID)
	}
	if err != nil {
		c.tasks.Done()
		return nil, err
	}
	held, stop := context.WithCancel(ctx)
	l := &Lease{client: c, selection: selection, stop: stop, over: make(chan struct{})}
	c.mu.Lock()
	closed := c.closed
	if !closed {
		c.leases[l] = struct{}{}
	}
	c.mu.Unlock()
	go l.keep(held)
	if closed {
		return nil, errors.Join(ErrClosed, l.Free())
	}
	return l, nil
}

// keep renews the lease until ctx ends, and frees it then. Renewals take no turns:
// a call that hangs must not end the lease.
func (l *Lease) keep(ctx context.Context) {
	defer l.client.tasks.Done()
	defer close(l.over)
	defer l.stop()
	defer l.forget()
	every := min(l.client.lease, time.Duration(l.selection.LeaseSeconds*float64(time.Second))) / 3 // another client's may be shorter
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			l.err = l.client.release(ctx, l.selection.ID)
			return
		case <-ticker.C:
			attempt, cancel := context.WithTimeout(ctx, every)
			err := l.client.renew(attempt, l.selection.ID)
			cancel()
			if errors.Is(err, ErrNotFound) {
				l.lost.Store(true)
				return
			} // else the next renewal may go through
		}
	}
}

func (l *Lease) forget() {
	l.client.mu.Lock()
	defer l.client.mu.Unlock()
	delete(l.client.leases, l)
}

// Selection is what was chosen and booked.
func (l *Lease) Selection() Selection { return l.selection }

// ID names the booking.
func (l *Lease) ID() string { return l.selection.ID }

// PrefillComplete is to be called at the first output token.
func (l *Lease) PrefillComplete(ctx context.Context) error {
	return l.client.PrefillComplete(ctx, l.selection.ID)
}

// OutputBlock adds one generated block, see Client.OutputBlock. After Free it
// does nothing.
func (l *Lease) OutputBlock(ctx context.Context, decay *float64) error {
	return l.client.OutputBlock(ctx, l.selection.ID, decay)
}

// Done is closed when the lease is over: freed or lost.
func (l *Lease) Done() <-chan struct{} { return l.over }

// Err is ErrLeaseLost once the service has said that it does not know the booking
// any more, else nil.
func (l *Lease) Err() error {
	if l.lost.Load() {
		return ErrLeaseLost
	}
	return nil
}

// Free ends the booking and returns when that is done; a second call only
// returns what the first did. An error says that the service could not be
// reached: it ends the lease by itself when its time has passed.
func (l *Lease) Free() error {
	l.stop()
	<-l.over
	return l.err
}
