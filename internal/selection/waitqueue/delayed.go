package waitqueue

import (
	"cmp"
	"slices"
	"time"

	"github.com/select-service/select-service/internal/selection/admission"
)

// Delayable is a Request that can wait until the rank it would get has little left to compute.
type Delayable interface {
	Request
	// Work returns the predicted compute time of the request's prefill, in seconds.
	Work() float64
	// RunOrDelay runs the request, or returns the least time to delay it. If it delays the
	// request, it adds the request's work, in seconds, to charged at the slot of the rank that
	// it would get, so that requests behind it do not see the rank as free. force runs the
	// request in any case. overlapAge is as for Refresh.
	RunOrDelay(charged map[uint32]float64, force bool, overlapAge time.Duration) (delay time.Duration, err error)
}

// delayed has the Delayable requests that wait. They get their turns by ascending work minus
// agedShare of the time that they have waited; that order does not change while they wait.
type delayed struct {
	config  Config
	longest time.Duration // a request that was delayed for this long runs in any case
	// byTurn and byArrival have the same requests, ordered by turn and by since.
	byTurn, byArrival []*Queued
	tokens            uint64
	rescan            *time.Timer // calls dispatchQueue when a rank may have become free
	dispatchQueue     func()
}

const (
	agedShare = 0.3
	// maxScanned bounds the requests that one dispatch considers.
	maxScanned = 48
	// minRescan is the shortest time until the timer dispatches again.
	minRescan = time.Millisecond
)

// delayedClass is the class of delayed requests in messages.
var delayedClass = &admission.Class{Name: "hold"}

func (d *delayed) enter(r Request, since *time.Time) (*Queued, error) {
	if since.IsZero() {
		*since = time.Now()
	}
	w := &Queued{request: r, since: *since, tokens: r.Waiter().Tokens, done: make(chan struct{})}
	w.turn = r.(Delayable).Work() + agedShare*since.Sub(d.config.Started).Seconds()
	d.add(w)
	d.scan()
	if w.ended {
		return nil, w.err
	}
	if err := r.BeforeWait(delayedClass); err != nil {
		d.remove(w)
		return nil, err
	}
	return w, nil
}

func (d *delayed) dispatch() {
	if len(d.byArrival) > 0 {
		d.scan()
	}
}

// scan runs, in order, the requests that need not wait any longer.
func (d *delayed) scan() {
	now := time.Now()
	charged := make(map[uint32]float64)
	next := d.longest
	for _, w := range d.firstTurns(now) {
		delay, err := d.runOrDelay(w, charged, d.isOverdue(w, now))
		if delay > 0 {
			next = min(next, delay)
			continue
		}
		d.remove(w)
		w.end(err)
	}
	if len(d.byArrival) > 0 {
		next = min(next, d.longest-now.Sub(d.byArrival[0].since))
	}
	d.schedule(next)
}

// firstTurns returns the next maxScanned requests: the overdue ones by arrival, the others by
// turn.
func (d *delayed) firstTurns(now time.Time) []*Queued {
	first := make([]*Queued, 0, maxScanned)
	for _, w := range d.byArrival {
		if len(first) == maxScanned || !d.isOverdue(w, now) {
			break
		}
		first = append(first, w)
	}
	for _, w := range d.byTurn {
		if len(first) == maxScanned {
			break
		}
		if !d.isOverdue(w, now) {
			first = append(first, w)
		}
	}
	return first
}

// isOverdue reports whether a request has been delayed for longest.
func (d *delayed) isOverdue(w *Queued, now time.Time) bool { return now.Sub(w.since) >= d.longest }

// runOrDelay calls the request's RunOrDelay. If that panics, the request ends with errPanicked:
// the panic is in another caller's goroutine.
func (d *delayed) runOrDelay(w *Queued, charged map[uint32]float64, force bool) (delay time.Duration, err error) {
	panicked := true
	defer func() {
		if panicked {
			d.remove(w)
			w.end(errPanicked)
		}
	}()
	delay, err = w.request.(Delayable).RunOrDelay(charged, force, d.config.OverlapRefresh)
	panicked = false
	return delay, err
}

func (q *Queued) end(err error) {
	q.err, q.ended = err, true
	close(q.done)
}

// add inserts a request behind those of the same turn and time.
func (d *delayed) add(w *Queued) {
	i, _ := slices.BinarySearchFunc(d.byTurn, w, func(other, w *Queued) int {
		return cmp.Or(cmp.Compare(other.turn, w.turn), other.since.Compare(w.since), -1)
	})
	d.byTurn = slices.Insert(d.byTurn, i, w)
	i, _ = slices.BinarySearchFunc(d.byArrival, w, func(other, w *Queued) int {
		return cmp.Or(other.since.Compare(w.since), -1)
	})
	d.byArrival = slices.Insert(d.byArrival, i, w)
	d.tokens += w.tokens
}

func (d *delayed) remove(w *Queued) bool {
	i := slices.Index(d.byTurn, w)
	if i < 0 {
		return false
	}
	d.byTurn = slices.Delete(d.byTurn, i, i+1)
	i = slices.Index(d.byArrival, w)
	d.byArrival = slices.Delete(d.byArrival, i, i+1)
	d.tokens -= w.tokens
	return true
}

// schedule has the requests considered again after some time, if there are any.
func (d *delayed) schedule(after time.Duration) {
	switch {
	case len(d.byArrival) == 0:
		d.stop()
	case d.rescan == nil:
		d.rescan = time.AfterFunc(max(after, minRescan), d.dispatchQueue)
	default:
		d.rescan.Reset(max(after, minRescan))
	}
}

func (d *delayed) stop() {
	if d.rescan != nil {
		d.rescan.Stop()
	}
}

func (d *delayed) end(reason error) {
	d.stop()
	for _, w := range d.byArrival {
		w.end(reason)
	}
	d.byTurn, d.byArrival, d.tokens = nil, nil, 0
}

func (d *delayed) pending() (requests int, tokens uint64) { return len(d.byArrival), d.tokens }
