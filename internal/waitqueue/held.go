package waitqueue

import (
	"cmp"
	"slices"
	"time"

	"github.com/select-service/select-service/internal/admission"
)

// Held is a Request that can be held until the rank that it would get has little left to
// compute.
type Held interface {
	Request
	// Work is the predicted time of what the request has to compute, in seconds.
	Work() float64
	// RunOrHold runs the request, or returns for how long it should at least be held. It
	// then adds its work to what is charged to the rank that it would get, by slot, in
	// seconds: requests behind it must not go there as if the rank were free. force runs
	// it in any case. overlapAge is as for Refresh.
	RunOrHold(charged map[uint32]float64, force bool, overlapAge time.Duration) (hold time.Duration, err error)
}

// held are the requests that are held, in no order. They are looked at in the order of
// their work, less agedShare of the time that they have waited.
type held struct {
	longest time.Duration // after which a request goes anyway
	waiting []*Queued
	tokens  uint64
	again   *time.Timer // dispatches when a rank may have become free
}

const (
	agedShare = 0.3
	// maxLooked bounds the requests that are looked at for one event.
	maxLooked = 48
	// leastAgain bounds how often time alone lets requests be looked at.
	leastAgain = time.Millisecond
)

// heldClass is the class of requests that are held, for messages.
var heldClass = &admission.Class{Name: "hold"}

// NewHolding returns an empty queue of requests that are Held, each for longest at most.
func NewHolding(config Config, longest time.Duration) *Queue {
	return &Queue{config: config, held: &held{longest: longest}}
}

// enterHeldLocked is Enter for a queue of held requests.
func (q *Queue) enterHeldLocked(r Held, since *time.Time) (*Queued, error) {
	if since.IsZero() {
		*since = time.Now()
	}
	w := &Queued{request: r, since: *since, work: r.Work(), tokens: r.Waiter().Tokens, done: make(chan struct{})}
	q.held.waiting = append(q.held.waiting, w)
	q.held.tokens += w.tokens
	q.scanLocked()
	if w.ended {
		return nil, w.err
	}
	if err := r.BeforeWait(heldClass); err != nil {
		q.held.remove(w)
		return nil, err
	}
	return w, nil
}

// scanLocked runs the requests that need not be held any more, in order.
func (q *Queue) scanLocked() {
	h := q.held
	now := time.Now()
	order := slices.SortedFunc(slices.Values(h.waiting), func(a, b *Queued) int {
		return cmp.Or(cmp.Compare(h.rank(a, now), h.rank(b, now)), a.since.Compare(b.since))
	})
	charged := make(map[uint32]float64)
	next := h.longest
	for _, w := range order[:min(len(order), maxLooked)] {
		waited := now.Sub(w.since)
		hold, err := q.runOrHoldLocked(w, charged, waited >= h.longest)
		if hold > 0 {
			next = min(next, hold, h.longest-waited)
			continue
		}
		h.remove(w)
		w.end(err)
	}
	h.scheduleLocked(q, next)
}

// rank is what the order goes by: requests that have waited for the longest time first.
func (h *held) rank(w *Queued, now time.Time) float64 {
	waited := now.Sub(w.since)
	if waited >= h.longest {
		return -waited.Seconds() - 1e9
	}
	return w.work - agedShare*waited.Seconds()
}

// runOrHoldLocked gives a request its turn. Its caller gets an answer also if it panics.
func (q *Queue) runOrHoldLocked(w *Queued, charged map[uint32]float64, force bool) (hold time.Duration, err error) {
	panicked := true
	defer func() {
		if panicked {
			q.held.remove(w)
			w.end(errPanicked)
		}
	}()
	hold, err = w.request.(Held).RunOrHold(charged, force, q.config.OverlapRefresh)
	panicked = false
	return hold, err
}

func (w *Queued) end(err error) {
	w.err, w.ended = err, true
	close(w.done)
}

func (h *held) remove(w *Queued) (was bool) {
	i := slices.Index(h.waiting, w)
	if i < 0 {
		return false
	}
	h.waiting = slices.Delete(h.waiting, i, i+1)
	h.tokens -= w.tokens
	return true
}

// scheduleLocked lets the requests be looked at again after some time, if there are any.
func (h *held) scheduleLocked(q *Queue, after time.Duration) {
	switch {
	case len(h.waiting) == 0:
		h.stop()
	case h.again == nil:
		h.again = time.AfterFunc(max(after, leastAgain), q.Dispatch)
	default:
		h.again.Reset(max(after, leastAgain))
	}
}

func (h *held) stop() {
	if h.again != nil {
		h.again.Stop()
	}
}

// closeLocked answers every request with reason.
func (h *held) closeLocked(reason error) {
	h.stop()
	for _, w := range h.waiting {
		w.end(reason)
	}
	h.waiting, h.tokens = nil, 0
}
