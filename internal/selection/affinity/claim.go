package affinity

import "github.com/select-service/select-service/pkg/catalog"

// Claim is one request's use of a session. A nil Claim, and one that was released, is of no
// session. It is safe for concurrent use.
type Claim struct {
	table *Table
	key   Key
	// Turn is what the table notes of the request when it is booked. It may be set before that.
	Turn Turn

	// The fields below are guarded by table.mu.
	session  *session // nil: none, see Bind
	rank     catalog.Rank
	booked   bool // Bind was called
	released bool
	moves    bool // the claim decides where the session moves from rank; it stays there if nothing is booked
}

// Rank returns the rank that the session was bound to when it was claimed. ok is false if
// this request decides where the session is bound.
func (c *Claim) Rank() (catalog.Rank, bool) {
	if c == nil {
		return catalog.Rank{}, false
	}
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	if c.session == nil || c.session.decider == c {
		return catalog.Rank{}, false
	}
	return c.rank, true
}

// Drop ends the binding to the session's rank, which cannot be used any more: this request
// decides where the session is bound next. If another request has dropped the rank before, the
// claim moves to the session's new binding, or to no session while the other request decides.
func (c *Claim) Drop() { c.decide(false) }

// Move is Drop for a rank that cannot take this request, but may take later ones: if nothing is booked, the session
// stays bound to it.
func (c *Claim) Move() { c.decide(true) }

func (c *Claim) decide(moves bool) {
	if c == nil {
		return
	}
	t := c.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.released || c.session != nil && c.session.decider == c {
		return
	}
	s := t.boundOrDecidingLocked(c.key)
	c.moves = moves && s != nil && s == c.session
	switch {
	case s != nil && s == c.session: // the session ends, also for its other claims
		if !moves {
			t.publishLocked(s, Publisher.SessionUnbound)
		}
		turns, parent := s.takeTurns()
		t.removeLocked(s)
		c.session = t.addLocked(c.key, "")
		c.session.decider, c.session.turns, c.session.version = c, turns, s.version
		t.setParentLocked(c.session, parent)
	case s != nil && s.decider == nil:
		c.joinLocked(s)
	case s != nil:
		c.session = nil
	default:
		if c.session = t.addLocked(c.key, ""); c.session != nil {
			c.session.decider = c
		}
	}
}

// Bind records that the request was booked on r. If this request decides, the session is
// bound to r. If another one has decided meanwhile, that binding stays, and the claim joins it
// only if it is to r.
func (c *Claim) Bind(r catalog.Rank) {
	if c == nil {
		return
	}
	t := c.table
	t.mu.Lock()
	defer t.mu.Unlock()
	switch s := c.session; {
	case c.released:
	case s == nil:
		if s = t.boundLocked(c.key, r); s != nil && s.rank == r {
			c.joinLocked(s)
		}
	case s.decider == c:
		c.rank, s.claims = r, 1
		t.bindLocked(s, r)
	}
	if !c.released {
		if c.session != nil && !c.booked {
			t.beginLocked(c.session, c.Turn)
		}
		c.booked = true
		c.publishLocked()
	}
}

// publishLocked publishes to other replicas that the session is in use, if it is still the claim's.
func (c *Claim) publishLocked() {
	s, t := c.session, c.table
	if t.shared != nil && c.booked && s != nil && t.sessions[c.key] == s {
		t.publishLocked(s, Publisher.SessionBound)
	}
}

// Release ends the request's use: its reservation has ended, or nothing was booked. The time
// that an idle session is kept restarts. Further calls do nothing. bound reports whether the session is
// still bound as the request knew it: nobody has bound it anew, or is about to.
func (c *Claim) Release() (bound bool) {
	if c == nil {
		return false
	}
	t := c.table
	t.mu.Lock()
	defer t.mu.Unlock()
	bound = c.session != nil && c.session.decider == nil && t.sessions[c.key] == c.session
	c.releaseLocked()
	return bound
}

func (c *Claim) releaseLocked() {
	if c.released {
		return
	}
	c.released = true
	c.publishLocked()
	c.detachLocked()
}

// detachLocked takes the claim off its session.
func (c *Claim) detachLocked() {
	s, t := c.session, c.table
	c.session = nil
	switch {
	case s == nil:
	case s.decider == c && c.moves: // other replicas have not heard of the move
		if t.bindAsLocked(s, c.rank, s.version); s.claims == 0 {
			t.idleLocked(s, t.now())
		}
	case s.decider == c:
		t.passLocked(s)
	case t.sessions[c.key] != s:
	default:
		if c.booked {
			t.endLocked(s)
		}
		if s.claims--; s.claims == 0 {
			t.idleLocked(s, t.now())
		}
	}
}

// joinLocked attaches the claim to a bound session.
func (c *Claim) joinLocked(s *session) {
	c.table.busyLocked(s)
	s.peer = ""
	s.claims++
	c.session, c.rank = s, s.rank
}
