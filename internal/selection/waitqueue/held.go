package waitqueue

import (
	"cmp"
	"slices"
	"time"

	"github.com/select-service/select-service/internal/selection/admission"
)

// Held is a Request that can be held back until the rank it would get has little left to compute.
type Held interface {
	Request
	// Work returns the predicted compute time of the request's prefill, in seconds.
	Work() float64
	// RunOrHold runs the request, or returns the least time to hold it. If it holds the
	// request, it adds the request's work, in seconds, to charged at the slot of the rank that
	// it would get, so that requests behind it do not see the rank as free. force runs the
	// request in any case. overlapAge is as for Refresh.
	RunOrHold(charged map[uint32]float64, force bool, overlapAge time.Duration) (hold time.Duration, err error)
}

// held has the requests being held. They get their turns by ascending work minus agedShare of
// the time that they have waited; that order does not change while they wait.
type held struct {
	maxHold time.Duration // a request that was held for this long runs in any case
	// byTurn and byArrival have the same requests, ordered by turn and by since.
	byTurn, byArrival []*Queued
	tokens            uint64
	rescan            *time.Timer // dispatches again when a rank may have become free
}

const (
	agedShare = 0.3
	// maxScanned bounds the requests that one dispatch considers.
	maxScanned = 48
	// minRescan is the shortest time until the timer dispatches again.
	minRescan = time.Millisecond
)

// heldClass is the class of held requests in messages.
var heldClass = &admission.Class{Name: "hold"}

// NewHolding returns an empty queue of Held requests. Each is held for maxHold at most.
func NewHolding(config Config, maxHold time.Duration) *Queue {
	return &Queue{config: config, held: &held{maxHold: maxHold}}
}

// enterHeldLocked is Enter for a queue of held requests.
func (q *Queue) enterHeldLocked(r Held, since *time.Time) (*Queued, error) {
	if since.IsZero() {
		*since = time.Now()
	}
	w := &Queued{request: r, since: *since, tokens: r.Waiter().Tokens, done: make(chan struct{})}
	w.turn = r.Work() + agedShare*since.Sub(q.config.Started).Seconds()
	q.held.add(w)
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

// scanLocked runs, in order, the requests that need not be held any longer.
func (q *Queue) scanLocked() {
	h := q.held
	now := time.Now()
	charged := make(map[uint32]float64)
	next := h.maxHold
	for _, w := range h.firstTurns(now) {
		hold, err := q.runOrHoldLocked(w, charged, h.isOverdue(w, now))
		if hold > 0 {
			next = min(next, hold)
			continue
		}
		h.remove(w)
		w.end(err)
	}
	if len(h.byArrival) > 0 {
		next = min(next, h.maxHold-now.Sub(h.byArrival[0].since))
	}
	h.scheduleLocked(q, next)
}

// firstTurns returns the next maxScanned requests: the overdue ones by arrival, the others by
// turn.
func (h *held) firstTurns(now time.Time) []*Queued {
	first := make([]*Queued, 0, maxScanned)
	for _, w := range h.byArrival {
		if len(first) == maxScanned || !h.isOverdue(w, now) {
			break
		}
		first = append(first, w)
	}
	for _, w := range h.byTurn {
		if len(first) == maxScanned {
			break
		}
		if !h.isOverdue(w, now) {
			first = append(first, w)
		}
	}
	return first
}

// isOverdue reports whether a request has been held for maxHold.
func (h *held) isOverdue(w *Queued, now time.Time) bool { return now.Sub(w.since) >= h.maxHold }

// runOrHoldLocked calls the request's RunOrHold. If that panics, the request ends with
// errPanicked: the panic is in another caller's goroutine.
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

// add inserts a request behind those of the same turn and time.
func (h *held) add(w *Queued) {
	i, _ := slices.BinarySearchFunc(h.byTurn, w, func(other, w *Queued) int {
		return cmp.Or(cmp.Compare(other.turn, w.turn), other.since.Compare(w.since), -1)
	})
	h.byTurn = slices.Insert(h.byTurn, i, w)
	i, _ = slices.BinarySearchFunc(h.byArrival, w, func(other, w *Queued) int {
		return cmp.Or(other.since.Compare(w.since), -1)
	})
	h.byArrival = slices.Insert(h.byArrival, i, w)
	h.tokens += w.tokens
}

// remove takes a request out, and reports whether it was there.
func (h *held) remove(w *Queued) bool {
	i := slices.Index(h.byTurn, w)
	if i < 0 {
		return false
	}
	h.byTurn = slices.Delete(h.byTurn, i, i+1)
	i = slices.Index(h.byArrival, w)
	h.byArrival = slices.Delete(h.byArrival, i, i+1)
	h.tokens -= w.tokens
	return true
}

// scheduleLocked has the requests considered again after some time, if there are any.
func (h *held) scheduleLocked(q *Queue, after time.Duration) {
	switch {
	case len(h.byArrival) == 0:
		h.stop()
	case h.rescan == nil:
		h.rescan = time.AfterFunc(max(after, minRescan), q.Dispatch)
	default:
		h.rescan.Reset(max(after, minRescan))
	}
}

func (h *held) stop() {
	if h.rescan != nil {
		h.rescan.Stop()
	}
}

// closeLocked answers every request with reason.
func (h *held) closeLocked(reason error) {
	h.stop()
	for _, w := range h.byArrival {
		w.end(reason)
	}
	h.byTurn, h.byArrival, h.tokens = nil, nil, 0
}
