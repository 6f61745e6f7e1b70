package waitqueue

import (
	"sync"
	"time"

	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/internal/selection/contract"
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
	// CanRun reports whether one of the request's ranks is not busy for the class, on the
	// snapshot of workers that the request has.
	CanRun(*admission.Class) bool
	// CanRunNow is CanRun on the current workers. It also returns true if the request has no
	// rank left: Refresh then returns the error.
	CanRunNow(*admission.Class) bool
	// BeforeWait is called just before the request is queued in a class. An error ends the
	// request. It is the place to release memory that is only needed to run at once.
	BeforeWait(*admission.Class) error
	// Refresh updates a request that has waited to the current workers. It looks up their cached
	// blocks again if they have changed, or if the request has waited for overlapAge (0: never).
	Refresh(overlapAge time.Duration) error
	// Run serves the request.
	Run() error
}

// Config has the settings that the queues of all scopes share.
type Config struct {
	// Started is the origin of arrival times.
	Started time.Time
	// OverlapRefresh is how long a request may wait before its overlap is looked up again; 0:
	// forever.
	OverlapRefresh time.Duration
}

// Queue is the wait queue of one scope. Without a policy, and unless it holds requests, nothing
// waits and nothing is serialised.
type Queue struct {
	config Config
	policy *admission.Policy // nil: requests do not wait for busy ranks
	held   *held             // nil: requests are not held; not nil only without a policy

	// mu guards queue, the requests in held, and closed. It is held while a request runs, so
	// that the next one sees the load which that one booked. Lock order: mu before the ledger's.
	mu     sync.Mutex
	queue  *admission.Queue
	closed error // the reason given to Close; nil: open
}

// New returns an empty queue. A nil policy lets nothing wait.
func New(config Config, policy *admission.Policy) *Queue {
	q := &Queue{config: config, policy: policy}
	if policy != nil {
		q.queue = admission.NewQueue(policy)
	}
	return q
}

// Enabled reports whether requests wait for busy ranks.
func (q *Queue) Enabled() bool { return q.policy != nil }

// Waits reports whether requests can wait at all. If they cannot, callers run them directly.
func (q *Queue) Waits() bool { return q.policy != nil || q.held != nil }

// Queued is a waiting request.
type Queued struct {
	waiter  admission.Waiter
	request Request
	done    chan struct{} // closed when err is set
	err     error

	// The fields below are for held requests only.

	since  time.Time
	turn   float64 // seconds; the least comes first
	tokens uint64
	ended  bool // done is closed
}

// Done returns a channel that is closed when the request has run or has ended without running.
func (w *Queued) Done() <-chan struct{} { return w.done }

// Err returns the request's error. It must be called after Done is closed only.
func (w *Queued) Err() error { return w.err }

// Enter runs the request if it need not wait, and returns nil and its error. Otherwise it
// queues the request and returns its place. since is when the request first came to a wait
// queue; if it is zero, Enter sets it, after dispatching the requests before it. The queue must
// be able to wait (Waits). Errors are those of the request, the reason of Close, and
// *admission.LimitError.
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

// Withdraw takes a request out of the queue and reports whether its turn had not come.
// Afterwards only the caller uses the request.
func (q *Queue) Withdraw(w *Queued) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.held != nil {
		return q.held.remove(w)
	}
	return q.queue.Remove(&w.waiter)
}

// Dispatch runs every request that can run now. It must be called after load went down or
// workers changed.
func (q *Queue) Dispatch() {
	if !q.Waits() {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.held != nil {
		if len(q.held.byArrival) > 0 {
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

// errPanicked is the error of a request that panicked while another caller's goroutine ran it.
var errPanicked = &contract.Error{Kind: contract.Internal, Text: "internal error"}

// runLocked runs a request whose turn has come. If it panics, its own caller gets errPanicked:
// the panic is in another caller's goroutine.
func (q *Queue) runLocked(w *Queued) {
	w.err = errPanicked // stays if Refresh or Run panics
	defer close(w.done)
	err := w.request.Refresh(q.config.OverlapRefresh)
	if err == nil {
		err = w.request.Run()
	}
	w.err = err
}

// Close ends every waiting request, and every later one, with reason: the service is shutting
// down, or the scope has lost its last worker.
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

// Pending returns how many requests wait, and the total tokens of their prompts.
func (q *Queue) Pending() (requests int, tokens uint64) {
	if !q.Waits() {
		return 0, 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.held != nil {
		return len(q.held.byArrival), q.held.tokens
	}
	return q.queue.Len(), q.queue.Tokens()
}
