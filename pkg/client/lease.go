package client

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Bounds of a lease in the contract, inclusive.
const (
	minLease = 100 * time.Millisecond
	maxLease = 24 * time.Hour
)

const (
	// freeTimeout bounds the calls that end a lease or a booking that failed; what
	// they cannot reach, the service ends by itself.
	freeTimeout = 5 * time.Second
	// freeWait is how long the end of a lease waits for calls about its booking that
	// were made before: one that hangs must not keep the load.
	freeWait = freeTimeout / 2
)

// Lease is a booking that cannot be left behind. It is freed by Free, when the
// context it was made with ends, and by Client.Close; meanwhile it is renewed in
// the background, and if that stops the service ends it.
type Lease struct {
	client    *Client
	selection Selection
	stop      context.CancelFunc // begins the end
	ending    <-chan struct{}    // closed when the lease is to end
	over      chan struct{}      // closed when the booking is freed or lost
	err       error              // of the free; read after over
	lost      atomic.Bool
}

// ErrLeaseLost says that the service no longer has the booking: it could not be
// renewed in time, its worker is gone, or the id is another booking now.
var ErrLeaseLost = errors.New("lease is lost")

// Lease chooses a worker and books the load until the lease is freed. The lease
// ends with ctx. If the booking fails after it may have been made, it is freed in
// the background. ErrConflict: the ID is taken by another request, by a booking
// without a lease, or by a Lease of this client that has not ended.
func (c *Client) Lease(ctx context.Context, req SelectRequest) (*Lease, error) {
	return c.newLease(ctx, func(l *Lease) (Selection, error) { return c.selectAndReserve(ctx, req, l) })
}

// LeaseOn is Lease on a rank that the caller chose, or for what Select chose
// under the same ID. Only the fields of a Reservation are set in its Selection.
func (c *Client) LeaseOn(ctx context.Context, req ReserveRequest) (*Lease, error) {
	return c.newLease(ctx, func(l *Lease) (Selection, error) { return c.reserve(ctx, req, l) })
}

// newLease makes a lease of a booking.
func (c *Client) newLease(ctx context.Context, book func(*Lease) (Selection, error)) (*Lease, error) {
	if !c.beginTask() {
		return nil, ErrClosed
	}
	held, stop := context.WithCancel(ctx)
	l := &Lease{client: c, stop: stop, ending: held.Done(), over: make(chan struct{})}
	if _, err := book(l); err != nil {
		stop()
		c.tasks.Done()
		return nil, err
	}
	go l.run(held)
	if c.closing.Err() != nil { // Close may not have seen it
		return nil, errors.Join(ErrClosed, l.Free())
	}
	return l, nil
}

// attach makes the booking the lease's.
func (l *Lease) attach(s Selection) {
	l.selection = s
	l.client.mu.Lock()
	defer l.client.mu.Unlock()
	l.client.leases[s.ID] = l
}

// leaseOf is the lease of a booking until it is freed or lost; nil: there is none.
func (c *Client) leaseOf(id string) *Lease {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leases[id]
}

// hasLease tells whether a booking has a lease that is to go on.
func (c *Client) hasLease(id string) bool {
	l := c.leaseOf(id)
	if l == nil {
		return false
	}
	select {
	case <-l.ending:
		return false
	default:
		return true
	}
}

// run renews the lease until ctx ends, and frees it then. Renewals take no turns:
// a call that hangs must not end the lease.
func (l *Lease) run(ctx context.Context) {
	defer l.client.tasks.Done()
	defer close(l.over)
	defer l.stop()
	every := min(l.client.lease, time.Duration(l.selection.LeaseSeconds*float64(time.Second))) / 3 // another client's may be shorter
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			l.err = l.release(ctx)
			return
		case <-ticker.C:
			attempt, cancel := context.WithTimeout(ctx, every)
			err := l.client.renew(attempt, l.ID())
			cancel()
			if errors.Is(err, ErrNotFound) || errors.Is(err, ErrConflict) { // a conflict: what has the id has no lease
				l.lost.Store(true)
				l.forget()
				return
			} // else the next renewal may go through
		}
	}
}

// release ends the booking, also after ctx.
func (l *Lease) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freeTimeout)
	defer cancel()
	waiting, stop := context.WithTimeout(ctx, freeWait)
	defer stop()
	if give, err := l.client.order.acquire(waiting, l.ID()); err == nil {
		defer give()
	}
	defer l.forget() // before somebody else has the turn, who may lease the id again
	if err := l.client.freeInBackground(ctx, l.ID(), true); err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("free reservation %s: %w", l.ID(), err)
	}
	return nil
}

// forget takes the lease out of the client's care.
func (l *Lease) forget() {
	l.client.mu.Lock()
	defer l.client.mu.Unlock()
	if l.client.leases[l.ID()] == l {
		delete(l.client.leases, l.ID())
	}
}

// Selection is what was chosen and booked.
func (l *Lease) Selection() Selection { return l.selection }

// ID names the booking.
func (l *Lease) ID() string { return l.selection.ID }

// PrefillComplete is to be called at the first output token.
func (l *Lease) PrefillComplete(ctx context.Context) error {
	if err := l.Err(); err != nil {
		return err // the id may be another booking
	}
	return l.client.PrefillComplete(ctx, l.selection.ID)
}

// OutputBlock adds one generated block, see Client.OutputBlock. After Free it
// does nothing.
func (l *Lease) OutputBlock(ctx context.Context, decay *float64) error {
	if err := l.Err(); err != nil {
		return err
	}
	return l.client.OutputBlock(ctx, l.selection.ID, decay)
}

// Done is closed when the lease is over: freed or lost.
func (l *Lease) Done() <-chan struct{} { return l.over }

// Err is ErrLeaseLost once the service has said that it does not have the booking
// any more, else nil. The lease is over then, and calls about it are refused.
func (l *Lease) Err() error {
	if l.lost.Load() {
		return ErrLeaseLost
	}
	return nil
}

// Free ends the booking and returns when that is done; a second call only
// returns what the first did. It does nothing to a lease that is lost. An error
// comes after up to 5 s and says that the service could not be reached: it ends the
// lease by itself when its time has passed.
func (l *Lease) Free() error {
	l.stop()
	<-l.over
	return l.err
}
