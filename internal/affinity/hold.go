package affinity

import "github.com/select-service/select-service/pkg/catalog"

// Hold is one request's use of a session. A nil Hold is one of no session; so is
// one that was released. It is safe for concurrent use.
type Hold struct {
	table  *Table
	key    Key
	waited bool // constant once Acquire has returned it

	// table.mu guards what follows.
	session  *session // nil: none, see Bind
	rank     catalog.Rank
	booked   bool // Bind was called
	released bool
}

// Rank returns the rank that the session was bound to when the hold was taken.
// It is false if this request decides.
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

// Waited reports whether the request has waited for another one's decision: what it
// knew before may have changed.
func (h *Hold) Waited() bool { return h != nil && h.waited }

// Drop says that the session's rank cannot be used any more: this request decides
// where the session is bound next. If another request has dropped the rank before,
// the hold is one of what became of the session: of its new rank, or of no session
// while the other one decides.
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
	case s != nil && s == h.session: // the old session goes, with the holds of others
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

// Bind says that the request was booked on r. If this request decides, the session
// is bound to r. If another one has decided in the meantime, that binding stays, and
// the hold is one of it only if it is to r.
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

// publishLocked tells other replicas that the session is in use, if it is still the
// hold's.
func (h *Hold) publishLocked() {
	s, t := h.session, h.table
	if t.shared != nil && h.booked && s != nil && t.sessions[h.key] == s {
		t.publishLocked(s, Publisher.SessionBound)
	}
}

// Release ends the request's use: its reservation has ended, or nothing was
// booked. The time for which an idle session is kept starts again. Further calls
// do nothing.
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

// holdLocked takes a use of a session that is bound.
func (h *Hold) holdLocked(s *session) {
	h.table.busyLocked(s)
	s.peer = ""
	s.holds++
	h.session, h.rank = s, s.rank
}
