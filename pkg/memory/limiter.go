package memory

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// lookEvery is how often stalled clients are looked for while a request waits for memory.
	lookEvery = 10 * time.Millisecond
	// freedWithin is how long a request that does not wait for others waits for clients that are cut off meanwhile.
	freedWithin = 250 * time.Millisecond
)

// ErrFull is the error of a request that finds no memory, or whose own memory is taken away. It is counted as a
// refusal of the account.
var ErrFull = errors.New("memory: the account is full")

// A Client is waited for by a request that has a Token.
type Client interface {
	// CutOff ends the wait. It is called once, by any goroutine, and must neither wait nor call a Limiter or a Token.
	CutOff()
}

// Limiter shares an account among requests. A request gives its memory back while it waits for its client (Token.Lend):
// if others need it then, clients that have stalled are cut off, the longest stalled first. Of the requests that wait for
// memory the newest and the one that has waited for longest get it in turns: the first is served at once, however many
// stalled clients wait already, the second however many come after it and do not wait as long.
//
// A request that has memory while it waits for more (a body that grows) has turns of its own, because it gives back what it
// has only when it gets the rest. If such requests have so much that none of them can go on, a few of them are cut off for
// the one that has waited for longest.
//
// It is safe for concurrent use. A nil Limiter has no bounds.
type Limiter struct {
	account *Account
	waiting atomic.Int32 // requests in queue and growing

	mu       sync.Mutex    // guards the fields below, and those of Token that say so
	lent     Token         // the root of a ring of tokens, the longest without progress first
	patience time.Duration // the shortest of any token
	queue    list.List     // of *waiter, the newest first
	growing  list.List     // of *waiter whose token is lent, the newest first; they are not in queue
	wanted   int64         // bytes that all waiters want
	leaving  int64         // bytes of clients that are cut off and not released yet
	longest  bool          // the longest waiter in queue has the next turn, not the newest
	others   bool          // the queue has the next turn, not those that grow
	grown    bool          // one of growing got its memory since the last look on a timer
	first    *waiter       // of growing: others are cut off for it, it comes before all; nil: none
	looking  bool          // a call of look is scheduled
}

// Token is the part of an account that one request has. Its zero value has nothing. One goroutine uses it.
type Token struct {
	of   *Limiter // nil: it has nothing
	lent bool     // since Lend; its client may have been cut off since

	bytes      int64 // once lent guarded by of.mu, like the fields below
	client     Client
	patience   time.Duration
	since      time.Time // when the client last made progress
	prev, next *Token    // in of.lent; nil if lent: cut off
	waits      *waiter   // it waits for more memory, not for its client
}

// waiter is a request that waits for memory.
type waiter struct {
	token   *Token
	bytes   int64
	list    *list.List    // queue or growing
	element *list.Element // in list; nil: it has left
	granted bool
	done    chan struct{} // closed when it leaves the queue
}

// Limiter returns the limiter of an account, which all its users share; nil for a nil Account.
func (a *Account) Limiter() *Limiter {
	if a == nil {
		return nil
	}
	a.once.Do(func() {
		a.limiter.account = a
		a.limiter.lent.prev, a.limiter.lent.next = &a.limiter.lent, &a.limiter.lent
	})
	return &a.limiter
}

// Account returns the limiter's account.
func (l *Limiter) Account() *Account {
	if l == nil {
		return nil
	}
	return l.account
}

// Try takes n more bytes for t if they are free and nobody waits for them.
func (l *Limiter) Try(t *Token, n int64) bool {
	if l == nil {
		return true
	}
	if t.lent || l.waiting.Load() > 0 || !l.account.TryReserve(n) {
		return false
	}
	t.of, t.bytes = l, t.bytes+n
	return true
}

// Take takes n more bytes for t. If they are not free, it waits for them as long as wait; if that is 0, only for
// those of clients that have stalled, or will have within a quarter of a second, and are cut off for it. The errors
// are ErrFull, also for a token whose client is cut off, and that of ctx.
func (l *Limiter) Take(ctx context.Context, t *Token, n int64, wait time.Duration) error {
	if l.Try(t, n) {
		return nil
	}
	l.mu.Lock()
	switch {
	case t.lent && t.next == nil:
		l.mu.Unlock()
		return ErrFull
	case l.waiting.Load() == 0 && l.account.TryReserve(n):
		t.of, t.bytes = l, t.bytes+n
		l.mu.Unlock()
		return nil
	}
	w := &waiter{token: t, bytes: n, list: &l.queue, done: make(chan struct{})}
	if t.lent {
		w.list = &l.growing
	}
	w.element = w.list.PushFront(w)
	l.wanted += n
	l.waiting.Add(1)
	t.waits = w
	l.lookLocked()
	if wait == 0 && l.comesSoonLocked(n) {
		wait = freedWithin
	}
	l.mu.Unlock()

	if wait > 0 {
		late := time.NewTimer(wait)
		defer late.Stop()
		select {
		case <-w.done:
		case <-late.C:
		case <-ctx.Done():
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leaveLocked(w)
	switch {
	case w.granted:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case !t.lent || t.next != nil: // cutOffLocked has counted the others
		l.account.CountRefusal()
	}
	return ErrFull
}

// Resize makes t have n bytes, which are not fewer than it has, and all of this limiter. It takes them as Take does,
// and then releases what t has of another one, which is not lent meanwhile. After an error t has what it had.
func (l *Limiter) Resize(ctx context.Context, t *Token, n int64, wait time.Duration) error {
	if t.of == nil || t.of == l {
		return l.Take(ctx, t, n-t.bytes, wait)
	}
	if t.Reclaim() {
		return ErrFull
	}
	var more Token
	if err := l.Take(ctx, &more, n, wait); err != nil {
		return err
	}
	t.Release()
	*t = more
	return nil
}

// look serves the waiting requests, on a timer.
func (l *Limiter) look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looking = false
	l.lookLocked()
	if !l.grown {
		l.makeRoomLocked()
	}
	l.grown = false
}

// lookLocked gives free memory to waiting requests, and cuts off stalled clients for what is missing.
func (l *Limiter) lookLocked() {
	for l.grantNextLocked() {
	}
	if l.waiting.Load() == 0 {
		return
	}
	missing, now := l.wanted-l.leaving-(l.account.Limit()-l.account.Used()), time.Now()
	for t := l.lent.next; t != &l.lent && missing > 0; {
		next, stalled := t.next, now.Sub(t.since)
		if stalled < l.patience {
			break
		}
		if stalled >= t.patience && t.waits == nil {
			missing -= t.bytes
			l.cutOffLocked(t)
		}
		t = next
	}
	if !l.looking {
		l.looking = true
		time.AfterFunc(lookEvery, l.look)
	}
}

// makeRoomLocked cuts off requests that have memory and wait for more, if one of them can get its own only so. It is
// the one that has waited for longest, once it has done so for its patience; the newest are cut off.
func (l *Limiter) makeRoomLocked() {
	e := l.growing.Back()
	if e == nil || l.leaving > 0 {
		return
	}
	w := e.Value.(*waiter)
	if time.Since(w.token.since) < w.token.patience {
		return
	}
	missing := w.bytes - (l.account.Limit() - l.account.Used())
	var newest []*Token
	for other := l.growing.Front(); missing > 0; other = other.Next() {
		if other == e {
			return // the rest is not with those that wait, and comes back without this
		}
		newest = append(newest, other.Value.(*waiter).token)
		missing -= newest[len(newest)-1].bytes
	}
	l.first = w
	for _, t := range newest {
		l.cutOffLocked(t)
	}
}

// comesSoonLocked reports whether n bytes may come back within freedWithin: those of clients that are cut off, or that
// stall until then. Where stalled clients come again at once, all of them have always just begun.
func (l *Limiter) comesSoonLocked(n int64) bool {
	n -= l.leaving
	for t, by := l.lent.next, time.Now().Add(freedWithin); t != &l.lent && n > 0; t = t.next {
		stalled := by.Sub(t.since)
		if stalled <= l.patience {
			break
		}
		if stalled > t.patience && t.waits == nil {
			n -= t.bytes
		}
	}
	return n <= 0
}

// grantNextLocked gives those that grow and those in queue their turns, and reports whether one of them got something.
func (l *Limiter) grantNextLocked() bool {
	if l.first != nil {
		return l.grantLocked(l.first.element)
	}
	if !l.others && l.grantLocked(l.growing.Back()) {
		l.others = true
		return true
	}
	if l.grantQueuedLocked() {
		l.others = false
		return true
	}
	return l.others && l.grantLocked(l.growing.Back())
}

// grantQueuedLocked gives the newest and the longest waiter in queue their turns.
func (l *Limiter) grantQueuedLocked() bool {
	first, second := l.queue.Front(), l.queue.Back()
	if l.longest {
		first, second = second, first
	}
	if l.grantLocked(first) {
		l.longest = !l.longest
		return true
	}
	return l.grantLocked(second)
}

// grantLocked gives a waiter what it wants, and reports whether that was free.
func (l *Limiter) grantLocked(e *list.Element) bool {
	if e == nil {
		return false
	}
	w := e.Value.(*waiter)
	if !l.account.TryReserve(w.bytes) {
		return false
	}
	w.granted = true
	l.grown = l.grown || w.list == &l.growing
	w.token.of, w.token.bytes = l, w.token.bytes+w.bytes
	w.token.progressedLocked() // it was not the client that stalled
	l.leaveLocked(w)
	return true
}

// cutOffLocked ends the wait for a client. The request releases its memory when it notices.
func (l *Limiter) cutOffLocked(t *Token) {
	t.unlinkLocked()
	l.leaving += t.bytes
	l.account.CountRefusal()
	if t.waits != nil {
		l.leaveLocked(t.waits)
		return
	}
	t.client.CutOff()
}

// leaveLocked ends a wait, granted or not.
func (l *Limiter) leaveLocked(w *waiter) {
	if w.element == nil {
		return
	}
	w.list.Remove(w.element)
	if l.first == w {
		l.first = nil
	}
	w.element, w.token.waits = nil, nil
	close(w.done)
	l.wanted -= w.bytes
	l.waiting.Add(-1)
}

// Bytes returns how many bytes the token has.
func (t *Token) Bytes() int64 { return t.bytes }

// Of returns the limiter that the token's memory is of; nil: it has none.
func (t *Token) Of() *Limiter { return t.of }

// Lend lets others have the memory, until Reclaim, if the client makes no progress for as long as patience. The
// client is cut off then. Further calls do nothing.
func (t *Token) Lend(client Client, patience time.Duration) {
	l := t.of
	if l == nil || t.lent {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.patience == 0 || patience < l.patience {
		l.patience = patience
	}
	t.lent, t.client, t.patience, t.since = true, client, patience, time.Now()
	t.linkLocked()
}

// Progressed records that the client has made progress.
func (t *Token) Progressed() {
	if t.lent {
		t.of.mu.Lock()
		defer t.of.mu.Unlock()
		t.progressedLocked()
	}
}

func (t *Token) progressedLocked() {
	if t.next != nil {
		t.since = time.Now()
		t.unlinkLocked()
		t.linkLocked()
	}
}

// linkLocked makes the token the last one of its limiter's ring.
func (t *Token) linkLocked() {
	root := &t.of.lent
	t.prev, t.next = root.prev, root
	t.prev.next, root.prev = t, t
}

func (t *Token) unlinkLocked() {
	t.prev.next, t.next.prev = t.next, t.prev
	t.prev, t.next = nil, nil
}

// Reclaim ends Lend, and reports whether the client was cut off: then the memory has to be released.
func (t *Token) Reclaim() (cutOff bool) {
	if !t.lent {
		return false
	}
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.lent = false
	if t.next == nil {
		t.of.leaving -= t.bytes
		return true
	}
	t.unlinkLocked()
	return false
}

// Release gives the memory back. Further calls do nothing.
func (t *Token) Release() {
	l := t.of
	if l == nil {
		return
	}
	t.Reclaim()
	l.account.Release(t.bytes)
	*t = Token{}
	if l.waiting.Load() > 0 {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lookLocked()
	}
}
