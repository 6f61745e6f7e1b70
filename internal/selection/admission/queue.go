package admission

import (
	"cmp"
	"fmt"
	"iter"

	"github.com/select-service/select-service/internal/selection/fairness"
	"github.com/select-service/select-service/pkg/catalog"
)

// Queue holds the waiting requests of one scope. It is not safe for concurrent
// use.
//
// The owner must follow one rule: after load went down, it calls Next, books the result, and
// repeats until Next returns nil. Then no waiter can run, and a newcomer that can run at once
// overtakes no waiter.
//
// Add and Remove cost O(log n). So does Next if the first waiter of a class can run; else it makes
// one call of canRun for each lane before the first one that can, whatever the number of waiters.
type Queue struct {
	policy    *Policy
	backlogs  []*backlog // by Class.index
	waiting   int
	unlimited int // waiters in classes without a request limit
	tokens    total
	arrivals  uint64
	robin     robin
	alarms    heap[alarm]       // of all waiters
	service   *fairness.Service // nil: no class is fair
	payers    []*fairness.Class // by Class.index, if fair

	fair  bool    // a class is fair between tenants
	epoch float64 // the time as of which the waiters of fair classes are ordered
}

// Lane identifies the ranks that a waiter can use; waiters of one lane can use the same ones.
// The zero Lane means every rank of the scope.
type Lane struct {
	Pinned bool
	Rank   catalog.Rank // if Pinned
	Filter string       // identifies the request's filter of workers, "" for none
}

// Waiter is a waiting request. Its owner sets the exported fields before Add, and does not
// change them until it has left the queue.
type Waiter struct {
	ClassHeader    string  // policy class or family that the client asks for, "" for none
	StrictPriority uint32  // higher goes first
	PriorityJump   float64 // raises the score; a negative one counts as 0
	Tokens         uint64  // of the prompt
	Uncached       uint64  // tokens of the prompt not cached on the best eligible rank, at arrival
	Arrived        float64 // seconds since the service started
	// Due is when the waiter wants its first token, in seconds as Arrived, and Latest is until when it must have its turn for
	// that; 0 and not used: it does not say.
	Due, Latest float64
	Lane        Lane
	// Tenant and Program pay for the request in a class that is fair, see package fairness. "" is a tenant or program
	// as any other.
	Tenant, Program string
	Value           any // for the owner's use

	class   *Class
	account *fairness.Account // nil: no class of the queue is fair
	lane    *lane             // nil while not queued
	share   *share            // in lane, if the class is fair
	place   int               // in the waiters of share, or of lane
	score   float64
	seq     uint64

	due        float64 // goes before the score: a time, undue or never
	alarm      float64 // when one of these changes, see Queue.Expire
	alarmPlace int     // in Queue.alarms
}

// Class returns the waiter's policy class, nil before Classify or Add.
func (w *Waiter) Class() *Class { return w.class }

func (w *Waiter) before(o *Waiter) bool {
	switch {
	case w.StrictPriority != o.StrictPriority:
		return w.StrictPriority > o.StrictPriority
	case w.due != o.due:
		return w.due < o.due
	case w.score != o.score:
		return w.score > o.score
	}
	return w.seq < o.seq
}

func (w *Waiter) moved(place int) { w.place = place }

// cost is what the waiter's class pays from its deficit to serve it.
func (w *Waiter) cost() uint64 { return max(1, w.Uncached) }

func (w *Waiter) cached() uint64 { return w.Tokens - min(w.Tokens, w.Uncached) }

// scoreOf ranks waiters of equal strict priority: higher goes first.
func scoreOf(w *Waiter) float64 {
	jump := w.PriorityJump
	if !(jump > 0) { // NaN, too
		jump = 0
	}
	switch w.class.Order {
	case WSPT:
		return (1 + jump) / float64(w.cost())
	case LCFS:
		return jump + max(0, w.Arrived)
	}
	return jump - max(0, w.Arrived)
}

// NewQueue returns an empty queue under a policy, which is not nil.
func NewQueue(policy *Policy) *Queue {
	q := &Queue{policy: policy}
	if q.fair = policy.fair(); q.fair {
		q.service = fairness.NewService()
	}
	for _, class := range policy.classes {
		b := &backlog{class: class, lanes: map[Lane]*lane{}}
		if class.Fair.By != fairness.None {
			b.fair = q.service.NewClass(class.Fair)
		}
		q.backlogs = append(q.backlogs, b)
		if q.fair {
			q.payers = append(q.payers, cmp.Or(b.fair, q.service.NewClass(fairness.Rules{HalfLife: fairness.DefaultHalfLife})))
		}
	}
	return q
}

// LimitBytes bounds the accounts of the queue's payers, with those of other queues. It must be called before there are any.
func (q *Queue) LimitBytes(m *fairness.Memory) {
	if q.fair {
		q.service.LimitBytes(m)
	}
}

// FairBytes returns approximately what the accounts take.
func (q *Queue) FairBytes() int64 {
	if !q.fair {
		return 0
	}
	return q.service.Bytes()
}

// Payer is who pays for the engine time of a request. Without Class and Account it is nobody.
type Payer struct {
	PolicyClass string // name of the request's class; "": it has none
	Class       *fairness.Class
	Account     *fairness.Account
}

// Payer returns who pays for a classified waiter. It is nobody if no class of the queue is fair. The requests of the other
// classes count too, since they share the engines.
func (q *Queue) Payer(w *Waiter, now float64) Payer {
	if !q.fair {
		return Payer{PolicyClass: w.class.Name}
	}
	class := q.payers[w.class.index]
	if w.account == nil {
		w.account = class.Account(w.Tenant, w.Program, now)
	}
	return Payer{w.class.Name, class, w.account}
}

// FairClass is a class that is fair, with its accounts.
type FairClass struct {
	Name     string
	Accounts *fairness.Class
	Waiting  map[*fairness.Account]int // requests of tenants and programs that wait
}

// FairClasses lists the classes that are fair. waiting: Waiting is wanted.
func (q *Queue) FairClasses(waiting bool) (all []FairClass) {
	for _, b := range q.backlogs {
		if b.fair == nil {
			continue
		}
		f := FairClass{Name: b.class.Name, Accounts: b.fair}
		if waiting {
			f.Waiting = make(map[*fairness.Account]int)
			for _, l := range b.lanes {
				l.count(f.Waiting)
			}
		}
		all = append(all, f)
	}
	return all
}

// Served gives those who have paid for a waiter that Next returned their new place.
func (q *Queue) Served(w *Waiter, now float64) {
	b := q.backlogs[w.class.index]
	if b.fair == nil {
		return
	}
	if l := b.lanes[w.Lane]; l != nil {
		l.served(w.account, b.fair, q.epoch, now)
		b.order.fix(l.place)
	}
}

const (
	// keepOrder is how long the order of fair classes may be kept, in seconds.
	keepOrder = 0.1
	// perWaiter is how much longer for each waiter, so that ordering them costs no more than a few percent of a core.
	perWaiter = 1e-5
)

// rekey orders the fair classes as of now, unless they are ordered as of shortly before.
func (q *Queue) rekey(now float64) {
	if age := now - q.epoch; !q.fair || age >= 0 && age < keepOrder+perWaiter*float64(q.waiting) {
		return
	}
	q.epoch = now
	for _, b := range q.backlogs {
		if b.fair == nil {
			continue
		}
		for _, l := range b.lanes {
			l.rekey(b.fair, now)
		}
		b.order.order()
	}
}

// Classify sets and returns the waiter's class, whose thresholds decide whether it has to wait.
func (q *Queue) Classify(w *Waiter) *Class {
	w.class = q.policy.Class(w.ClassHeader, w.Uncached)
	return w.class
}

// Add queues a waiter that is not queued. workers is the number of schedulable
// workers, by which the class's limits are multiplied. The error is a
// [*LimitError] if the class is full; the waiter is then not queued.
func (q *Queue) Add(w *Waiter, workers int) error {
	b := q.backlogs[q.Classify(w).index]
	if err := q.checkLimits(b, workers); err != nil {
		return err
	}
	w.score = scoreOf(w)
	w.seq = q.arrivals
	q.arrivals++
	if b.fair != nil {
		q.Payer(w, q.epoch)
	}
	w.begin()
	b.add(w, q.epoch)
	q.alarms.push(alarm{w})
	q.count(w, 1)
	return nil
}

// Remove takes a waiter out, for example because its client has gone. It returns false if the
// waiter is not queued.
func (q *Queue) Remove(w *Waiter) bool {
	if w.lane == nil {
		return false
	}
	q.backlogs[w.class.index].remove(w)
	q.alarms.remove(w.alarmPlace)
	q.count(w, -1)
	return true
}

// count updates the totals of the queue for a waiter that came (1) or left (-1).
func (q *Queue) count(w *Waiter, change int) {
	q.waiting += change
	if w.class.RequestLimit == nil {
		q.unlimited += change
	}
	if change > 0 {
		q.tokens.add(w.Tokens)
	} else {
		q.tokens.sub(w.Tokens)
	}
}

// Len returns how many requests wait.
func (q *Queue) Len() int { return q.waiting }

// Tokens returns the prompt tokens of all waiters; it saturates.
func (q *Queue) Tokens() uint64 { return q.tokens.value() }

// All yields every waiter, in no order, for example to answer them all at the
// end. The queue must not change meanwhile.
func (q *Queue) All() iter.Seq[*Waiter] {
	return func(yield func(*Waiter) bool) {
		for _, b := range q.backlogs {
			for _, l := range b.order {
				if !l.each(yield) {
					return
				}
			}
		}
	}
}

// Next takes out and returns the waiter that runs next, nil if none can run.
// Classes take turns by deficit round robin; inside a class the first waiter
// that can run goes: of the highest strict priority the earliest deadline, then the class's order.
//
// canRun reports whether a waiter can run now: one rank that it may use is not busy for its class,
// or it has no rank left and must get its error. It is called for at most one waiter per lane and
// class, must return the same for all waiters of a lane and class, and must not change the queue.
//
// now is the time in seconds, as in Waiter.Arrived, for the classes that are fair. The owner calls Served when it has served
// the waiter, and Payer has been charged.
func (q *Queue) Next(now float64, canRun func(*Waiter) bool) *Waiter {
	q.rekey(now)
	w := q.robin.next(q.backlogs, canRun)
	if w != nil {
		q.Remove(w)
	}
	return w
}

// LimitKind is what a queue limit counts, by its name on the wire.
type LimitKind string

// What a limit counts.
const (
	LimitRequests LimitKind = "requests"
	LimitRaw      LimitKind = "raw_isl_tokens"
	LimitCached   LimitKind = "cached_tokens"
	LimitBytes    LimitKind = "bytes" // memory of all requests that wait, of any class
)

// LimitError is the error for a class that accepts no more waiting requests. Text and
// fields are the wire's.
type LimitError struct {
	PolicyClass string
	LimitKind   LimitKind
	Current     uint64 // waiting now
	Limit       uint64 // the class's limit times the workers
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("router policy class %q queue %s limit reached (current=%d, limit=%d)",
		e.PolicyClass, e.LimitKind, e.Current, e.Limit)
}

// checkLimits compares only the requests that wait already, so the request that crosses a
// limit is still accepted.
func (q *Queue) checkLimits(b *backlog, workers int) error {
	class := b.class
	checks := [...]struct {
		kind    LimitKind
		current uint64
		limit   *uint64
	}{
		{LimitRequests, uint64(b.waiting), class.RequestLimit},
		{LimitRaw, b.raw.value(), class.RawLimit},
		{LimitCached, b.cached.value(), class.CachedLimit},
	}
	for _, c := range checks {
		if c.limit == nil {
			continue
		}
		if limit := mulSaturating(*c.limit, uint64(max(workers, 0))); c.current >= limit {
			return &LimitError{PolicyClass: class.Name, LimitKind: c.kind, Current: c.current, Limit: limit}
		}
	}
	if class.RequestLimit == nil && q.unlimited >= MaxWaiting {
		return &LimitError{PolicyClass: class.Name, LimitKind: LimitRequests, Current: uint64(q.unlimited), Limit: MaxWaiting}
	}
	return nil
}
