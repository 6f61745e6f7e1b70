package httpapi

import (
	"container/list"
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/select-service/select-service/internal/budget"
)

const (
	// holdersPatience is how long a request waits for memory that others hold.
	holdersPatience = 2 * time.Second
	// holdersLook is how often clients are looked at while somebody waits for memory.
	holdersLook = 10 * time.Millisecond
	// holdersSpare is the part of an account that is made free at once when it is full.
	holdersSpare = 8
)

// holders are the requests that share an account while their clients send or read.
// As long as one waits for memory, clients that keep still are cut off, those first
// that have done so for longest: one that sends at the pace of a network is done
// before. Of those who wait the ones who hold a part come first, then the oldest and the
// newest in turn.
type holders struct {
	account  *budget.Account
	patience time.Duration // for which a client may keep still although others need its part
	// unlisted is how much of the account may be held by clients that are never cut
	// off: where there is room a request costs no more than counting its bytes.
	unlisted int64
	cut      func(http.ResponseWriter) // ends the wait for a client; from any goroutine
	waiting  atomic.Int32              // requests in queue

	// mu guards what follows, and what each holder says that it guards.
	mu         sync.Mutex
	still      list.List // of *holder: the clients that are waited for, the first still for longest
	queue      list.List // of *waiter
	newestNext bool      // of those in queue who hold nothing
	queued     int64     // bytes that queue waits for
	leaving    int64     // bytes of those who are cut off and have not given them back
	looking    bool      // look will be called
}

// holder is what one request holds of an account. Its zero value holds nothing.
type holder struct {
	of     *holders // nil: it holds nothing
	client http.ResponseWriter
	listed bool // entered in of.still, be it cut off since

	bytes   int64         // once it is listed guarded by of.mu, as what follows
	since   time.Time     // when the client moved last
	element *list.Element // of of.still; nil: cut off
	waits   *waiter       // for more; nil: it waits for its client, if for anything
}

// waiter is a request that waits for memory.
type waiter struct {
	holder  *holder
	bytes   int64
	element *list.Element // of queue, nil: not there any more
	granted bool
	done    chan struct{} // closed when it is not in queue any more
}

// take makes h hold n more bytes of the account. If they do not fit, it waits for what
// others give back. The errors are errNoMemory, also for a client that is cut off, and
// errClientGone.
func (s *holders) take(ctx context.Context, h *holder, n int64) error {
	if !h.listed && s.waiting.Load() == 0 && s.account.TryReserve(n) {
		h.of, h.bytes = s, h.bytes+n
		return nil
	}
	s.mu.Lock()
	switch {
	case h.listed && h.element == nil:
		s.mu.Unlock()
		return errNoMemory(s.account)
	case s.queue.Len() == 0 && s.account.TryReserve(n):
		h.of, h.bytes = s, h.bytes+n
		s.mu.Unlock()
		return nil
	}
	w := &waiter{holder: h, bytes: n, done: make(chan struct{})}
	if h.bytes > 0 { // what it holds is freed only if it goes on
		w.element = s.queue.PushFront(w)
	} else {
		w.element = s.queue.PushBack(w)
	}
	s.queued += n
	s.waiting.Add(1)
	h.waits = w
	s.lookLocked()
	s.mu.Unlock()

	late := time.NewTimer(holdersPatience)
	defer late.Stop()
	select {
	case <-w.done:
	case <-late.C:
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaveQueueLocked(w)
	switch {
	case w.granted:
		return nil
	case ctx.Err() != nil:
		return errClientGone
	case h.listed && h.element == nil: // it is counted
	default:
		s.account.CountRefusal()
	}
	return errNoMemory(s.account)
}

// look is for those who wait.
func (s *holders) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looking = false
	s.lookLocked()
}

// lookLocked gives those who wait what there is, and cuts clients off for what there
// is not.
func (s *holders) lookLocked() {
	for w := s.nextLocked(); w != nil; w = s.nextLocked() {
		w.granted = true
		w.holder.of, w.holder.bytes = s, w.holder.bytes+w.bytes
		w.holder.movedLocked() // it was not the client who kept still
		s.leaveQueueLocked(w)
	}
	if s.queue.Len() == 0 {
		return
	}
	limit := s.account.Limit()
	missing := s.queued + limit/holdersSpare - (limit - s.account.Used()) - s.leaving
	for e := s.still.Front(); e != nil && missing > 0; e = s.still.Front() {
		h := e.Value.(*holder)
		if time.Since(h.since) < s.patience {
			break
		}
		missing -= h.bytes
		s.cutOffLocked(h)
	}
	if !s.looking {
		s.looking = true
		time.AfterFunc(holdersLook, s.look)
	}
}

// nextLocked takes the memory for whose turn it is of those who wait, nil if nobody waits
// or it does not fit. The oldest does not wait until there is room for a newest that wants
// much.
func (s *holders) nextLocked() *waiter {
	if s.queue.Len() == 0 {
		return nil
	}
	oldest, newest := s.queue.Front().Value.(*waiter), s.queue.Back().Value.(*waiter)
	goesOn := oldest.holder.bytes > 0 // which is nobody's turn
	switch {
	case !goesOn && s.newestNext && s.account.TryReserve(newest.bytes):
		s.newestNext = false
		return newest
	case !s.account.TryReserve(oldest.bytes):
		return nil
	case !goesOn:
		s.newestNext = true
	}
	return oldest
}

// cutOffLocked ends the wait for a client. What its request holds comes back when that
// has noticed.
func (s *holders) cutOffLocked(h *holder) {
	s.still.Remove(h.element)
	h.element = nil
	s.leaving += h.bytes
	s.account.CountRefusal()
	if w := h.waits; w != nil {
		s.leaveQueueLocked(w)
		return
	}
	s.cut(h.client)
}

// leaveQueueLocked ends a wait, with or without what it is for.
func (s *holders) leaveQueueLocked(w *waiter) {
	if w.element == nil {
		return
	}
	s.queue.Remove(w.element)
	w.element, w.holder.waits = nil, nil
	close(w.done)
	s.queued -= w.bytes
	s.waiting.Add(-1)
}

// await says that the request waits for its client from now on, which may be cut off.
func (h *holder) await(client http.ResponseWriter) {
	s := h.of
	if s == nil || h.listed || s.account.Used() <= s.unlisted {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h.client, h.listed, h.since = client, true, time.Now()
	h.element = s.still.PushBack(h)
}

// moved says that the client was not still.
func (h *holder) moved() {
	if !h.listed {
		return
	}
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	h.movedLocked()
}

func (h *holder) movedLocked() {
	if h.element != nil {
		h.since = time.Now()
		h.of.still.MoveToBack(h.element)
	}
}

// done says that the client is not waited for any more, and reports whether it was cut
// off before.
func (h *holder) done() (cutOff bool) {
	if !h.listed {
		return false
	}
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	h.listed = false
	if h.element == nil {
		h.of.leaving -= h.bytes
		return true
	}
	h.of.still.Remove(h.element)
	h.element = nil
	return false
}

// release gives back what is held.
func (h *holder) release() {
	s := h.of
	if s == nil {
		return
	}
	h.done()
	s.account.Release(h.bytes)
	*h = holder{}
	if s.waiting.Load() > 0 {
		s.mu.Lock()
		s.lookLocked()
		s.mu.Unlock()
	}
}
