package affinity

import (
	"cmp"
	"slices"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// Version orders the bindings of one session over all replicas (dynamo-kv-router 1.6.1). A
// replica that binds a session gives the binding a greater version than it has seen. The
// version does not change while the binding lasts.
type Version struct {
	// Sequence starts at the time of the writer's start, in Unix ns, and is incremented for
	// each of its bindings. A greater one seen from a peer raises it.
	Sequence uint64
	Writer   uint64 // the process that has bound the session
}

// Compare orders versions.
func (v Version) Compare(w Version) int {
	return cmp.Or(cmp.Compare(v.Sequence, w.Sequence), cmp.Compare(v.Writer, w.Writer))
}

// Binding is a binding of a session as replicas exchange it.
type Binding struct {
	Key
	Rank catalog.Rank
	Version
	Idle time.Duration // time since its last use ended
	Home bool          // it is a session's home, which moves, and not a binding
}

// Publisher publishes bindings to other replicas. It is called under the table's lock, and must
// neither block nor call the table.
type Publisher interface {
	// SessionBound is called when a request was booked on the session's rank, and when it has
	// ended.
	SessionBound(Binding)
	// SessionUnbound is called when the session must not use its rank any more.
	SessionUnbound(Binding)
}

// Share publishes the bindings of requests that are booked here to p. writer is the id of this
// process. It must be called before any other use.
func (t *Table) Share(writer uint64, p Publisher) {
	t.writer, t.shared, t.sequence = writer, p, uint64(max(0, t.now().UnixNano()))
}

// Result is the outcome of a peer's binding.
type Result uint8

// The results.
const (
	Applied Result = iota // inserted, extended, replaced or ended
	Ignored               // the session is being decided here, or has a newer binding
	Full                  // the table is full
)

// Apply merges a binding from peer, by the rules of dynamo-kv-router 1.6.1. It is inserted if
// there is none, extends an equal one, and replaces one to another rank if its version is
// greater. It is ignored while the first request of the session is being decided here. A binding
// replaces a home, and is never replaced by one. Sequence must be below its largest value, and whoever
// receives the binding bounds its name.
func (t *Table) Apply(peer string, b Binding) Result {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sequence = max(t.sequence, b.Sequence+1)
	now := t.now()
	since := now.Add(-b.Idle)
	s := t.currentLocked(b.Key)
	switch {
	case b.Idle >= t.ttlFor(b.Home), s != nil && (s.decider != nil || b.Home && s.home == nil):
		return Ignored
	case s == nil:
	case s.home != nil && !b.Home:
		t.returnedLocked(s, since)
		t.removeLocked(s)
	case s.rank == b.Rank && b.Compare(s.version) >= 0:
		t.returnedLocked(s, since)
		s.version = b.Version
		if s.idle != nil && since.After(s.since) {
			t.busyLocked(s)
			t.idleLocked(s, since)
		}
		return Applied
	case s.rank == b.Rank || b.Compare(s.version) <= 0:
		return Ignored
	default: // the old binding ends, also for requests here
		t.returnedLocked(s, since)
		t.removeLocked(s)
	}
	if s = t.addLocked(b.Key, peer); s == nil {
		return Full
	}
	s.rank, s.version = b.Rank, b.Version
	if b.Home {
		s.home = new(home)
	}
	t.idleLocked(s, since)
	return Applied
}

// ApplyUnbound ends a binding that a peer has ended, unless a later one has replaced it here.
func (t *Table) ApplyUnbound(b Binding) Result {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sequence = max(t.sequence, b.Sequence+1)
	s := t.currentLocked(b.Key)
	if s != nil && s.decider != nil && !b.Home && b.Compare(s.version) >= 0 {
		s.decider.moves = false
	}
	if s == nil || s.decider != nil || b.Home != (s.home != nil) || b.Compare(s.version) < 0 {
		return Ignored
	}
	t.removeLocked(s)
	return Applied
}

// Bindings returns at most limit bindings in order of arrival, starting after the given cursor
// (0 for the first page). next is the cursor for the following page; more is false on the last
// page. Every session that stays bound during the whole walk is on one of the pages.
func (t *Table) Bindings(after uint64, limit int) (page []Binding, next uint64, more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range t.arrivals.after(after) {
		if a.session == nil || a.session.decider != nil {
			continue
		}
		if len(page) == limit {
			return page, next, true
		}
		page, next = append(page, t.bindingLocked(a.session)), a.serial
	}
	return page, next, false
}

func (t *Table) bindingLocked(s *session) Binding {
	b := Binding{Key: s.key, Rank: s.rank, Version: s.version, Home: s.home != nil}
	if s.idle != nil {
		b.Idle = max(0, t.now().Sub(s.since))
	}
	return b
}

// nextVersionLocked returns the version for a binding that is made here.
func (t *Table) nextVersionLocked() Version {
	v := Version{Sequence: t.sequence, Writer: t.writer}
	t.sequence++
	return v
}

func (t *Table) publishLocked(s *session, tell func(Publisher, Binding)) {
	if t.shared != nil {
		tell(t.shared, Binding{Key: s.key, Rank: s.rank, Version: s.version, Home: s.home != nil})
	}
}

// arrivals has the sessions in order of serial number, so that a page of them costs no
// more than its length.
type arrivals struct {
	list []arrival
	gone int // removed entries in list
}

type arrival struct {
	serial  uint64
	session *session // nil: removed
}

// add enters the newest session.
func (a *arrivals) add(s *session) { a.list = append(a.list, arrival{s.serial, s}) }

// after returns the entries with greater numbers, including removed ones.
func (a *arrivals) after(serial uint64) []arrival {
	i, found := slices.BinarySearchFunc(a.list, serial, func(x arrival, n uint64) int { return cmp.Compare(x.serial, n) })
	if found {
		i++
	}
	return a.list[i:]
}

// remove removes a session. Removed entries make up at most about half of the list.
func (a *arrivals) remove(s *session) {
	a.after(s.serial - 1)[0].session = nil
	if a.gone++; a.gone > len(a.list)/2 {
		a.list = slices.DeleteFunc(a.list, func(x arrival) bool { return x.session == nil })
		a.gone = 0
	}
}
