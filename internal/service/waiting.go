package service

import (
	"context"
	"errors"
	"time"

	"github.com/select-service/select-service/internal/admission"
	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// runOrWait runs the selection, at once or when its turn comes. A caller who goes
// away leaves the wait queue, and no reservation of it stays.
func (c *selection) runOrWait(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return clientGone(err)
	}
	if !c.scope.Queue.Enabled() {
		return c.Run()
	}
	var booked chan struct{}
	if c.repeats() {
		id := *c.request.ReservationID
		booked = c.service.waitedIDs.add(id)
		defer c.service.waitedIDs.remove(id, booked)
	}
	if c.since.IsZero() {
		c.since = time.Now()
	}
	queued, err := c.scope.Queue.Enter(c, c.since)
	if queued == nil {
		return rejection(err)
	}
	c.enterQueue()
	defer func() {
		c.leaveQueue()
		c.queued, c.waited = true, time.Since(c.since)
	}()
	select {
	case <-queued.Done():
	case <-booked:
		if c.scope.Queue.Withdraw(queued) {
			return errBooked
		}
		<-queued.Done()
	case <-ctx.Done():
		if c.scope.Queue.Withdraw(queued) {
			return clientGone(ctx.Err())
		}
		<-queued.Done()
	}
	if err := ctx.Err(); err != nil {
		if queued.Err() == nil && c.reserve {
			c.takeBack()
		}
		return clientGone(err)
	}
	return queued.Err()
}

func clientGone(err error) error {
	return &contract.Error{Kind: contract.Cancelled, Text: "the client went away", Err: err}
}

// Workers implements waitqueue.Request.
func (c *selection) Workers() int { return len(c.snap.Workers) }

// BeforeWait implements waitqueue.Request: since the reservation that the request
// may repeat was looked for, it may have been booked, and keep the rank busy.
func (c *selection) BeforeWait() error {
	if c.repeats() && c.service.live(*c.request.ReservationID, c.request.Scope) != nil {
		return errBooked
	}
	return nil
}

// Waiter implements waitqueue.Request.
func (c *selection) Waiter() admission.Waiter {
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

// CanRunNow implements waitqueue.Request.
func (c *selection) CanRunNow(class *admission.Class) bool {
	if snap := c.service.catalog.Snapshot(c.request.Scope); snap != c.snap {
		if c.Refresh(false) != nil {
			return true
		}
	}
	return c.CanRun(class)
}

// CanRun implements waitqueue.Request.
func (c *selection) CanRun(class *admission.Class) (free bool) {
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
