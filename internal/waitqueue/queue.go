// Package waitqueue holds the requests of one scope that wait while every rank
// that they could use is busy, and gives each its turn. Which one is next is
// decided by package admission.
package waitqueue

import (
	"sync"
	"time"

	"github.com/select-service/select-service/internal/admission"
	"github.com/select-service/select-service/internal/contract"
)

// Request is a request that may have to wait. All methods but Waiter and Workers
// are called while the queue is locked: they must not call the queue.
type Request interface {
	// Waiter describes the request to the queue. Arrived and Value are set by the
	// queue.
	Waiter() admission.Waiter
	// Workers is the number of schedulable workers of the scope, by which the
	// limits of the queue are multiplied.
	Workers() int
	// CanRun reports whether one of the request's ranks is not busy for the class,
	// as far as the request has looked at the workers.
	CanRun(*admission.Class) bool
	// CanRunNow is CanRun on the workers of this moment. It is true, too, for a
	// request that has no rank left: Refresh then returns its answer.
	CanRunNow(*admission.Class) bool
	// BeforeWait is the last look before the request is queued in a class: an error is
	// its answer. What is needed while it runs only can be given back.
	BeforeWait(*admission.Class) error
	// Refresh looks at the workers of this moment for a request that has waited. It
	// looks at what they have cached if they have changed, or if the request has
	// waited for overlapAge; 0 is never.
	Refresh(overlapAge time.Duration) error
	// Run serves the request.
	Run() error
}

// Config is what the queues of all scopes have in common.
type Config struct {
	// Started is the time from which arrivals are counted.
	Started time.Time
	// OverlapRefresh is how long a request may wait before its overlap is looked up
	// again; 0 is never.
	OverlapRefresh time.Duration
}

// Queue is the wait queue of one scope. Without a policy nothing waits and
// nothing is serialised.
type Queue struct {
	config Config
	policy *admission.Policy // nil: nothing waits because ranks are busy
	held   *held             // nil: nothing is held; only without a policy

	// mu guards queue, what is held, and closed. It is held while a request runs, so that the next
	// one is judged by the load which that one booked. Lock order: mu before the
	// ledger's.
	mu     sync.Mutex
	queue  *admission.Queue
	closed error // why no request can enter any more; nil: it is open
}

// New returns an empty queue. A nil policy lets nothing wait.
func New(config Config, policy *admission.Policy) *Queue {
	q := &Queue{config: config, policy: policy}
	if policy != nil {
		q.queue = admission.NewQueue(policy)
	}
	return q
}

// Enabled reports whether requests wait while ranks are busy.
func (q *Queue) Enabled() bool { return q.policy != nil }

// Waits reports whether requests can wait at all. Where they cannot, the caller runs
// them itself.
func (q *Queue) Waits() bool { return q.policy != nil || q.held != nil }

// Queued is a request that waits.
type Queued struct {
	waiter  admission.Waiter
	request Request
	done    chan struct{} // closed when err is set
	err     error

	// Of a request that is held:

	since  time.Time
	work   float64 // see Held
	tokens uint64
	ended  bool // done is closed
}

// Done returns a channel that is closed when the request has had its turn.
func (w *Queued) Done() <-chan struct{} { return w.done }

// Err is how the request ended. It must be called after Done only.
func (w *Queued) Err() error { return w.err }

// Enter runs the request if it need not wait, and returns what became of it.
// Otherwise it queues the request and returns where it waits. since is when the
// request first came to a wait queue: Enter sets it if it is zero, once requests
// before it have had their turn. The queue must be enabled. Errors are those of the
// request, the reason of Close, and *admission.LimitError.
func (q *Queue) Enter(r Request, since *time.Time) (*Queued, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed != nil {
		return nil, q.closed
	}
	if q.held != nil {
		return q.enterHeldLocked(r.(Held), since)
	}
	q.dispatchLocked() // requests that can run by now go first
	if since.IsZero() {
		*since = time.Now()
	}
	w := &Queued{request: r, waiter: r.Waiter()}
	w.waiter.Arrived = since.Sub(q.config.Started).Seconds()
	w.waiter.Value = w
	class := q.queue.Classify(&w.waiter)
	if r.CanRun(class) {
		return nil, r.Run()
	}
	if err := r.BeforeWait(class); err != nil {
		return nil, err
	}
	if err := q.queue.Add(&w.waiter, r.Workers()); err != nil {
		return nil, err
	}
	w.done = make(chan struct{})
	return w, nil
}

// Withdraw takes a request out of the queue; it is false if its turn has come.
// After it only the caller uses the request.
func (q *Queue) Withdraw(w *Queued) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.held != nil {
		return q.held.remove(w)
	}
	return q.queue.Remove(&w.waiter)
}

// Dispatch runs every request that can run now. It is to be called after load
// went down or workers changed.
func (q *Queue) Dispatch() {
	if !q.Waits() {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.held != nil {
		if len(q.held.waiting) > 0 {
			q.scanLocked()
		}
		return
	}
	q.dispatchLocked()
}

func (q *Queue) dispatchLocked() {
	for {
		w := q.queue.Next(func(w *admission.Waiter) bool {
			return w.Value.(*Queued).request.CanRunNow(w.Class())
		})
		if w == nil {
			return
		}
		q.runLocked(w.Value.(*Queued))
	}
}

// errPanicked is for a request that panicked in the turn that another one gave it.
var errPanicked = &contract.Error{Kind: contract.Internal, Text: "internal error"}

// runLocked runs a request whose turn has come. Its caller gets an answer also if
// it panics: the panic is in another caller's goroutine.
func (q *Queue) runLocked(w *Queued) {
	w.err = errPanicked // until it is decided
	defer close(w.done)
	err := w.request.Refresh(q.config.OverlapRefresh)
	if err == nil {
		err = w.request.Run()
	}
	w.err = err
}

// Close answers every request that waits, and every one that still enters, with
// reason: the service is shutting down, or the scope has no workers any more.
func (q *Queue) Close(reason error) {
	if !q.Waits() {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = reason
	if q.held != nil {
		q.held.closeLocked(reason)
		return
	}
	var all []*admission.Waiter
	for w := range q.queue.All() {
		all = append(all, w)
	}
	for _, w := range all {
		q.queue.Remove(w)
		queued := w.Value.(*Queued)
		queued.err = reason
		close(queued.done)
	}
}

// Pending returns how many requests wait, and the tokens of their prompts.
func (q *Queue) Pending() (requests int, tokens uint64) {
	if !q.Waits() {
		return 0, 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.held != nil {
		return len(q.held.waiting), q.held.tokens
	}
	return q.queue.Len(), q.queue.Tokens()
}
