package affinity

import "github.com/select-service/select-service/pkg/catalog"

// Hold is one request's use of a session. A nil Hold, and one that was released, is of no
// session. It is safe for concurrent use.
type Hold struct {
	table  *Table
	key    Key
	waited bool // constant once Acquire has returned it

	// The fields below are guarded by table.mu.
	session  *session // nil: none, see Bind
	rank     catalog.Rank
	booked   bool // Bind was called
	released bool
}

// Rank returns the rank that the session was bound to when the hold was taken. ok is false if
// this request decides where the session is bound.
func (h *Hold) Rank() (catalog.Rank, bool) {
	if h == nil {
		return catalog.Rank{}, false
	}
	h.table.mu.Lock()
	defer h.table.mu.Unlock()
	if h.session == nil || h.session.decider == h {
		return catalog.Rank{}, false
	}
	return h.rank, true
}

// Waited reports whether the request has waited for another one's decision, so that its
// state may be outdated.
func (h *Hold) Waited() bool { return h != nil && h.waited }

// Drop ends the binding to the session's rank, which cannot be used any more: this request
// decides where the session is bound next. If another request has dropped the rank before, the
// hold moves to the session's new binding, or to no session while the other request decides.
func (h *Hold) Drop() {
	if h == nil {
		return
	}
	t := h.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if h.released || h.session != nil && h.session.decider == h {
		return
	}
	s := t.currentLocked(h.key)
	switch {
	case s != nil && s == h.session: // the session ends, also for its other holds
		t.publishLocked(s, Publisher.SessionUnbound)
		t.removeLocked(s)
		h.session = t.addLocked(h.key, "")
		h.session.decider = h
	case s != nil && s.decider == nil:
		h.holdLocked(s)
	case s != nil:
		h.session = nil
	default:
		if h.session = t.addLocked(h.key, ""); h.session != nil {
			h.session.decider = h
		}
	}
}

// Bind records that the request was booked on r. If this request decides, the session is
// bound to r. If another one has decided meanwhile, that binding stays, and the hold joins it
// only if it is to r.
func (h *Hold) Bind(r catalog.Rank) {
	if h == nil {
		return
	}
	t := h.table
	t.mu.Lock()
	defer t.mu.Unlock()
	switch s := h.session; {
	case h.released:
	case s == nil:
		if s = t.boundLocked(h.key, r); s != nil && s.rank == r {
			h.holdLocked(s)
		}
	case s.decider == h:
		h.rank, s.holds = r, 1
		t.bindLocked(s, r)
	}
	if !h.released {
		h.booked = true
		h.publishLocked()
	}
}

// publishLocked publishes to other replicas that the session is in use, if it is still the hold's.
func (h *Hold) publishLocked() {
	s, t := h.session, h.table
	if t.shared != nil && h.booked && s != nil && t.sessions[h.key] == s {
		t.publishLocked(s, Publisher.SessionBound)
	}
}

// Release ends the request's use: its reservation has ended, or nothing was booked. The time
// that an idle session is kept restarts. Further calls do nothing.
func (h *Hold) Release() {
	if h == nil {
		return
	}
	h.table.mu.Lock()
	defer h.table.mu.Unlock()
	h.releaseLocked()
}

func (h *Hold) releaseLocked() {
	if h.released {
		return
	}
	h.released = true
	h.publishLocked()
	h.detachLocked()
}

// detachLocked takes the hold off its session.
func (h *Hold) detachLocked() {
	s, t := h.session, h.table
	h.session = nil
	switch {
	case s == nil:
	case s.decider == h:
		t.passLocked(s)
	case t.sessions[h.key] != s:
	default:
		if s.holds--; s.holds == 0 {
			t.idleLocked(s, t.now())
		}
	}
}

// holdLocked attaches the hold to a bound session.
func (h *Hold) holdLocked(s *session) {
	h.table.busyLocked(s)
	s.peer = ""
	s.holds++
	h.session, h.rank = s, s.rank
}
