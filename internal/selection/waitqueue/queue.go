package waitqueue

import (
	"sync"
	"time"

	"github.com/select-service/select-service/internal/selection/admission"
	"github.com/select-service/select-service/internal/selection/contract"
	"github.com/select-service/select-service/internal/selection/fairness"
)

// Request is a request that may have to wait. All methods but Waiter and Workers
// are called while the queue is locked: they must not call the queue.
type Request interface {
	// Waiter describes the request to the queue. Arrived and Value are set by the
	// queue.
	Waiter() admission.Waiter
	// Workers is the number of schedulable workers of the scope that take prompts, by which
	// the limits of the queue are multiplied.
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
	// TooLate is called when the request cannot have its first token in time any more, by its Waiter, and has not had its
	// turn. An error ends the request; without one it goes on to wait, behind the others. by is who would have paid.
	TooLate(by admission.Payer) error
	// Run serves the request. Its engine time is charged to the payer.
	Run(admission.Payer) error
}

// Config has the settings that the queues of all scopes share.
type Config struct {
	// Started is the origin of arrival times.
	Started time.Time
	// OverlapRefresh is how long a request may wait before its overlap is looked up again; 0:
	// forever.
	OverlapRefresh time.Duration
	// FairMemory bounds the accounts of fairness of all queues; nil: there is no bound.
	FairMemory *fairness.Memory
	// ShareFair: what accounts of fairness are served is told to other replicas.
	ShareFair bool
}

// Queue is the wait queue of one scope. If nothing can wait (Waits), nothing is serialised.
type Queue struct {
	waiters waiters // nil: nothing waits

	// mu guards waiters and closed. It is held while a request runs, so that the next one sees
	// the load which that one booked. Lock order: mu before the ledger's.
	mu     sync.Mutex
	closed error // the reason given to Close; nil: open
}

// waiters are the waiting requests of a Queue, and the rule by which they get their turns: see
// busy and delayed. The queue is locked while a method runs.
type waiters interface {
	// enter runs the request if it need not wait, and returns nil and its error. Otherwise it
	// adds the request. It sets since if that is zero.
	enter(r Request, since *time.Time) (*Queued, error)
	// remove takes a request out, and reports whether it was there.
	remove(w *Queued) bool
	// dispatch runs every request whose turn has come.
	dispatch()
	// end takes all requests out and ends them with reason.
	end(reason error)
	// pending returns how many requests wait, and the total tokens of their prompts.
	pending() (requests int, tokens uint64)
}

// New returns an empty queue of requests that wait for busy ranks. A nil policy lets nothing wait.
func New(config Config, policy *admission.Policy) *Queue {
	if policy == nil {
		return &Queue{}
	}
	q := &Queue{}
	b := &busy{config: config, queue: admission.NewQueue(policy), dispatchQueue: q.Dispatch}
	b.queue.LimitBytes(config.FairMemory)
	if config.ShareFair {
		for _, class := range b.queue.FairClasses(false) {
			class.Accounts.Share()
		}
	}
	q.waiters = b
	return q
}

// NewDelaying returns an empty queue of Delayable requests, each of which waits for longest at
// most.
func NewDelaying(config Config, longest time.Duration) *Queue {
	q := &Queue{}
	q.waiters = &delayed{config: config, longest: longest, dispatchQueue: q.Dispatch}
	return q
}

// Enabled reports whether requests wait for busy ranks.
func (q *Queue) Enabled() bool {
	_, ok := q.waiters.(*busy)
	return ok
}

// Delays reports whether requests are delayed, see NewDelaying.
func (q *Queue) Delays() bool {
	_, ok := q.waiters.(*delayed)
	return ok
}

// Waits reports whether requests can wait at all. If they cannot, callers run them directly.
func (q *Queue) Waits() bool { return q.waiters != nil }

// Queued is a waiting request.
type Queued struct {
	request Request
	done    chan struct{} // closed when err is set
	err     error

	waiter admission.Waiter // of busy

	// Of delayed:

	since  time.Time
	turn   float64 // seconds; the least comes first
	tokens uint64
	ended  bool // done is closed
}

// Done returns a channel that is closed when the request has run or has ended without running.
func (q *Queued) Done() <-chan struct{} { return q.done }

// Err returns the request's error. It must be called after Done is closed only.
func (q *Queued) Err() error { return q.err }

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
	return q.waiters.enter(r, since)
}

// Withdraw takes a request out of the queue and reports whether its turn had not come.
// Afterwards only the caller uses the request.
func (q *Queue) Withdraw(w *Queued) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiters.remove(w)
}

// Dispatch runs every request that can run now. It must be called after load went down or
// workers changed.
func (q *Queue) Dispatch() {
	if !q.Waits() {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiters.dispatch()
}

// Close ends every waiting request, and every later one, with reason: the service is shutting
// down, the scope has lost its last worker, or it has other policies.
func (q *Queue) Close(reason error) {
	if !q.Waits() {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = reason
	q.waiters.end(reason)
}

// Pending returns how many requests wait, and the total tokens of their prompts.
func (q *Queue) Pending() (requests int, tokens uint64) {
	if !q.Waits() {
		return 0, 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiters.pending()
}

// FairClasses lists the classes of the queue that are fair between tenants. waiting: FairClass.Waiting is wanted.
func (q *Queue) FairClasses(waiting bool) []admission.FairClass {
	b, ok := q.waiters.(*busy)
	if !ok {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return b.queue.FairClasses(waiting)
}

// FairBytes returns approximately what the accounts of fairness take.
func (q *Queue) FairBytes() int64 {
	b, ok := q.waiters.(*busy)
	if !ok {
		return 0
	}
	return b.queue.FairBytes()
}

// errPanicked is the error of a request that panicked while another caller's goroutine ran it.
var errPanicked = &contract.Error{Kind: contract.Internal, Text: "internal error"}
