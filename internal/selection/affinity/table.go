package affinity

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/select-service/select-service/internal/selection/pauses"
	"github.com/select-service/select-service/pkg/catalog"
)

// MaxSessions is how many sessions are in a table (dynamo-kv-router 1.6.1).
const MaxSessions = 1 << 16

// Limits of the requests that wait for the first one of their session. Each has a goroutine and
// its prompt, and does not count in the admission queue's limits.
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
	// Limits of the waiting requests in all, and for one session.
	maxWaiting, maxSessionWaiting int

	homeTTL  time.Duration // see KeepHomes; 0: there are no homes
	maxBytes int64         // of all sessions; 0: no limit
	recycles bool          // see Recycle
	writer   uint64        // the writer in this process's versions
	shared   Publisher     // nil: sessions are not shared

	pauses *pauses.Learner // nil: nothing is learned of sessions' pauses

	// mu guards the fields below and the state of sessions and claims. It is held briefly,
	// except if many requests wait for one session, many sessions expire, or a page of them is
	// read. The publisher is called under it.
	mu       sync.Mutex
	sessions map[Key]*session
	arrivals arrivals  // the same sessions in order of arrival
	groups   int       // how many of them are groups
	idle     list.List // of *session: bound and not claimed, the longest idle first
	// homes has the homes of sessions and those of groups that are used here, the longest idle first.
	homes struct{ sessions, groups list.List }
	// foreign has the idle sessions that came from peers and have not been used here.
	// Those from a snapshot may stand behind younger ones.
	foreign  map[origin]*list.List
	waiting  int    // waiters of all sessions
	bytes    int64  // of all sessions
	serial   uint64 // serial number of the newest session
	sequence uint64 // sequence of this process's next version
	// displaced and refused are what Full returns.
	displaced, refused uint64
}

// origin is the peer that sessions, or groups, came from.
type origin struct {
	peer  string
	group bool
}

// session is a binding, or one that its first request is about to make. A session that is no
// longer in the table has no effect.
type session struct {
	key     Key
	decider *Claim    // nil: it is bound
	waiting list.List // of *Wait: requests waiting for the decision, in order
	rank    catalog.Rank
	version Version       // if bound; else of the binding that it keeps if its decider, which moves it, books nothing
	claims  int           // if bound
	idle    *list.Element // nil: claimed, or not bound
	since   time.Time     // start of the idle time
	peer    string        // the peer it came from; "": used here
	serial  uint64        // serial number, in order of arrival
	home    *home         // what a home has besides; nil: it is bound
	turns   turns
	parent  string // name of the session that has started it; "": not known
}

func (s *session) origin() origin { return origin{s.peer, s.key.IsGroup()} }

// Wait waits for the decision about a session. It has its claim when the decision has been made, or
// when it must decide itself.
type Wait struct {
	claim *Claim
	ready chan struct{}
	// in is the session whose list has the wait, as element, until it is ready.
	in      *session
	element *list.Element
}

// LimitBytes limits the approximate memory of all sessions; 0: no limit. It must be called
// before any other use.
func (t *Table) LimitBytes(most int64) { t.maxBytes = most }

// Recycle has the session that has been idle for longest make room for another one in a full table. It
// must be called before any other use.
func (t *Table) Recycle() { t.recycles = true }

// New returns an empty table of at most max sessions. A binding is dropped ttl after its last
// use has ended. now returns the time.
func New(ttl time.Duration, max int, now func() time.Time) *Table {
	return &Table{
		ttl: ttl, max: max, now: now,
		maxWaiting: MaxWaiting, maxSessionWaiting: MaxSessionWaiting,
		sessions: make(map[Key]*session), foreign: make(map[origin]*list.List),
	}
}

// Lookup returns the rank that a session is bound to. It does not extend the binding.
func (t *Table) Lookup(k Key) (catalog.Rank, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.currentLocked(k)
	if s == nil || s.decider != nil || s.home != nil {
		return catalog.Rank{}, false
	}
	return s.rank, true
}

// Claim claims a session for a request. The first request of a session gets a claim without a rank
// and decides where the session is bound; another one, until that is decided, gets a Wait instead.
// The claim must be released. Both are nil, and the session has no effect on the request, if the
// table is full or too many requests wait.
func (t *Table) Claim(k Key) (*Claim, *Wait) {
	c := &Claim{table: t, key: k}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.boundOrDecidingLocked(k)
	switch {
	case s == nil:
		if s = t.addLocked(k, ""); s == nil {
			return nil, nil
		}
		c.session, s.decider = s, c
	case s.decider == nil:
		c.joinLocked(s)
	case s.waiting.Len() >= t.maxSessionWaiting || t.waiting >= t.maxWaiting:
		return nil, nil
	default:
		t.waiting++
		w := &Wait{claim: c, ready: make(chan struct{}), in: s}
		w.element = s.waiting.PushBack(w)
		return nil, w
	}
	return c, nil
}

// Await waits until the session is bound, or the request is the one to decide, and returns its
// claim, which must be released. The error is ctx's. Await or Leave must be called, once.
func (w *Wait) Await(ctx context.Context) (*Claim, error) {
	select {
	case <-w.ready:
		return w.claim, nil
	case <-ctx.Done():
		w.Leave()
		return nil, ctx.Err()
	}
}

// Leave ends the wait, which may have ended already.
func (w *Wait) Leave() {
	t := w.claim.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.in != nil {
		w.in.waiting.Remove(w.element)
		t.waiting--
		return
	}
	w.claim.releaseLocked()
}

// End ends a binding or a home: the session has said that it sends no further request. A binding that another request
// is making at this moment stays.
func (t *Table) End(k Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.currentLocked(k)
	if s == nil {
		return
	}
	if s.decider == nil && s.turns.running > 0 && t.learnsOf(s) { // it does not come back after those either
		s.turns.seen = t.now()
		s.turns.awaited = true
		t.pauses.Ended(s.key.Scope, s.turns.class, s.turns.seen)
	}
	if s.turns.awaited {
		s.turns.awaited = false
		t.pauses.Final(s.key.Scope, s.turns.class, s.turns.seen)
	}
	if s.decider != nil {
		s.decider.moves = false
		return
	}
	t.publishLocked(s, Publisher.SessionUnbound)
	t.removeLocked(s)
}

// Sweep drops the sessions that have been idle for too long.
func (t *Table) Sweep() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sweepLocked()
}

// Len returns how many sessions there are, without groups.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.sessions) - t.groups
}

// Groups returns how many groups there are.
func (t *Table) Groups() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.groups
}

// Full returns how many sessions and groups have made room for others in a full table, and for how many there was no room.
func (t *Table) Full() (displaced, refused uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.displaced, t.refused
}

// Waiting returns how many requests wait for the first one of their session.
func (t *Table) Waiting() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waiting
}

// Bytes returns the approximate memory of the sessions.
func (t *Table) Bytes() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bytes
}

func (t *Table) sweepLocked() {
	t.sweepListLocked(&t.idle)
	t.sweepListLocked(&t.homes.sessions)
	t.sweepListLocked(&t.homes.groups)
	for _, idle := range t.foreign {
		t.sweepListLocked(idle)
	}
}

func (t *Table) sweepListLocked(idle *list.List) {
	now := t.now()
	for el := idle.Front(); el != nil; el = idle.Front() {
		s := el.Value.(*session)
		if now.Sub(s.since) < t.ttlOf(s) {
			return
		}
		t.removeLocked(s)
	}
}

// currentLocked returns a session that has not expired, or nil.
func (t *Table) currentLocked(k Key) *session {
	s := t.sessions[k]
	if s != nil && s.idle != nil && t.now().Sub(s.since) >= t.ttlOf(s) {
		t.removeLocked(s)
		return nil
	}
	return s
}

// boundOrDecidingLocked is currentLocked without homes: a binding goes before the home of the same name, which is forgotten.
func (t *Table) boundOrDecidingLocked(k Key) *session {
	s := t.currentLocked(k)
	if s != nil && s.home != nil {
		t.removeLocked(s)
		return nil
	}
	return s
}

// addLocked adds a session that came from peer, or is used here if peer is "". If the table is
// full, the peer with most sessions makes room for one that is used here or comes from a peer
// with fewer; otherwise the result is nil.
func (t *Table) addLocked(k Key, peer string) *session {
	if !t.hasRoomLocked(k) {
		t.sweepLocked()
	}
	for !t.hasRoomLocked(k) {
		most := t.mostForeignLocked(origin{peer, k.IsGroup()})
		from := most
		switch {
		case most != nil:
		case peer == "" && t.homesOf(k).Len() > 0:
			from = t.homesOf(k)
		case peer == "" && t.recycles && t.idle.Len() > 0:
			from = &t.idle
		default:
			t.refused++
			return nil
		}
		t.removeLocked(from.Front().Value.(*session))
		t.displaced++
	}
	t.serial++
	s := &session{key: k, peer: peer, serial: t.serial}
	t.sessions[k] = s
	t.arrivals.add(s)
	t.bytes += k.size()
	if k.IsGroup() {
		t.groups++
	}
	return s
}

func (t *Table) hasRoomLocked(k Key) bool {
	n := t.groups
	if !k.IsGroup() {
		n = len(t.sessions) - t.groups
	}
	return n < t.max && (t.maxBytes == 0 || t.bytes+k.size() <= t.maxBytes)
}

// mostForeignLocked returns the idle sessions, or groups, of the peer that has most of them; nil if there
// are none, or if by's peer itself has as many.
func (t *Table) mostForeignLocked(by origin) (most *list.List) {
	for of, idle := range t.foreign {
		if of.group == by.group && (most == nil || idle.Len() > most.Len()) {
			most = idle
		}
	}
	if by.peer == "" || most == nil {
		return most
	}
	if own := t.foreign[by]; own != nil && own.Len()+1 >= most.Len() {
		return nil
	}
	return most
}

// size returns the approximate memory of a session in bytes; the strings of its scope are shared.
func (k *Key) size() int64 {
	const session = 512
	return int64(session + len(k.Session))
}

func (s *session) size() int64 { return s.key.size() + int64(len(s.parent)) }

// idleLocked marks that a session has no claims any more.
func (t *Table) idleLocked(s *session, since time.Time) {
	if s.peer != "" && t.foreign[s.origin()] == nil {
		t.foreign[s.origin()] = list.New()
	}
	s.since, s.idle = since, t.idleListLocked(s).PushBack(s)
}

// busyLocked undoes idleLocked.
func (t *Table) busyLocked(s *session) {
	if s.idle == nil {
		return
	}
	idle := t.idleListLocked(s)
	if idle.Remove(s.idle); s.peer != "" && idle.Len() == 0 {
		delete(t.foreign, s.origin())
	}
	s.idle = nil
}

// idleListLocked returns the list that a session without claims is in.
func (t *Table) idleListLocked(s *session) *list.List {
	switch {
	case s.peer != "":
		return t.foreign[s.origin()]
	case s.home != nil:
		return t.homesOf(s.key)
	}
	return &t.idle
}

func (t *Table) removeLocked(s *session) {
	t.busyLocked(s)
	delete(t.sessions, s.key)
	t.arrivals.remove(s)
	t.bytes -= s.size()
	t.leftLocked(s)
	if s.key.IsGroup() {
		t.groups--
	}
}

// bindLocked binds a session. The requests that waited get claims on it.
func (t *Table) bindLocked(s *session, r catalog.Rank) { t.bindAsLocked(s, r, t.nextVersionLocked()) }

// bindAsLocked is bindLocked for a binding that has a version already.
func (t *Table) bindAsLocked(s *session, r catalog.Rank, v Version) {
	s.rank, s.version, s.decider = r, v, nil
	for s.waiting.Len() > 0 {
		t.wakeLocked(s).joinLocked(s)
	}
}

// wakeLocked ends the wait of the next waiter, and returns its claim for the caller to fill in.
func (t *Table) wakeLocked(s *session) *Claim {
	w := s.waiting.Remove(s.waiting.Front()).(*Wait)
	t.waiting--
	w.in = nil
	close(w.ready)
	return w.claim
}

// boundLocked returns the bound session of a key, and binds it to r if it was not bound. It is
// nil if the table is full.
func (t *Table) boundLocked(k Key, r catalog.Rank) *session {
	s := t.boundOrDecidingLocked(k)
	switch {
	case s == nil:
		if s = t.addLocked(k, ""); s != nil {
			s.rank, s.version = r, t.nextVersionLocked()
		}
	case s.decider != nil: // the decider's own choice comes too late
		s.decider.session = nil
		t.bindLocked(s, r)
	}
	return s
}

// passLocked passes the decision to the next waiting request; if there is none, the
// session is dropped.
func (t *Table) passLocked(s *session) {
	if s.waiting.Len() == 0 {
		t.removeLocked(s)
		return
	}
	s.decider = t.wakeLocked(s)
	s.decider.session = s
}
