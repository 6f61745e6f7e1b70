package replicasync

import (
	"fmt"
	"time"

	"github.com/select-service/select-service/pkg/reservations"
)

// identity is what is known of who speaks for a process. Process ids are no secret, so
// any peer can use one. An endpoint is confirmed if the snapshot at its announced URL,
// which is read from the endpoint's own host, is that of the process. While one
// endpoint is confirmed, messages in the process's name from others are refused. If
// several are, each is believed only what any peer is believed of any process: an
// impostor can neither speak for the process nor silence it, whoever came first.
type identity struct {
	senders []*sender // by endpoint
	// speaker is the endpoint whose word the ledger's numbers of the process are
	// from, "" if there is none.
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

// spoken reports whether an endpoint is confirmed and present.
func (id *identity) spoken() bool {
	_, n := id.confirmed()
	return n > 0
}

// speaks reports whether the process speaks for itself: one endpoint is believed, and
// present.
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

// endpoint is what several processes at one endpoint share: the next one takes its
// place when a replica is restarted.
type endpoint struct {
	fetching bool // a snapshot is being read
	senders  int
	// newcomers is how many further processes are taken now; renewed at refilled.
	newcomers int
	refilled  time.Time
}

const (
	// maxSendersAt bounds the processes that are tracked at one endpoint; the one that
	// was silent for longest makes room.
	maxSendersAt = 8
	// An endpoint may show maxNewcomers processes at once, and then one in
	// newcomerEvery: each is a restart, for which all snapshots are read.
	maxNewcomers  = 16
	newcomerEvery = 5 * time.Second
)

// admit reports whether one more process may show at the endpoint.
func (p *endpoint) admit(now time.Time) bool {
	if n := int(now.Sub(p.refilled) / newcomerEvery); n > 0 {
		p.newcomers, p.refilled = min(maxNewcomers, p.newcomers+n), now
	}
	if p.newcomers == 0 {
		return false
	}
	p.newcomers--
	return true
}

// sender returns the entry of a process whose message has just come from an endpoint;
// nil if that shows too many.
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
		if id = c.identities[process]; id == nil { // the evicted one may have been the same process
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

// evict forgets the process at an endpoint that was silent for longest.
func (c *core) evict(peer string) {
	var oldest *sender
	for _, s := range c.byProcess() {
		if s.peer == peer && (oldest == nil || s.lastHeard.Before(oldest.lastHeard)) {
			oldest = s
		}
	}
	c.forget(oldest)
}

// forget forgets what an endpoint tells of a process.
func (c *core) forget(gone *sender) {
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

// settle decides who speaks for a process, after something has changed. An endpoint
// that is absent counts until it is forgotten: while a process is away, nobody takes
// its place.
func (c *core) settle(process uint64) {
	id := c.identities[process]
	var only *sender
	n := 0
	for _, s := range id.senders {
		if s.confirmed {
			only = s
			n++
		}
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

// unbind takes note that nobody speaks for a process any more. What its numbers said
// counts for nothing then, so what callers freed is noted by name, and the snapshots of
// all are wanted: they may have what was ended or refused by number.
func (c *core) unbind(process uint64, id *identity) {
	id.speaker = ""
	c.ledger.Unbind(process)
	for teller, names := range c.freed.of(process) {
		c.ledger.MergeFreed(teller, names)
	}
	c.wantAll()
}

// wordOf is how far a sender is believed about its own reservations.
func (c *core) wordOf(s *sender) reservations.Word {
	if s != nil && s.confirmed && !s.absent && c.identities[s.process].speaker == s.peer {
		return reservations.OwnWord
	}
	return reservations.Relayed
}

// wordOn is how far the snapshot that a sender gives is believed about the reservations
// of a process.
func (c *core) wordOn(q fetchRequest, process uint64) reservations.Word {
	id := c.identities[process]
	switch {
	case process == q.process:
		return c.wordOf(id.at(q.peer))
	case process == c.process || id.speaks():
		return reservations.Aside
	}
	return reservations.Relayed
}

// confirm takes note that the snapshot at a sender's URL is that of the process it
// claims to be, which has used its numbers up to sequence. It is an error if the
// sender had shown higher ones: then it is not that process.
func (c *core) confirm(q fetchRequest, sequence uint64) error {
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
	if s.url == q.url && !s.confirmed {
		wanted := s.wanted
		s.confirmed = true
		c.settle(q.process)
		s.wanted = wanted // it is being read
	}
	return nil
}
