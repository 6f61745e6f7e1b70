package affinity

import (
	"container/list"
	"strings"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// A home is the rank of a session's last request, or of a group's. It is a wish: whoever chooses follows it
// while that pays, nobody waits for it, and the next request may move it. It lasts for some time after the
// last request. In a full table the home that has been idle for longest goes.

// GroupPrefix begins the names of groups: the sessions that one session has started. No client's session
// has such a name. Dynamo names groups so.
const GroupPrefix = "\x01sg:"

// IsGroup reports whether the key is that of a group.
func (k *Key) IsGroup() bool { return strings.HasPrefix(k.Session, GroupPrefix) }

// home is what a home has beside its rank.
type home struct {
	told time.Time // when it was published last
}

// publishEvery is how often other replicas are told that a home that stays where it is is in use.
const publishEvery = time.Minute

// KeepHomes has homes kept for that long after their last request. It must be called before any other use.
func (t *Table) KeepHomes(ttl time.Duration) { t.homeTTL = ttl }

// Home returns the home of a session, or the rank that it is bound to: then bound is true.
func (t *Table) Home(k Key) (r catalog.Rank, bound, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.currentLocked(k)
	if s == nil || s.decider != nil {
		return catalog.Rank{}, false, false
	}
	return s.rank, s.home == nil, true
}

// Settle notes that a request of a session goes to r, which is its home from now on. It has no effect on a
// session that is bound, or being bound. first is true if the session had no home that was used here, and has
// one now.
//
// running notes the end of the request; nil: none has begun, or it is of a group.
func (t *Table) Settle(k Key, r catalog.Rank, turn Turn) (first bool, running *Running) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.currentLocked(k)
	switch {
	case t.homeTTL == 0, s != nil && s.home == nil:
		return false, nil
	case s == nil:
		k.Session = strings.Clone(k.Session)
		if s = t.addLocked(k, ""); s == nil {
			return false, nil
		}
		first, s.home = true, new(home)
	default:
		first = s.peer != ""
	}
	if s.version == (Version{}) || s.rank != r {
		s.rank, s.version, s.home.told = r, t.nextVersionLocked(), time.Time{}
	}
	t.beginLocked(s, turn)
	t.useLocked(s)
	if s.key.IsGroup() {
		return first, nil
	}
	return first, &Running{t, s}
}

// Touch notes a request of a group that goes elsewhere than it would have by the group's home, which stays where it is.
func (t *Table) Touch(k Key, turn Turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.currentLocked(k); s != nil && s.home != nil {
		t.beginLocked(s, turn)
		t.useLocked(s)
	}
}

// useLocked notes that a home is in use, and publishes that from time to time.
func (t *Table) useLocked(s *session) {
	t.busyLocked(s)
	now := t.now()
	s.peer = ""
	t.idleLocked(s, now)
	if now.Sub(s.home.told) >= publishEvery {
		s.home.told = now
		t.publishLocked(s, Publisher.SessionBound)
	}
}

// homesOf returns the list of homes that a key's is in.
func (t *Table) homesOf(k Key) *list.List {
	if k.IsGroup() {
		return &t.homes.groups
	}
	return &t.homes.sessions
}

func (t *Table) ttlFor(home bool) time.Duration {
	if home {
		return t.homeTTL
	}
	return t.ttl
}

func (t *Table) ttlOf(s *session) time.Duration { return t.ttlFor(s.home != nil) }
