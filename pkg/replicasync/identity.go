package replicasync

import (
	"fmt"
	"time"

	"github.com/select-service/select-service/pkg/reservations"
)

// identity records which endpoints speak for a process. Process ids are no secret, so
// any peer can use one. An endpoint is confirmed if the snapshot at its announced URL,
// which is read from the endpoint's own host, is that of the process. While one endpoint
// is confirmed, messages in the process's name from other endpoints are refused. If
// several are confirmed, each is believed only as much as any peer about any process: an
// impostor can neither speak for the process nor silence it, whichever came first. Only where the process
// itself has said that it is heard at an endpoint at which the transport authenticates it, too, that one is it.
type identity struct {
	senders []*sender // one per endpoint
	// speaker is the one endpoint whose statements about the process's numbers the ledger
	// believes, "" if there is none.
	speaker string
}

// at returns the sender at an endpoint, or nil. A nil identity has none.
func (id *identity) at(peer string) *sender {
	if id != nil {
		for _, s := range id.senders {
			if s.peer == peer {
				return s
			}
		}
	}
	return nil
}

// hasConfirmed reports whether any endpoint is confirmed and present.
func (id *identity) hasConfirmed() bool {
	_, n := id.confirmed()
	return n > 0
}

// speaks reports whether the process speaks for itself: it has a speaker, which is
// confirmed and present.
func (id *identity) speaks() bool {
	if id == nil || id.speaker == "" {
		return false
	}
	s := id.at(id.speaker)
	return s != nil && s.confirmed && !s.absent
}

// confirmedAt reports whether that endpoint is confirmed, present or not.
func (id *identity) confirmedAt(peer string) bool {
	s := id.at(peer)
	return s != nil && s.confirmed
}

// confirmed returns how many endpoints are confirmed and present, and one of them.
func (id *identity) confirmed() (some *sender, n int) {
	if id == nil {
		return nil, 0
	}
	for _, s := range id.senders {
		if s.confirmed && !s.absent {
			some = s
			n++
		}
	}
	return some, n
}

// endpoint is the state that the processes at one endpoint share. There are several if a
// replica was restarted: each start is a new process.
type endpoint struct {
	fetching bool      // a snapshot is being read
	fetched  time.Time // when the last read of a snapshot began
	senders  int       // number of senders at the endpoint
	// newcomers is how many further processes may appear now. Tokens are added over
	// time (newcomerEvery), the last time at refilled.
	newcomers int
	refilled  time.Time
}

const (
	// maxSendersAt bounds the processes that are tracked at one endpoint; the one that
	// was silent for longest makes room.
	maxSendersAt = 8
	// maxNewcomers new processes may appear at an endpoint in a burst, then one per
	// newcomerEvery: each means a restart, after which all snapshots are read.
	maxNewcomers  = 16
	newcomerEvery = 5 * time.Second
)

// admit reports whether one more process may appear at the endpoint, and counts it.
func (e *endpoint) admit(now time.Time) bool {
	if n := int(now.Sub(e.refilled) / newcomerEvery); n > 0 {
		e.newcomers, e.refilled = min(maxNewcomers, e.newcomers+n), now
	}
	if e.newcomers == 0 {
		return false
	}
	e.newcomers--
	return true
}

// sender returns the sender of a process whose message has just come from an endpoint,
// and creates it if needed; nil if too many processes appear there.
func (c *core) sender(process uint64, peer string, now time.Time) *sender {
	id := c.identities[process]
	s := id.at(peer)
	if s == nil {
		p := c.endpoints[peer]
		if p == nil {
			p = &endpoint{newcomers: maxNewcomers, refilled: now}
			c.endpoints[peer] = p
		}
		if !p.admit(now) {
			return nil
		}
		if p.senders >= maxSendersAt {
			c.evict(peer)
		}
		if id = c.identities[process]; id == nil { // looked up again: evict may have removed it
			id = &identity{}
			c.identities[process] = id
		}
		s = &sender{process: process, peer: peer}
		id.senders = append(id.senders, s)
		p.senders++
	}
	s.lastHeard = now
	return s
}

// evict forgets the process that has been silent for longest among those at an endpoint.
func (c *core) evict(peer string) {
	var oldest *sender
	for _, s := range c.byProcess() {
		if s.peer == peer && (oldest == nil || s.lastHeard.Before(oldest.lastHeard)) {
			oldest = s
		}
	}
	c.forget(oldest)
}

// forget removes a sender. Its last messages may have reached this replica only, so it becomes absent
// first, whatever the reason is.
func (c *core) forget(gone *sender) {
	c.becomeAbsent(gone)
	id := c.identities[gone.process]
	for i, s := range id.senders {
		if s == gone {
			id.senders = append(id.senders[:i], id.senders[i+1:]...)
			break
		}
	}
	c.endpoints[gone.peer].senders--
	if id.speaker == gone.peer {
		c.unbind(gone.process, id)
	}
	c.settle(gone.process)
	if len(id.senders) == 0 {
		delete(c.identities, gone.process)
	}
}

// forgetPeer forgets the processes whose messages came from a peer's endpoint.
func (c *core) forgetPeer(peer string) {
	for _, s := range c.byProcess() {
		if s.peer == peer {
			c.forget(s)
		}
	}
	delete(c.endpoints, peer)
}

// settle decides which endpoint speaks for a process, after a change. A confirmed
// endpoint counts until it is forgotten, even if it is absent: while a process is away,
// no other endpoint takes its place.
func (c *core) settle(process uint64) {
	id := c.identities[process]
	var only *sender
	n := 0
	for _, s := range id.senders {
		if !s.confirmed {
			continue
		}
		if o := id.at(s.also); o != nil && o.confirmed && o.authenticated && !s.authenticated {
			continue // the same replica
		}
		only = s
		n++
	}
	switch {
	case n > 1 && id.speaker != "":
		c.unbind(process, id)
	case n == 1 && id.speaker != only.peer:
		if id.speaker != "" {
			c.unbind(process, id)
		}
		id.speaker, only.wanted = only.peer, true
		c.ledger.Bind(process, only.peer)
	}
}

// unbind leaves a process without a speaker. The ledger then drops the history of the
// process's numbers. So the frees by callers are recorded by name instead, and all
// snapshots are wanted: they may have what was ended or refused by number.
func (c *core) unbind(process uint64, id *identity) {
	id.speaker = ""
	c.ledger.Unbind(process)
	for reporter, names := range c.freed.of(process) {
		c.ledger.MergeFreed(reporter, names)
	}
	c.wantAll()
}

// authorityOf returns how far a sender is believed about its own reservations.
func (c *core) authorityOf(s *sender) reservations.Authority {
	if s != nil && s.confirmed && !s.absent && c.identities[s.process].speaker == s.peer {
		return reservations.ByOwner
	}
	return reservations.Relayed
}

// authorityAbout returns how far the snapshot of a fetch is believed about the reservations of a
// process.
func (c *core) authorityAbout(q fetchRequest, process uint64) reservations.Authority {
	id := c.identities[process]
	switch {
	case process == q.process:
		return c.authorityOf(id.at(q.peer))
	case process == c.process || id.speaks():
		return reservations.Supplementary
	}
	return reservations.Relayed
}

// confirm is called when the snapshot at a sender's URL has turned out to be that of the
// process that the sender claims to be, which has used its numbers up to sequence, and is authenticated at an
// endpoint, "" for none, as the snapshot says. It returns an error if messages of the sender had shown higher
// numbers before: then they are not that process's.
func (c *core) confirm(q fetchRequest, sequence uint64, at string) error {
	s := c.identities[q.process].at(q.peer)
	if s == nil {
		return nil // forgotten meanwhile
	}
	if q.claimed > sequence {
		c.counts.drop(dropJump)
		s.confirmed, s.claimed = false, 0
		s.disprove(sequence)
		c.settle(q.process)
		return fmt.Errorf("the process has used its numbers up to %d, messages in its name had shown %d", sequence, q.claimed)
	}
	if s.url == q.url && (!s.confirmed || s.also != at) {
		wanted := s.wanted
		s.confirmed, s.also = true, at
		c.settle(q.process)
		s.wanted = wanted // it is being read
	}
	return nil
}
