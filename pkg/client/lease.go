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
	// freeTimeout bounds the attempts to free a lease, or a reservation that a failed
	// call may have made. If none reaches the service, the service ends both by itself.
	freeTimeout = 5 * time.Second
	// freeWait is how long the free of a lease waits for earlier calls about its
	// reservation: a call that hangs must not keep the load booked.
	freeWait = freeTimeout / 2
)

// Lease is a reservation that is not left behind. It is freed by Free, by
// Client.Close and when its context ends. Until then it is renewed in the background;
// if the renewals stop, the service ends it.
type Lease struct {
	client    *Client
	selection Selection
	stop      context.CancelFunc // begins the end
	ending    <-chan struct{}    // closed when the lease is to end
	over      chan struct{}      // closed when the reservation is freed or lost
	err       error              // of the free; read after over
	lost      atomic.Bool
}

// ErrLeaseLost means that the service no longer has the reservation: it was not
// renewed in time, its worker is gone, or its id is another reservation now.
var ErrLeaseLost = errors.New("lease is lost")

// Lease chooses a worker and books the load until the lease is freed. The lease ends
// with ctx. If the call fails and may have booked, the reservation is freed in the
// background. ErrConflict: the ID belongs to another request, to a reservation without
// a lease, or to a Lease of this client that has not ended.
func (c *Client) Lease(ctx context.Context, req SelectRequest) (*Lease, error) {
	return c.newLease(ctx, func(l *Lease) (Selection, error) { return c.selectAndReserve(ctx, req, l) })
}

// LeaseOn is Lease on a rank that the caller chose, or for what Select chose
// under the same ID. Only the fields of a Reservation are set in its Selection.
func (c *Client) LeaseOn(ctx context.Context, req ReserveRequest) (*Lease, error) {
	return c.newLease(ctx, func(l *Lease) (Selection, error) { return c.reserve(ctx, req, l) })
}

// newLease returns a lease of the reservation that book makes.
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
	if c.closing.Err() != nil { // Close may have missed it
		return nil, errors.Join(ErrClosed, l.Free())
	}
	return l, nil
}

// attach gives the lease its reservation.
func (l *Lease) attach(s Selection) {
	l.selection = s
	l.client.mu.Lock()
	defer l.client.mu.Unlock()
	l.client.leases[s.ID] = l
}

// leaseOf returns the lease of a reservation until it is freed or lost, nil for none.
func (c *Client) leaseOf(id string) *Lease {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leases[id]
}

// hasLease reports whether a reservation has a lease that is not ending.
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

// run renews the lease until ctx ends, and frees it then. Renewals do not wait for
// earlier calls: a call that hangs must not let the lease run out.
func (l *Lease) run(ctx context.Context) {
	defer l.client.tasks.Done()
	defer close(l.over)
	defer l.stop()
	every := min(l.client.lease, time.Duration(l.selection.LeaseSeconds*float64(time.Second))) / 3 // the lease may have been made by a client with a shorter one
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
			if errors.Is(err, ErrNotFound) || errors.Is(err, ErrConflict) { // conflict: the id now belongs to a reservation without a lease
				l.lost.Store(true)
				l.forget()
				return
			} // else the next renewal may succeed
		}
	}
}

// release frees the reservation, even if ctx has ended.
func (l *Lease) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freeTimeout)
	defer cancel()
	waiting, stop := context.WithTimeout(ctx, freeWait)
	defer stop()
	if release, err := l.client.order.acquire(waiting, l.ID()); err == nil {
		defer release()
	}
	defer l.forget() // before the next call about the id, which may make a new lease
	if err := l.client.freeInBackground(ctx, l.ID(), true); err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("free reservation %s: %w", l.ID(), err)
	}
	return nil
}

// forget removes the lease from the client.
func (l *Lease) forget() {
	l.client.mu.Lock()
	defer l.client.mu.Unlock()
	if l.client.leases[l.ID()] == l {
		delete(l.client.leases, l.ID())
	}
}

// Selection returns what was chosen and booked.
func (l *Lease) Selection() Selection { return l.selection }

// ID returns the id of the reservation.
func (l *Lease) ID() string { return l.selection.ID }

// PrefillComplete takes the prefill tokens off the rank; call it at the first output
// token.
func (l *Lease) PrefillComplete(ctx context.Context) error {
	if err := l.Err(); err != nil {
		return err // the id may belong to another reservation
	}
	return l.client.PrefillComplete(ctx, l.selection.ID)
}

// OutputBlock adds one generated block; see Client.OutputBlock. After Free it does
// nothing.
func (l *Lease) OutputBlock(ctx context.Context, decay *float64) error {
	if err := l.Err(); err != nil {
		return err
	}
	return l.client.OutputBlock(ctx, l.selection.ID, decay)
}

// Done returns a channel that is closed when the lease is over: freed or lost.
func (l *Lease) Done() <-chan struct{} { return l.over }

// Err returns ErrLeaseLost once the service has answered that it no longer has the
// reservation, else nil. The lease is over then, and calls about it are refused.
func (l *Lease) Err() error {
	if l.lost.Load() {
		return ErrLeaseLost
	}
	return nil
}

// Free ends the reservation and returns when that is done; a second call returns the
// result of the first. For a lost lease it does nothing. An error, after at most 5 s,
// means that the service could not be reached; then the service ends the lease by
// itself when it runs out.
func (l *Lease) Free() error {
	l.stop()
	<-l.over
	return l.err
}
