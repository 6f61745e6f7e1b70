package affinity

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// Limits of dynamo-kv-router 1.6.1.
const (
	MaxSession  = 256     // bytes of a session's name
	MaxSessions = 1 << 16 // in a table
)

// Limits of the requests that wait for the first one of their session. Each has a
// goroutine and its prompt, and the admission queue's limits do not see it.
const (
	MaxWaiting        = 1 << 16 // in a table
	MaxSessionWaiting = 1 << 10 // for one session
)

// Key names a session: scopes do not share them.
type Key struct {
	Scope   catalog.Scope
	Session string
}

// Table has the sessions. It is safe for concurrent use.
type Table struct {
	ttl time.Duration
	max int
	now func() time.Time
	// Limits of the requests that wait in all, and for one session.
	maxWaiting, maxSessionWaiting int

	// mu guards what follows and the state of sessions and holds. It is held for a
	// few steps, except where many wait for one session or many sessions expire.
	mu       sync.Mutex
	sessions map[Key]*session
	idle     list.List // of *session: bound and not held, the longest idle first
	waiting  int       // waiters of all sessions
}

// session is one binding, or one that its first request is about to make. A session
// that is not in the table any more has no effect.
type session struct {
	key     Key
	decider *Hold     // nil: it is bound
	waiting list.List // of *waiter, for the decision, the first comes next
	rank    catalog.Rank
	holds   int           // if bound
	idle    *list.Element // nil: held, or not bound
	since   time.Time     // of idle
}

// waiter waits for the decision about a session. It gets its hold when that has
// been made, or when it has to make it itself.
type waiter struct {
	hold  *Hold
	ready chan struct{}
	// in has the waiter, as element, until it is ready.
	in      *session
	element *list.Element
}

// New returns an empty table of at most max sessions. A binding is forgotten ttl
// after its last use has ended. The time comes from now.
func New(ttl time.Duration, max int, now func() time.Time) *Table {
	return &Table{
		ttl: ttl, max: max, now: now,
		maxWaiting: MaxWaiting, maxSessionWaiting: MaxSessionWaiting,
		sessions: make(map[Key]*session),
	}
}

// Lookup returns the rank that a session is bound to. It does not prolong it.
func (t *Table) Lookup(k Key) (catalog.Rank, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.currentLocked(k)
	if s == nil || s.decider != nil {
		return catalog.Rank{}, false
	}
	return s.rank, true
}

// Acquire holds a session for a request. The first request of a session, whose
// hold has no rank, decides where it is bound; others wait until it has, or
// until they become the first. The hold must be released. It is nil if the table
// is full, or if too many wait: then the session has no effect on the request. The
// error is the context's, or that of beforeWait, which is called if the request has to
// wait; nil: nothing is to be done then.
func (t *Table) Acquire(ctx context.Context, k Key, beforeWait func() error) (*Hold, error) {
	h := &Hold{table: t, key: k}
	w, full := t.enter(h)
	switch {
	case full:
		return nil, nil
	case w == nil:
		return h, nil
	}
	if beforeWait != nil {
		if err := beforeWait(); err != nil {
			t.leave(w)
			return nil, err
		}
	}
	select {
	case <-w.ready:
		h.waited = true
		return h, nil
	case <-ctx.Done():
		t.leave(w)
		return nil, ctx.Err()
	}
}

// enter gives a hold its session, or a waiter for it, or finds no room for either.
func (t *Table) enter(h *Hold) (w *waiter, full bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.currentLocked(h.key)
	switch {
	case s == nil:
		if s = t.addLocked(h.key); s == nil {
			return nil, true
		}
		h.session, s.decider = s, h
	case s.decider == nil:
		h.holdLocked(s)
	case s.waiting.Len() >= t.maxSessionWaiting || t.waiting >= t.maxWaiting:
		return nil, true
	default:
		t.waiting++
		w = &waiter{hold: h, ready: make(chan struct{}), in: s}
		w.element = s.waiting.PushBack(w)
	}
	return w, false
}

// leave ends a wait. It may have been over already.
func (t *Table) leave(w *waiter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.in != nil {
		w.in.waiting.Remove(w.element)
		t.waiting--
		return
	}
	w.hold.releaseLocked()
}

// Join holds a session for a request whose rank r is settled already. It never
// waits: if the session is not bound yet, it is bound to r now. It may be
// bound to another rank, see Hold.Rank. The hold is nil if the table is full.
func (t *Table) Join(k Key, r catalog.Rank) *Hold {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.boundLocked(k, r)
	if s == nil {
		return nil
	}
	h := &Hold{table: t, key: k}
	h.holdLocked(s)
	return h
}

// Sweep forgets the sessions that have been idle for too long.
func (t *Table) Sweep() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sweepLocked()
}

// Len returns how many sessions there are.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.sessions)
}

// Waiting returns how many requests wait for the first one of their session.
func (t *Table) Waiting() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waiting
}

func (t *Table) sweepLocked() {
	now := t.now()
	for el := t.idle.Front(); el != nil; el = t.idle.Front() {
		s := el.Value.(*session)
		if now.Sub(s.since) < t.ttl {
			return
		}
		t.removeLocked(s)
	}
}

// currentLocked returns a session that has not expired, or nil.
func (t *Table) currentLocked(k Key) *session {
	s := t.sessions[k]
	if s != nil && s.idle != nil && t.now().Sub(s.since) >= t.ttl {
		t.removeLocked(s)
		return nil
	}
	return s
}

// addLocked makes a session, nil if the table is full.
func (t *Table) addLocked(k Key) *session {
	if len(t.sessions) >= t.max {
		t.sweepLocked()
	}
	if len(t.sessions) >= t.max {
		return nil
	}
	s := &session{key: k}
	t.sessions[k] = s
	return s
}

func (t *Table) removeLocked(s *session) {
	if s.idle != nil {
		t.idle.Remove(s.idle)
		s.idle = nil
	}
	delete(t.sessions, s.key)
}

// bindLocked binds a session: the requests that waited hold it.
func (t *Table) bindLocked(s *session, r catalog.Rank) {
	s.rank, s.decider = r, nil
	for s.waiting.Len() > 0 {
		t.wakeLocked(s).holdLocked(s)
	}
}

// wakeLocked ends the wait of the next waiter and returns its hold, which the caller
// fills in.
func (t *Table) wakeLocked(s *session) *Hold {
	w := s.waiting.Remove(s.waiting.Front()).(*waiter)
	t.waiting--
	w.in = nil
	close(w.ready)
	return w.hold
}

// boundLocked returns a session that is bound: to r, unless it was bound before. It
// is nil if the table is full.
func (t *Table) boundLocked(k Key, r catalog.Rank) *session {
	s := t.currentLocked(k)
	switch {
	case s == nil:
		if s = t.addLocked(k); s != nil {
			s.rank = r
		}
	case s.decider != nil: // its decision comes too late
		s.decider.session = nil
		t.bindLocked(s, r)
	}
	return s
}

// passLocked gives the decision to the next request that waits for it; if there is
// none the session is forgotten.
func (t *Table) passLocked(s *session) {
	if s.waiting.Len() == 0 {
		t.removeLocked(s)
		return
	}
	s.decider = t.wakeLocked(s)
	s.decider.session = s
}
