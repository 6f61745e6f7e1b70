package affinity

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/select-service/select-service/internal/selection/pauses"
	"github.com/select-service/select-service/pkg/catalog"
)

// Turn is what a table notes of a request of a session, for people and for the learner of pauses.
type Turn struct {
	Tokens uint64 // of its prompt
	Class  pauses.Class
	Parent string // name of the key of the session that has started its session; "": not known
}

// turns are the requests of a session. What another replica has placed is not among them.
type turns struct {
	class   pauses.Class
	awaited bool // none is under way, and the learner waits for the next one
	count   uint32
	running int32     // those that have not ended
	tokens  uint64    // of all prompts
	seen    time.Time // when the last one was placed, or ended
}

// Running is a request of a session with a home. A nil one is of none. It is safe for concurrent use.
type Running struct {
	table   *Table
	session *session
}

// End notes that the request has ended. It must be called once.
func (r *Running) End() {
	if r == nil {
		return
	}
	t := r.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := r.session; t.sessions[s.key] == s {
		t.endLocked(s)
	}
}

// Learn has l learn the pauses of sessions, but not those of groups. It must be called before any other use.
func (t *Table) Learn(l *pauses.Learner) { t.pauses = l }

// beginLocked notes that a request of a session has been placed.
func (t *Table) beginLocked(s *session, turn Turn) {
	now := t.now()
	t.returnedLocked(s, now)
	s.turns.count++
	if s.home == nil || !s.key.IsGroup() { // nobody notes the ends of a group's requests
		s.turns.running++
	}
	s.turns.tokens += turn.Tokens
	s.turns.class, s.turns.seen = turn.Class, now
	if s.parent == "" {
		t.setParentLocked(s, strings.Clone(turn.Parent))
	}
}

// learnsOf reports whether pauses are learned of a session.
func (t *Table) learnsOf(s *session) bool { return t.pauses != nil && !s.key.IsGroup() }

// endLocked notes that one has ended.
func (t *Table) endLocked(s *session) {
	s.turns.running--
	s.turns.seen = t.now()
	if s.turns.running == 0 && t.learnsOf(s) {
		s.turns.awaited = true
		t.pauses.Ended(s.key.Scope, s.turns.class, s.turns.seen)
	}
}

// returnedLocked notes that a session has come back, here or at another replica.
func (t *Table) returnedLocked(s *session, now time.Time) {
	if s.turns.awaited {
		s.turns.awaited = false
		t.pauses.Returned(s.key.Scope, s.turns.class, s.turns.seen, now)
	}
}

// leftLocked notes that a session leaves the table.
func (t *Table) leftLocked(s *session) {
	if s.turns.awaited {
		s.turns.awaited = false
		t.pauses.Left(s.key.Scope, s.turns.class, s.turns.seen, t.now())
	}
}

// takeTurns moves what was noted of a session to another binding of its name, under which none is under way.
func (s *session) takeTurns() (turns, string) {
	taken := s.turns
	taken.running, s.turns.awaited = 0, false
	return taken, s.parent
}

// setParentLocked notes the parent of a session, unless there is no memory for its name: people alone miss it.
func (t *Table) setParentLocked(s *session, parent string) {
	if t.maxBytes > 0 && t.bytes+int64(len(parent)) > t.maxBytes {
		return
	}
	s.parent = parent
	t.bytes += int64(len(parent))
}

// Session is what a table knows of a session, for people.
type Session struct {
	Key
	Parent  string // name of the key of the session that has started it; "": not known
	Rank    catalog.Rank
	Bound   bool // to Rank; false: it may move
	Class   pauses.Class
	Turns   uint32
	Running uint32    // turns that have not ended
	Tokens  uint64    // of all prompts
	Seen    time.Time // when its last turn was placed, or ended
	// Elsewhere: another replica, or this one before its start, has used it last. Its turns there are not counted.
	Elsewhere bool
	serial    uint64
}

// Cursor is a place in the order of sessions: those that were seen last come first. The zero value is before all.
type Cursor struct {
	Seen   int64 // ns since 1970
	Serial uint64
}

// Cursor returns the session's place.
func (s *Session) Cursor() Cursor { return Cursor{s.Seen.UnixNano(), s.serial} }

// compare is negative if c is before other.
func (c Cursor) compare(other Cursor) int {
	return cmp.Or(cmp.Compare(other.Seen, c.Seen), cmp.Compare(other.Serial, c.Serial))
}

// chunk is how many sessions List looks at while it holds the lock.
const chunk = 1024

// List returns at most limit sessions and groups for which want returns true and that are after a place in the order of
// when they were seen, the last ones first. total is how many there are in all places. Sessions that change meanwhile may be missed.
func (t *Table) List(after Cursor, limit int, want func(*Session) bool) (list []Session, total int) {
	trim := func() {
		slices.SortFunc(list, func(a, b Session) int { return a.Cursor().compare(b.Cursor()) })
		list = list[:min(len(list), limit)]
	}
	for from, more := uint64(0), true; more; {
		var some []Session
		some, from, more = t.someSessions(from)
		for i := range some {
			s := &some[i]
			if !want(s) {
				continue
			}
			total++
			if after == (Cursor{}) || after.compare(s.Cursor()) < 0 {
				list = append(list, *s)
			}
		}
		if len(list) >= 2*limit+chunk {
			trim()
		}
	}
	trim()
	return list, total
}

// someSessions returns the sessions among the next arrivals after a serial number.
func (t *Table) someSessions(from uint64) (some []Session, next uint64, more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	entries := t.arrivals.after(from)
	for i, a := range entries {
		if i == chunk {
			return some, from, true
		}
		from = a.serial
		s := a.session
		if s == nil || s.decider != nil {
			continue
		}
		row := Session{
			Key: s.key, Parent: s.parent, Rank: s.rank, Bound: s.home == nil, Class: s.turns.class, Turns: s.turns.count,
			Running: uint32(max(0, s.turns.running)), Tokens: s.turns.tokens, Seen: s.turns.seen, Elsewhere: s.peer != "" || s.turns.count == 0, serial: s.serial,
		}
		if s.since.After(row.Seen) {
			row.Seen = s.since
		}
		some = append(some, row)
	}
	return some, from, false
}
