package selecting

import (
	"context"
	"errors"
	"time"

	"github.com/select-service/select-service/internal/admission"
	"github.com/select-service/select-service/internal/contract"
	"github.com/select-service/select-service/internal/scopes"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations"
)

// runOrWait runs the selection, at once or when its turn comes. If the caller goes away, the
// selection leaves the wait queue, and its reservation is cancelled if there is one.
func (c *selection) runOrWait(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return errClientGone(err)
	}
	queue := c.scope.Queue
	if !queue.Waits() {
		return c.Run()
	}
	var booked chan struct{}
	if c.isRetry() {
		id := *c.request.ReservationID
		booked = c.api.idempotency.waiters.add(id)
		defer c.api.idempotency.waiters.remove(id, booked)
	}
	queued, err := queue.Enter(c, &c.wait.since)
	if queued == nil {
		return queueError(err)
	}
	c.countQueued()
	defer func() {
		c.countDequeued()
		c.wait.queued, c.wait.time = true, time.Since(c.wait.since)
	}()
	select {
	case <-queued.Done():
	case <-booked:
		if queue.Withdraw(queued) {
			return errBookedMeanwhile
		}
		<-queued.Done()
	case <-ctx.Done():
		if queue.Withdraw(queued) {
			return errClientGone(ctx.Err())
		}
		<-queued.Done()
	}
	if err := ctx.Err(); err != nil {
		if queued.Err() == nil && c.reserve {
			c.cancelReservation()
		}
		return errClientGone(err)
	}
	return queued.Err()
}

func errClientGone(err error) error {
	return &contract.Error{Kind: contract.Cancelled, Text: "the client went away", Err: err}
}

// queueDetails is the "details" object of a queue rejection.
type queueDetails struct {
	PolicyClass string `json:"policy_class"`
	LimitKind   string `json:"limit_kind"`
	Current     uint64 `json:"current"`
	Limit       uint64 `json:"limit"`
}

// queueError returns the caller's error for one of the wait queue.
func queueError(err error) error {
	if err == nil {
		return nil
	}
	full, ok := errors.AsType[*admission.LimitError](err)
	if !ok {
		return err
	}
	limit := ""
	if full.LimitKind == admission.LimitBytes {
		limit = contract.LimitMemory
	}
	return &contract.Error{Kind: contract.QueueRejected, Text: full.Error(), Err: err, Limit: limit, Details: queueDetails{
		PolicyClass: full.PolicyClass, LimitKind: string(full.LimitKind), Current: full.Current, Limit: full.Limit,
	}}
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

// Workers implements waitqueue.Request.
func (c *selection) Workers() int { return len(c.snapshot.Workers) }

// CanRun implements waitqueue.Request.
func (c *selection) CanRun(class *admission.Class) (free bool) {
	c.api.ledger.Look(c.request.Scope, nil, func(v *reservations.View) {
		for _, e := range c.eligible {
			if !v.Known(e.Slot, e.Rank) || !class.Busy(v.Load(e.Slot).PrefillTokens, batchLimit(e.Worker)) {
				free = true
				return
			}
		}
	})
	return free
}

// CanRunNow implements waitqueue.Request.
func (c *selection) CanRunNow(class *admission.Class) bool {
	if snap := c.api.catalog.Snapshot(c.request.Scope); snap != c.snapshot {
		if c.Refresh(0) != nil {
			return true
		}
	}
	return c.CanRun(class)
}

// BeforeWait implements waitqueue.Request. The reservation that a retry repeats may have been
// booked after the retry looked for it, and may keep the rank busy, so it checks again. Then it
// drops what is not needed while waiting.
func (c *selection) BeforeWait(class *admission.Class) error {
	if c.isRetry() && c.api.idempotency.conflict(*c.request.ReservationID, c.request.Scope) != nil {
		return errBookedMeanwhile
	}
	return c.keepHashes(class.Name)
}

// Refresh implements waitqueue.Request.
func (c *selection) Refresh(overlapAge time.Duration) error {
	snap, state, err := c.api.scopes.Schedulable(c.request.Scope)
	if err != nil {
		return err
	}
	if state != c.scope {
		return scopes.ErrGone
	}
	if c.waitedFor(overlapAge) || snap != c.snapshot {
		c.scope.Overlap(c.local, &c.overlap, &c.predicted)
	}
	c.snapshot = snap
	c.expireStale()
	return c.listEligible()
}

// waitedFor reports whether the request first came to a queue at least d ago; never for d = 0.
func (c *selection) waitedFor(d time.Duration) bool { return d > 0 && time.Since(c.wait.since) >= d }

// batchLimit returns the worker's max_num_batched_tokens, 0 if unknown.
func batchLimit(w *catalog.Worker) uint64 {
	if w.MaxNumBatchedTokens == nil {
		return 0
	}
	return *w.MaxNumBatchedTokens
}
