package waitqueue

import (
	"cmp"
	"slices"
	"time"

	"github.com/select-service/select-service/internal/admission"
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

// held has the requests being held, in no order. They get their turns by ascending work minus
// agedShare of the time that they have waited.
type held struct {
	maxHold time.Duration // a request that was held for this long runs in any case
	waiting []*Queued
	tokens  uint64
	rescan  *time.Timer // dispatches again when a rank may have become free
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

// scanLocked runs, in order, the requests that need not be held any longer.
func (q *Queue) scanLocked() {
	h := q.held
	now := time.Now()
	order := slices.SortedFunc(slices.Values(h.waiting), func(a, b *Queued) int {
		return cmp.Or(cmp.Compare(h.rank(a, now), h.rank(b, now)), a.since.Compare(b.since))
	})
	charged := make(map[uint32]float64)
	next := h.maxHold
	for i, w := range order {
		waited := now.Sub(w.since)
		if i >= maxScanned {
			next = min(next, h.maxHold-waited)
			continue
		}
		hold, err := q.runOrHoldLocked(w, charged, waited >= h.maxHold)
		if hold > 0 {
			next = min(next, hold, h.maxHold-waited)
			continue
		}
		h.remove(w)
		w.end(err)
	}
	h.scheduleLocked(q, next)
}

// rank returns the sort key of a request: those that have waited for maxHold or more come
// first, in order of their wait.
func (h *held) rank(w *Queued, now time.Time) float64 {
	waited := now.Sub(w.since)
	if waited >= h.maxHold {
		return -waited.Seconds() - 1e9
	}
	return w.work - agedShare*waited.Seconds()
}

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

func (h *held) remove(w *Queued) (was bool) {
	i := slices.Index(h.waiting, w)
	if i < 0 {
		return false
	}
	h.waiting = slices.Delete(h.waiting, i, i+1)
	h.tokens -= w.tokens
	return true
}

// scheduleLocked has the requests considered again after some time, if there are any.
func (h *held) scheduleLocked(q *Queue, after time.Duration) {
	switch {
	case len(h.waiting) == 0:
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
	for _, w := range h.waiting {
		w.end(reason)
	}
	h.waiting, h.tokens = nil, 0
}
