package httpapi

import (
	"container/list"
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/select-service/select-service/pkg/memory"
)

const (
	// holdersPatience is how long a request waits for memory that other requests hold.
	holdersPatience = 2 * time.Second
	// holdersTick is how often stalled clients are checked for while a request waits for memory.
	holdersTick = 10 * time.Millisecond
	// holdersSpare divides the account: when it is full, that part of it is freed at once in
	// addition to what is missing.
	holdersSpare = 8
)

// holders shares an account among requests while their clients send or read. While a request
// waits for memory, clients that make no progress are cut off, the longest stalled first: a
// client that sends at network speed is done before its turn comes. Of the waiting requests,
// those that already hold a part come first, then the oldest and the newest in turn.
type holders struct {
	account  *memory.Account
	patience time.Duration // how long a client may stall while others need its memory
	// unlisted is how many bytes of the account may be held by clients that are never cut off.
	// While there is room, a request then costs no more than counting its bytes.
	unlisted int64
	cut      func(http.ResponseWriter) // ends the wait for a client; may be called from any goroutine
	waiting  atomic.Int32              // requests in queue

	// mu guards the fields below, and those of holder that say so.
	mu         sync.Mutex
	stalled    list.List // of *holder: clients that may be cut off, the longest stalled first
	queue      list.List // of *waiter
	newestNext bool      // of the waiters without memory, the newest is next
	queued     int64     // bytes that all waiters in queue want
	leaving    int64     // bytes of clients that are cut off and not released yet
	looking    bool      // a call of look is scheduled
}

// holder is the part of an account that one request holds. Its zero value holds nothing.
type holder struct {
	of     *holders // nil: it holds nothing
	client http.ResponseWriter
	reads  bool // the client is to read, not to send
	listed bool // was entered in of.stalled; it may have been cut off since

	bytes   int64         // once listed, guarded by of.mu, like the fields below
	since   time.Time     // when the client last made progress
	element *list.Element // in of.stalled; nil if listed: cut off
	waits   *waiter       // its wait for more memory; nil: it waits for its client, or not at all
}

// waiter is a request that waits for memory.
type waiter struct {
	holder  *holder
	bytes   int64
	element *list.Element // in queue; nil: it has left
	granted bool
	done    chan struct{} // closed when it leaves the queue
}

// take reserves n more bytes for h. If they do not fit, it waits for other requests to release
// theirs. The errors are errNoMemory, also for a client that is cut off, and errClientGone.
func (ho *holders) take(ctx context.Context, h *holder, n int64) error {
	if !h.listed && ho.waiting.Load() == 0 && ho.account.TryReserve(n) {
		h.of, h.bytes = ho, h.bytes+n
		return nil
	}
	ho.mu.Lock()
	switch {
	case h.listed && h.element == nil:
		ho.mu.Unlock()
		return errNoMemory(ho.account)
	case ho.queue.Len() == 0 && ho.account.TryReserve(n):
		h.of, h.bytes = ho, h.bytes+n
		ho.mu.Unlock()
		return nil
	}
	w := &waiter{holder: h, bytes: n, done: make(chan struct{})}
	if h.bytes > 0 { // first: its memory is freed only when it can proceed
		w.element = ho.queue.PushFront(w)
	} else {
		w.element = ho.queue.PushBack(w)
	}
	ho.queued += n
	ho.waiting.Add(1)
	h.waits = w
	ho.lookLocked()
	ho.mu.Unlock()

	late := time.NewTimer(holdersPatience)
	defer late.Stop()
	select {
	case <-w.done:
	case <-late.C:
	case <-ctx.Done():
	}
	ho.mu.Lock()
	defer ho.mu.Unlock()
	ho.leaveQueueLocked(w)
	switch {
	case w.granted:
		return nil
	case ctx.Err() != nil:
		return errClientGone
	case h.listed && h.element == nil: // cutOffLocked has counted the refusal
	default:
		ho.account.CountRefusal()
	}
	return errNoMemory(ho.account)
}

// look serves the waiting requests, on a timer.
func (ho *holders) look() {
	ho.mu.Lock()
	defer ho.mu.Unlock()
	ho.looking = false
	ho.lookLocked()
}

// lookLocked grants free memory to waiting requests, and cuts clients off for what is missing.
func (ho *holders) lookLocked() {
	for w := ho.nextLocked(); w != nil; w = ho.nextLocked() {
		w.granted = true
		w.holder.of, w.holder.bytes = ho, w.holder.bytes+w.bytes
		w.holder.progressedLocked() // it was not the client that stalled
		ho.leaveQueueLocked(w)
	}
	if ho.queue.Len() == 0 {
		return
	}
	limit := ho.account.Limit()
	missing := ho.queued + limit/holdersSpare - (limit - ho.account.Used()) - ho.leaving
	for e := ho.stalled.Front(); e != nil && missing > 0; e = ho.stalled.Front() {
		h := e.Value.(*holder)
		if time.Since(h.since) < ho.patience {
			break
		}
		missing -= h.bytes
		ho.cutOffLocked(h)
	}
	if !ho.looking {
		ho.looking = true
		time.AfterFunc(holdersTick, ho.look)
	}
}

// nextLocked reserves the memory of the waiter whose turn it is and returns it; nil if none
// waits or it does not fit. If the newest one's wish does not fit, the oldest gets its chance.
func (ho *holders) nextLocked() *waiter {
	if ho.queue.Len() == 0 {
		return nil
	}
	oldest, newest := ho.queue.Front().Value.(*waiter), ho.queue.Back().Value.(*waiter)
	goesOn := oldest.holder.bytes > 0 // it goes first and uses up no turn
	switch {
	case !goesOn && ho.newestNext && ho.account.TryReserve(newest.bytes):
		ho.newestNext = false
		return newest
	case !ho.account.TryReserve(oldest.bytes):
		return nil
	case !goesOn:
		ho.newestNext = true
	}
	return oldest
}

// cutOffLocked ends the wait for a client. The request releases its memory when it notices.
func (ho *holders) cutOffLocked(h *holder) {
	ho.stalled.Remove(h.element)
	h.element = nil
	ho.leaving += h.bytes
	ho.account.CountRefusal()
	if w := h.waits; w != nil {
		ho.leaveQueueLocked(w)
		return
	}
	if h.reads {
		stopWrite(h.client)
	} else {
		ho.cut(h.client)
	}
}

// leaveQueueLocked ends a wait, granted or not.
func (ho *holders) leaveQueueLocked(w *waiter) {
	if w.element == nil {
		return
	}
	ho.queue.Remove(w.element)
	w.element, w.holder.waits = nil, nil
	close(w.done)
	ho.queued -= w.bytes
	ho.waiting.Add(-1)
}

// beginWait marks that the request waits for its client from now on, which may be cut off.
func (h *holder) beginWait(client http.ResponseWriter) {
	s := h.of
	if s == nil || h.listed || s.account.Used() <= s.unlisted {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h.client, h.listed, h.since = client, true, time.Now()
	h.element = s.stalled.PushBack(h)
}

// beginWaitForReader is beginWait for a client that is to read. The holder must not be listed.
func (h *holder) beginWaitForReader(client http.ResponseWriter) {
	if h.of == nil {
		return // its next client, if it gets memory again, may have to send
	}
	h.reads = true
	h.beginWait(client)
}

// progressed records that the client has made progress.
func (h *holder) progressed() {
	if !h.listed {
		return
	}
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	h.progressedLocked()
}

func (h *holder) progressedLocked() {
	if h.element != nil {
		h.since = time.Now()
		h.of.stalled.MoveToBack(h.element)
	}
}

// done marks that the request no longer waits for its client, and reports whether the
// client was cut off.
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
	h.of.stalled.Remove(h.element)
	h.element = nil
	return false
}

// release releases the memory.
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
