package replicasync

import (
	"sync"

	"github.com/select-service/select-service/pkg/memory"
	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/reservations/history"
)

// queue is a bounded FIFO queue between goroutines. An item that does not fit is
// refused: producers never wait.
type queue[T any] struct {
	// ready has one element whenever the queue may have become non-empty.
	ready chan struct{}

	// mu guards the fields below. It is an innermost lock.
	mu       sync.Mutex
	ring     []T
	head, n  int
	maxItems int
	bytes    int
	maxBytes int
	account  *memory.Account // of the bytes and itemBytes for each item
}

// itemBytes is what an item takes besides the bytes passed to put.
const itemBytes = 256

// ringMin is the smallest ring of a queue, in items.
const ringMin = 64

func newQueue[T any](maxItems, maxBytes int, account *memory.Account) *queue[T] {
	return &queue[T]{ready: make(chan struct{}, 1), maxItems: maxItems, maxBytes: maxBytes, account: account}
}

// put appends an item of that many bytes. It returns false if the queue is full.
func (q *queue[T]) put(item T, bytes int) bool {
	q.mu.Lock()
	ok := q.putLocked(item, bytes)
	q.mu.Unlock()
	return ok
}

func (q *queue[T]) putLocked(item T, bytes int) bool {
	if q.n >= q.maxItems || q.bytes > q.maxBytes-bytes || !q.account.Reserve(int64(bytes+itemBytes)) {
		return false
	}
	if q.n == len(q.ring) {
		q.resize(max(ringMin, 2*q.n))
	}
	q.ring[(q.head+q.n)%len(q.ring)] = item
	q.n++
	q.bytes += bytes
	if q.n == 1 {
		select {
		case q.ready <- struct{}{}:
		default:
		}
	}
	return true
}

// take moves up to cap(buf) items into buf. bytes returns the size of an item as it was
// passed to put. If no item is returned, ready will have an element when the next one
// comes.
func (q *queue[T]) take(buf []T, bytes func(*T) int) []T {
	q.mu.Lock()
	defer q.mu.Unlock()
	buf = buf[:0]
	var zero T
	for q.n > 0 && len(buf) < cap(buf) {
		item := &q.ring[q.head]
		n := bytes(item)
		q.bytes -= n
		q.account.Release(int64(n + itemBytes))
		buf = append(buf, *item)
		*item = zero
		q.head = (q.head + 1) % len(q.ring)
		q.n--
	}
	if len(q.ring) > ringMin && 8*q.n < len(q.ring) {
		q.resize(max(ringMin, len(q.ring)/2))
	}
	return buf
}

func (q *queue[T]) resize(size int) {
	ring := make([]T, size)
	for i := range q.n {
		ring[i] = q.ring[(q.head+i)%len(q.ring)]
	}
	q.ring, q.head = ring, 0
}

// at returns the i-th waiting item. It needs q.mu.
func (q *queue[T]) at(i int) *T { return &q.ring[(q.head+i)%len(q.ring)] }

// len returns how many items wait.
func (q *queue[T]) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.n
}

// outbox numbers the events of this replica and keeps them until they are published.
// Numbers are given in the order of the queue, over all scopes, in two series: one
// for renewals, to which not every replica listens, and one for the other events.
type outbox struct {
	queue *queue[event]
	// The last numbers given, guarded by queue.mu.
	events, renewals uint64
}

// lastNumber returns the counter of the series of a kind. It needs queue.mu.
func (o *outbox) lastNumber(k kind) *uint64 {
	if k == renewed {
		return &o.renewals
	}
	return &o.events
}

// outboxBytes bounds the hashes and messages that wait to be published. Most are those of live
// reservations, which are in memory in any case.
const outboxBytes = 256 << 20

func newOutbox(limit int, account *memory.Account) *outbox {
	return &outbox{queue: newQueue[event](limit, outboxBytes, account)}
}

// weight is the size of an event in the outbox, in bytes.
func weight(e *event) int { return 8*len(e.hashes) + len(e.payload) }

// put numbers an event and appends it. The number is used up even if the queue is full
// (ok is false), so that other replicas notice that an event is missing.
func (o *outbox) put(e *event) (number uint64, ok bool) {
	o.queue.mu.Lock()
	defer o.queue.mu.Unlock()
	last := o.lastNumber(e.kind)
	*last++
	e.sequence = *last
	return *last, o.queue.putLocked(*e, weight(e))
}

// skip uses up a number for an event that cannot be sent.
func (o *outbox) skip(k kind) (number uint64) {
	o.queue.mu.Lock()
	defer o.queue.mu.Unlock()
	last := o.lastNumber(k)
	*last++
	return *last
}

// last returns the last numbers given.
func (o *outbox) last() (events, renewals uint64) {
	o.queue.mu.Lock()
	defer o.queue.mu.Unlock()
	return o.events, o.renewals
}

// published returns the numbers up to which no event waits. It may be called only when
// everything that take has returned was published.
func (o *outbox) published() (events, renewals uint64) {
	o.queue.mu.Lock()
	defer o.queue.mu.Unlock()
	events, renewals = o.events, o.renewals
	for i := o.queue.n - 1; i >= 0; i-- {
		switch e := o.queue.at(i); e.kind {
		case sessionBound, sessionUnbound, servedState: // have no numbers
		case renewed:
			renewals = e.sequence - 1
		default:
			events = e.sequence - 1
		}
	}
	return events, renewals
}

func (o *outbox) take(buf []event) []event { return o.queue.take(buf, weight) }

// enqueue numbers a step of the own ledger and queues it for publication.
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

// Booked implements reservations.Observer. It never waits for a peer.
func (r *Replica) Booked(e reservations.Event) (sequence uint64) { return r.enqueue(booked, e) }

// PrefillCompleted implements reservations.Observer.
func (r *Replica) PrefillCompleted(e reservations.Event) { r.enqueue(prefillCompleted, e) }

// Freed implements reservations.Observer.
func (r *Replica) Freed(e reservations.Event) {
	r.enqueue(freed, e)
	if e.Origin.Numbered() {
		name := history.Name{Origin: e.Origin, Hash: history.NameHash(e.Scope, e.ID, e.Rank)}
		r.core.freed.add(r.opt.Process, name, r.now())
	}
}

// Renewed implements reservations.Observer.
func (r *Replica) Renewed(e reservations.Event) { r.enqueue(renewed, e) }
