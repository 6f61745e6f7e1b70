package replicasync

import (
	"github.com/select-service/select-service/pkg/reservations"
)

// outbox numbers the events of this replica and keeps them until they are
// published. Numbers are given in the order of the queue, over all scopes: one
// series for renewals, which not everybody hears, and one for the others.
type outbox struct {
	queue *queue[event]
	// The last numbers given, guarded by queue.mu.
	events, renewals uint64
}

// number is the last one given in the series of a kind.
func (o *outbox) number(k kind) *uint64 {
	if k == renewed {
		return &o.renewals
	}
	return &o.events
}

// outboxBytes bounds the hashes that wait to be published. Most are those of live
// bookings, which are in memory in any case.
const outboxBytes = 256 << 20

func newOutbox(limit int) *outbox { return &outbox{queue: newQueue[event](limit, outboxBytes)} }

// weight is what an event counts in the outbox, in bytes.
func weight(e *event) int { return 8 * len(e.hashes) }

// put numbers an event and appends it. The number is used up even if the queue
// is full, so that the others notice.
func (o *outbox) put(e *event) (number uint64, ok bool) {
	o.queue.mu.Lock()
	defer o.queue.mu.Unlock()
	last := o.number(e.kind)
	*last++
	e.sequence = *last
	return *last, o.queue.putLocked(*e, weight(e))
}

// skip uses up a number for an event that cannot be sent.
func (o *outbox) skip(k kind) (number uint64) {
	o.queue.mu.Lock()
	defer o.queue.mu.Unlock()
	last := o.number(k)
	*last++
	return *last
}

// last are the last numbers given.
func (o *outbox) last() (events, renewals uint64) {
	o.queue.mu.Lock()
	defer o.queue.mu.Unlock()
	return o.events, o.renewals
}

// published are the numbers up to which none waits. What take has returned must
// have been published.
func (o *outbox) published() (events, renewals uint64) {
	o.queue.mu.Lock()
	defer o.queue.mu.Unlock()
	events, renewals = o.events, o.renewals
	for i := o.queue.n - 1; i >= 0; i-- {
		switch e := o.queue.at(i); e.kind {
		case renewed:
			renewals = e.sequence - 1
		default:
			events = e.sequence - 1
		}
	}
	return events, renewals
}

func (o *outbox) take(buf []event) []event { return o.queue.take(buf, weight) }

// enqueue numbers a step of the own ledger and has it published.
func (r *Replica) enqueue(k kind, e reservations.Event) (number uint64) {
	size, known := r.scopes.BlockSize(e.Scope)
	if !known {
		r.counts.drop(dropSendScope)
		return r.outbox.skip(k)
	}
	out := localEvent(k, r.opt.Process, e, size)
	number, ok := r.outbox.put(&out)
	if !ok {
		r.counts.drop(dropSendQueueFull)
	}
	return number
}

// Booked is part of reservations.Observer. It never waits for a peer.
func (r *Replica) Booked(e reservations.Event) (sequence uint64) { return r.enqueue(booked, e) }

// PrefillCompleted is part of reservations.Observer.
func (r *Replica) PrefillCompleted(e reservations.Event) { r.enqueue(prefillCompleted, e) }

// Freed is part of reservations.Observer.
func (r *Replica) Freed(e reservations.Event) { r.enqueue(freed, e) }

// Renewed is part of reservations.Observer.
func (r *Replica) Renewed(e reservations.Event) { r.enqueue(renewed, e) }
