package service

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/select-service/select-service/internal/admission"
	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// line is where the selections of one scope wait while every rank that they
// could use is busy. Without a policy nothing waits and nothing is serialised.
type line struct {
	service *Service
	policy  *admission.Policy

	// mu guards queue and closed. It is held while a selection runs, so that the
	// next one is judged by the load which that one booked. Lock order: mu before
	// the ledger's.
	mu     sync.Mutex
	queue  *admission.Queue
	closed error // why nobody can enter any more
}

func newLine(s *Service, policy *admission.Policy) *line {
	l := &line{service: s, policy: policy}
	if policy != nil {
		l.queue = admission.NewQueue(policy)
	}
	return l
}

// ticket is a selection that waits.
type ticket struct {
	admission.Waiter
	selection *selection
	done      chan struct{} // closed when err is set
	err       error
}

// do runs the selection, at once or when its turn comes. A caller who goes away
// leaves the line, and nothing stays booked.
func (l *line) do(ctx context.Context, c *selection) error {
	if err := ctx.Err(); err != nil {
		return clientGone(err)
	}
	if l.policy == nil {
		return c.run()
	}
	var booked chan struct{}
	if c.repeats() {
		id := *c.request.ReservationID
		booked = l.service.waitedIDs.add(id)
		defer l.service.waitedIDs.remove(id, booked)
	}
	t, err := l.enter(c)
	if t == nil {
		return err
	}
	c.enterQueue()
	defer func() {
		c.leaveQueue()
		c.queued, c.waited = true, time.Since(c.since)
	}()
	select {
	case <-t.done:
	case <-booked:
		if l.withdraw(t) {
			return errBooked
		}
		<-t.done
	case <-ctx.Done():
		if l.withdraw(t) {
			return clientGone(ctx.Err())
		}
		<-t.done
	}
	if err := ctx.Err(); err != nil {
		if t.err == nil && c.reserve {
			c.takeBack()
		}
		return clientGone(err)
	}
	return t.err
}

func clientGone(err error) error {
	return &contract.Error{Kind: contract.Cancelled, Text: "the client went away", Err: err}
}

// withdraw takes a ticket out of the line; it is false if its turn has come.
// After it nobody else uses the ticket.
func (l *line) withdraw(t *ticket) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queue.Remove(&t.Waiter)
}

// enter runs the selection if it need not wait, and else queues it.
func (l *line) enter(c *selection) (*ticket, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed != nil {
		return nil, l.closed
	}
	l.drain() // whoever can run by now goes first
	if c.since.IsZero() {
		c.since = time.Now()
	}
	t := &ticket{selection: c}
	t.Waiter = c.waiter()
	t.Arrived = c.since.Sub(l.service.started).Seconds()
	t.Value = t
	if c.canRun(l.queue.Classify(&t.Waiter)) {
		return nil, c.run()
	}
	if c.repeats() && c.service.live(*c.request.ReservationID, c.request.Scope) != nil {
		return nil, errBooked // since it was looked for: the rank may be busy with just that
	}
	if err := l.queue.Add(&t.Waiter, len(c.snap.Workers)); err != nil {
		return nil, rejection(err)
	}
	t.done = make(chan struct{})
	return t, nil
}

// pump lets everybody go who can run now.
func (l *line) pump() {
	if l.policy == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drain()
}

func (l *line) drain() {
	for {
		w := l.queue.Next(func(w *admission.Waiter) bool {
			return w.Value.(*ticket).selection.ready(w.Class())
		})
		if w == nil {
			return
		}
		l.serve(w.Value.(*ticket))
	}
}

// errPanicked is for a selection that panicked in the turn that another one gave it.
var errPanicked = &contract.Error{Kind: contract.Internal, Text: "internal error"}

// serve runs a selection whose turn has come. Who waits for it is told also if it
// panics: the panic is in another caller's goroutine.
func (l *line) serve(t *ticket) {
	t.err = errPanicked // until it is decided
	defer close(t.done)
	after := l.service.config.OverlapRefresh
	err := t.selection.refresh(after > 0 && time.Since(t.selection.since) >= after)
	if err == nil {
		err = t.selection.run()
	}
	t.err = err
}

// close answers everybody who waits, and whoever still comes: the service is
// shutting down, or the pool is gone.
func (l *line) close(reason error) {
	if l.policy == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = reason
	var all []*admission.Waiter
	for w := range l.queue.All() {
		all = append(all, w)
	}
	for _, w := range all {
		l.queue.Remove(w)
		t := w.Value.(*ticket)
		t.err = reason
		close(t.done)
	}
}

func (l *line) pending() (requests int, tokens uint64) {
	if l.policy == nil {
		return 0, 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queue.Len(), l.queue.Tokens()
}

// workersChanged is told when a worker came, changed or left. Requests that
// wait for workers of a pool that is gone are tried anew.
func (s *Service) workersChanged() {
	s.mu.Lock()
	left := s.left
	s.left = nil
	s.mu.Unlock()
	for _, p := range left {
		p.line.close(errPoolGone)
	}
	s.loadChanged()
}

// loadChanged is told when load went down.
func (s *Service) loadChanged() {
	if !s.config.Admission.Enabled() {
		return // nobody ever waits
	}
	for _, p := range *s.pools.Load() {
		p.line.pump()
	}
}

// waiter describes the selection to the queue.
func (c *selection) waiter() admission.Waiter {
	best := uint64(0)
	for _, e := range c.eligible {
		cand := candidate(e, &c.overlap, &reservations.View{})
		best = max(best, c.weights.Cached(c.size, &cand))
	}
	w := admission.Waiter{
		ClassHeader:    c.request.PolicyClass,
		StrictPriority: c.request.StrictPriority,
		PriorityJump:   c.request.PriorityJump,
		Tokens:         c.size.Tokens,
		Uncached:       c.size.Tokens - min(c.size.Tokens, best),
		Lane:           admission.Lane{Filter: c.filter.Key()},
	}
	if p := c.request.Pinned; p != nil {
		w.Lane.Pinned, w.Lane.Rank = true, *p
	}
	return w
}

// ready is canRun on the catalog of this moment. A request that no rank is left
// for is ready too: it must be told.
func (c *selection) ready(class *admission.Class) bool {
	if snap := c.service.catalog.Snapshot(c.request.Scope); snap != c.snap {
		if c.refresh(false) != nil {
			return true
		}
	}
	return c.canRun(class)
}

// canRun tells whether one of the eligible ranks is not busy for the class.
func (c *selection) canRun(class *admission.Class) (free bool) {
	c.service.ledger.Look(c.request.Scope, nil, func(v *reservations.View) {
		for _, e := range c.eligible {
			if !v.Known(e.Slot, e.Rank) || !class.Busy(v.Prefill[e.Slot], batchLimit(e.Worker)) {
				free = true
				return
			}
		}
	})
	return free
}

// batchLimit is the worker's max_num_batched_tokens, 0 if unknown.
func batchLimit(w *catalog.Worker) uint64 {
	if w.MaxNumBatchedTokens == nil {
		return 0
	}
	return *w.MaxNumBatchedTokens
}

// queueDetails is the "details" object of a queue rejection.
type queueDetails struct {
	PolicyClass string `json:"policy_class"`
	LimitKind   string `json:"limit_kind"`
	Current     uint64 `json:"current"`
	Limit       uint64 `json:"limit"`
}

func rejection(err error) error {
	var full *admission.LimitError
	if !errors.As(err, &full) {
		return err
	}
	return &contract.Error{Kind: contract.QueueRejected, Text: full.Error(), Err: err, Details: queueDetails{
		PolicyClass: full.PolicyClass, LimitKind: string(full.LimitKind), Current: full.Current, Limit: full.Limit,
	}}
}
