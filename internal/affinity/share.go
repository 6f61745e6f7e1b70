package affinity

import (
	"cmp"
	"slices"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// Version orders the bindings of one session over all replicas (dynamo-kv-router
// 1.6.1): who binds a session gives it a greater one than it has seen. It stays while
// the binding does.
type Version struct {
	// Sequence begins at the time of the writer's start, in nanoseconds since 1970,
	// and counts its bindings from there; a greater one that was seen lifts it.
	Sequence uint64
	Writer   uint64 // the process that has bound the session
}

// Compare orders versions.
func (v Version) Compare(w Version) int {
	return cmp.Or(cmp.Compare(v.Sequence, w.Sequence), cmp.Compare(v.Writer, w.Writer))
}

// Binding is what replicas tell each other of a session.
type Binding struct {
	Key
	Rank catalog.Rank
	Version
	Idle time.Duration // since its last use ended
}

// Publisher tells other replicas of bindings. It is called under the table's lock, must
// not block and must not call the table.
type Publisher interface {
	// SessionBound: a request was booked on the session's rank, or has ended.
	SessionBound(Binding)
	// SessionUnbound: the session must not be served by that rank any more.
	SessionUnbound(Binding)
}

// Share has p told of the bindings of requests that are booked here. writer names this
// process. It comes before all use.
func (t *Table) Share(writer uint64, p Publisher) {
	t.writer, t.shared, t.sequence = writer, p, uint64(max(0, t.now().UnixNano()))
}

// Result is what has become of a binding that a peer told of.
type Result uint8

// The results.
const (
	Applied Result = iota // inserted, extended, replaced or ended
	Ignored               // the session is being decided, or has a better binding
	Full                  // there is no room for it
)

// Apply joins a binding that peer told of, by the rules of dynamo-kv-router 1.6.1: it is
// taken where there is none, extends the same one, and replaces one to another rank if
// its version is greater. While the first request of the session is being decided here
// it is ignored. The name is at most MaxSession bytes long, and Sequence less than its
// largest value.
func (t *Table) Apply(peer string, b Binding) Result {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sequence = max(t.sequence, b.Sequence+1)
	now := t.now()
	since := now.Add(-b.Idle)
	s := t.currentLocked(b.Key)
	switch {
	case b.Idle >= t.ttl, s != nil && s.decider != nil:
		return Ignored
	case s == nil:
	case s.rank == b.Rank && b.Compare(s.version) >= 0:
		s.version = b.Version
		if s.idle != nil && since.After(s.since) {
			t.busyLocked(s)
			t.idleLocked(s, since)
		}
		return Applied
	case s.rank == b.Rank || b.Compare(s.version) <= 0:
		return Ignored
	default: // it goes, with the holds of requests here
		t.removeLocked(s)
	}
	if s = t.addLocked(b.Key, peer); s == nil {
		return Full
	}
	s.rank, s.version = b.Rank, b.Version
	t.idleLocked(s, since)
	return Applied
}

// ApplyUnbound ends a binding that a peer has ended, unless a later one has replaced it
// here.
func (t *Table) ApplyUnbound(b Binding) Result {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sequence = max(t.sequence, b.Sequence+1)
	s := t.currentLocked(b.Key)
	if s == nil || s.decider != nil || b.Compare(s.version) < 0 {
		return Ignored
	}
	t.removeLocked(s)
	return Applied
}

// Bindings returns at most limit bindings in the order in which they came, those after
// the given cursor, 0 for the first page. next is the cursor of the page after it; more
// is false on the last one. Every session that stays bound during the walk is on one of
// the pages.
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
	b := Binding{Key: s.key, Rank: s.rank, Version: s.version}
	if s.idle != nil {
		b.Idle = max(0, t.now().Sub(s.since))
	}
	return b
}

// nextVersionLocked returns the version of a binding that is made here.
func (t *Table) nextVersionLocked() Version {
	v := Version{Sequence: t.sequence, Writer: t.writer}
	t.sequence++
	return v
}

func (t *Table) publishLocked(s *session, tell func(Publisher, Binding)) {
	if t.shared != nil {
		tell(t.shared, Binding{Key: s.key, Rank: s.rank, Version: s.version})
	}
}

// arrivals are sessions in the order of their serial numbers, so that a page of them costs
// no more than its length.
type arrivals struct {
	list []arrival
	gone int // of list
}

type arrival struct {
	serial  uint64
	session *session // nil: gone
}

// add enters the newest session.
func (a *arrivals) add(s *session) { a.list = append(a.list, arrival{s.serial, s}) }

// after returns those with greater numbers, the gone ones included.
func (a *arrivals) after(serial uint64) []arrival {
	i, found := slices.BinarySearchFunc(a.list, serial, func(x arrival, n uint64) int { return cmp.Compare(x.serial, n) })
	if found {
		i++
	}
	return a.list[i:]
}

// remove takes a session out. Those that are gone are at most about half of the list.
func (a *arrivals) remove(s *session) {
	a.after(s.serial - 1)[0].session = nil
	if a.gone++; a.gone > len(a.list)/2 {
		a.list = slices.DeleteFunc(a.list, func(x arrival) bool { return x.session == nil })
		a.gone = 0
	}
}
