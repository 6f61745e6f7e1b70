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
	// grantPatience is how long a request waits for memory that other requests have.
	grantPatience = 2 * time.Second
	// grantTick is how often stalled clients are checked for while a request waits for memory.
	grantTick = 10 * time.Millisecond
	// grantSpare divides the account: when it is full, that part of it is freed at once in
	// addition to what is missing.
	grantSpare = 8
)

// grants shares an account among requests while their clients send or read. While a request
// waits for memory, clients that make no progress are cut off, the longest stalled first: a
// client that sends at network speed is done before its turn comes. Of the waiting requests,
// those that already have a part come first, then the oldest and the newest in turn.
type grants struct {
	account  *memory.Account
	patience time.Duration // how long a client may stall while others need its memory
	// unlisted is how many bytes of the account may be held by clients that are never cut off.
	// While there is room, a request then costs no more than counting its bytes.
	unlisted int64
	cut      func(http.ResponseWriter) // ends the wait for a client; may be called from any goroutine
	waiting  atomic.Int32              // requests in queue

	// mu guards the fields below, and those of grant that say so.
	mu         sync.Mutex
	stalled    list.List // of *grant: clients that may be cut off, the longest stalled first
	queue      list.List // of *waiter
	newestNext bool      // of the waiters without memory, the newest is next
	queued     int64     // bytes that all waiters in queue want
	leaving    int64     // bytes of clients that are cut off and not released yet
	looking    bool      // a call of look is scheduled
}

// grant is the part of an account that one request has. Its zero value has nothing.
type grant struct {
	of     *grants // nil: it has nothing
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
	grant   *grant
	bytes   int64
	element *list.Element // in queue; nil: it has left
	granted bool
	done    chan struct{} // closed when it leaves the queue
}

// tryTake reserves n more bytes for g if they are free and nobody waits for them.
func (gs *grants) tryTake(g *grant, n int64) bool {
	if g.listed || gs.waiting.Load() > 0 || !gs.account.TryReserve(n) {
		return false
	}
	g.of, g.bytes = gs, g.bytes+n
	return true
}

// take reserves n more bytes for g. If they do not fit, it waits for other requests to release
// theirs. The errors are errNoMemory, also for a client that is cut off, and errClientGone.
func (gs *grants) take(ctx context.Context, g *grant, n int64) error {
	if gs.tryTake(g, n) {
		return nil
	}
	gs.mu.Lock()
	switch {
	case g.listed && g.element == nil:
		gs.mu.Unlock()
		return errNoMemory(gs.account)
	case gs.queue.Len() == 0 && gs.account.TryReserve(n):
		g.of, g.bytes = gs, g.bytes+n
		gs.mu.Unlock()
		return nil
	}
	w := &waiter{grant: g, bytes: n, done: make(chan struct{})}
	if g.bytes > 0 { // first: its memory is freed only when it can proceed
		w.element = gs.queue.PushFront(w)
	} else {
		w.element = gs.queue.PushBack(w)
	}
	gs.queued += n
	gs.waiting.Add(1)
	g.waits = w
	gs.lookLocked()
	gs.mu.Unlock()

	late := time.NewTimer(grantPatience)
	defer late.Stop()
	select {
	case <-w.done:
	case <-late.C:
	case <-ctx.Done():
	}
	gs.mu.Lock()
	defer gs.mu.Unlock()
	gs.leaveQueueLocked(w)
	switch {
	case w.granted:
		return nil
	case ctx.Err() != nil:
		return errClientGone
	case g.listed && g.element == nil: // cutOffLocked has counted the refusal
	default:
		gs.account.CountRefusal()
	}
	return errNoMemory(gs.account)
}

// look serves the waiting requests, on a timer.
func (gs *grants) look() {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	gs.looking = false
	gs.lookLocked()
}

// lookLocked grants free memory to waiting requests, and cuts clients off for what is missing.
func (gs *grants) lookLocked() {
	for w := gs.nextLocked(); w != nil; w = gs.nextLocked() {
		w.granted = true
		w.grant.of, w.grant.bytes = gs, w.grant.bytes+w.bytes
		w.grant.progressedLocked() // it was not the client that stalled
		gs.leaveQueueLocked(w)
	}
	if gs.queue.Len() == 0 {
		return
	}
	limit := gs.account.Limit()
	missing := gs.queued + limit/grantSpare - (limit - gs.account.Used()) - gs.leaving
	for e := gs.stalled.Front(); e != nil && missing > 0; e = gs.stalled.Front() {
		g := e.Value.(*grant)
		if time.Since(g.since) < gs.patience {
			break
		}
		missing -= g.bytes
		gs.cutOffLocked(g)
	}
	if !gs.looking {
		gs.looking = true
		time.AfterFunc(grantTick, gs.look)
	}
}

// nextLocked reserves the memory of the waiter whose turn it is and returns it; nil if none
// waits or it does not fit. If the newest one's wish does not fit, the oldest gets its chance.
func (gs *grants) nextLocked() *waiter {
	if gs.queue.Len() == 0 {
		return nil
	}
	oldest, newest := gs.queue.Front().Value.(*waiter), gs.queue.Back().Value.(*waiter)
	goesOn := oldest.grant.bytes > 0 // it goes first and uses up no turn
	switch {
	case !goesOn && gs.newestNext && gs.account.TryReserve(newest.bytes):
		gs.newestNext = false
		return newest
	case !gs.account.TryReserve(oldest.bytes):
		return nil
	case !goesOn:
		gs.newestNext = true
	}
	return oldest
}

// cutOffLocked ends the wait for a client. The request releases its memory when it notices.
func (gs *grants) cutOffLocked(g *grant) {
	gs.stalled.Remove(g.element)
	g.element = nil
	gs.leaving += g.bytes
	gs.account.CountRefusal()
	if w := g.waits; w != nil {
		gs.leaveQueueLocked(w)
		return
	}
	if g.reads {
		stopWrite(g.client)
	} else {
		gs.cut(g.client)
	}
}

// leaveQueueLocked ends a wait, granted or not.
func (gs *grants) leaveQueueLocked(w *waiter) {
	if w.element == nil {
		return
	}
	gs.queue.Remove(w.element)
	w.element, w.grant.waits = nil, nil
	close(w.done)
	gs.queued -= w.bytes
	gs.waiting.Add(-1)
}

// beginWait marks that the request waits for its client from now on, which may be cut off.
func (g *grant) beginWait(client http.ResponseWriter) {
	s := g.of
	if s == nil || g.listed || s.account.Used() <= s.unlisted {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g.client, g.listed, g.since = client, true, time.Now()
	g.element = s.stalled.PushBack(g)
}

// beginWaitForReader is beginWait for a client that is to read. The grant must not be listed.
func (g *grant) beginWaitForReader(client http.ResponseWriter) {
	if g.of == nil {
		return // its next client, if it gets memory again, may have to send
	}
	g.reads = true
	g.beginWait(client)
}

// progressed records that the client has made progress.
func (g *grant) progressed() {
	if !g.listed {
		return
	}
	g.of.mu.Lock()
	defer g.of.mu.Unlock()
	g.progressedLocked()
}

func (g *grant) progressedLocked() {
	if g.element != nil {
		g.since = time.Now()
		g.of.stalled.MoveToBack(g.element)
	}
}

// done marks that the request no longer waits for its client, and reports whether the
// client was cut off.
func (g *grant) done() (cutOff bool) {
	if !g.listed {
		return false
	}
	g.of.mu.Lock()
	defer g.of.mu.Unlock()
	g.listed = false
	if g.element == nil {
		g.of.leaving -= g.bytes
		return true
	}
	g.of.stalled.Remove(g.element)
	g.element = nil
	return false
}

// release releases the memory.
func (g *grant) release() {
	s := g.of
	if s == nil {
		return
	}
	g.done()
	s.account.Release(g.bytes)
	*g = grant{}
	if s.waiting.Load() > 0 {
		s.mu.Lock()
		s.lookLocked()
		s.mu.Unlock()
	}
}
