package replicasync

import (
	"cmp"
	"slices"
	"time"

	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/reservations/history"
)

// ledger is what the core needs of *reservations.Ledger: the join of two
// replicas' states, in events and in snapshots.
type ledger interface {
	ApplyBooked(reservations.Reservation) reservations.ApplyResult
	ApplyPrefillCompleted(reservations.Ref) reservations.ApplyResult
	ApplyFreed(reservations.Ref) reservations.ApplyResult
	MergeReservation(reservations.Reservation) reservations.ApplyResult
	ApplyRenewed(reservations.Ref) reservations.ApplyResult
	MergeEnded(process uint64, ended history.EndedSet) (freed int)
	Reservations(after reservations.Cursor, limit int) (page []reservations.Reservation, next reservations.Cursor, more bool)
	Ended() map[uint64]history.EndedSet
}

// core decides what a message does, and when whose snapshot is due. It has no
// goroutine, socket or clock, and is not safe for concurrent use.
type core struct {
	process uint64
	ledger  ledger
	scopes  Scopes
	counts  *counters

	senders map[uint64]*sender // by process: replicas that number their events
	// refused: something was refused for want of a scope or rank since the
	// peers were last asked for that.
	refused  bool
	ranksDue time.Time // when ranks that were added will be followed up; zero: none
	fetching int
}

// sender is a process that numbers its events.
type sender struct {
	process  uint64
	peer     string    // the endpoint at which it was heard last
	url      string    // base URL; "" before its first announcement
	coverage           // of its events
	renewals coverage  // of its renewals
	merged   uint64    // as it announced last
	heard    time.Time // its last message
	absent   bool      // silent for long, or replaced
	// replaced is when another process announced itself at the same endpoint.
	replaced time.Time
	// unreported are lost events of which the watcher was not told; reported is
	// when it was told last.
	unreported uint64
	reported   time.Time

	// ask: its snapshot is wanted, for another reason than lost messages.
	wanted    bool
	fetching  bool
	lastFetch time.Time // when the last fetch began
	failures  int       // since the last success
	retry     time.Time // not before, after a failure
}

const (
	// maxSenders bounds the processes that are tracked; the longest unheard
	// makes room.
	maxSenders = 256
	// forgetAfter is when a process that is not heard any more is forgotten.
	forgetAfter = 10 * time.Minute
	// maxFetching bounds the snapshots that are fetched at a time.
	maxFetching = 4

	fetchSpacing = time.Second            // between two fetches from one replica
	lossSpacing  = 200 * time.Millisecond // if messages were lost
	// lateAfterEnd is how long announcements of a process may still be under way
	// after another one took its endpoint.
	lateAfterEnd = silentAfter / 2
	maxBackoff   = 2 * time.Second // after failures: agreement within 5 s needs less
	// ranksDelay collects registrations that come one after the other.
	ranksDelay = 200 * time.Millisecond
)

func newCore(process uint64, l ledger, scopes Scopes, counts *counters) *core {
	return &core{process: process, ledger: l, scopes: scopes, counts: counts, senders: make(map[uint64]*sender)}
}

// sender returns the entry of a process that was just heard at peer.
func (c *core) sender(process uint64, peer string, now time.Time) *sender {
	s := c.senders[process]
	if s == nil {
		if len(c.senders) >= maxSenders {
			c.evict()
		}
		s = &sender{process: process}
		c.senders[process] = s
	}
	s.peer, s.heard = peer, now
	return s
}

func (c *core) evict() {
	var oldest *sender
	for _, s := range c.senders {
		if oldest == nil || cmp.Or(s.heard.Compare(oldest.heard), cmp.Compare(s.process, oldest.process)) < 0 {
			oldest = s
		}
	}
	delete(c.senders, oldest.process)
}

// event applies what a peer published.
func (c *core) event(peer string, e *event, now time.Time) {
	c.counts.received[e.kind].Add(1)
	if e.sender == c.process {
		c.counts.drop(dropOwn)
		return
	}
	orphan := false // its process is gone or unknown: the others may not hear of it
	if e.sequence != 0 {
		s := c.sender(e.sender, peer, now)
		orphan = s.absent || s.url == ""
		if e.kind == renewed {
			c.renewed(s, e, orphan)
			return
		}
		c.noteNumber(s, &s.coverage, e.sequence)
	}
	why := c.apply(e)
	if why != applied {
		c.counts.drop(why)
	}
	switch {
	case why == dropUnknownScope, why == dropUnknownRank:
		c.refused = true
	case orphan && (why == applied || e.kind != booked):
		c.countLearned(1)
	}
}

// renewed applies that a lease was renewed. It counts from its arrival, so one
// that comes again means nothing.
func (c *core) renewed(s *sender, e *event, orphan bool) {
	if c.noteNumber(s, &s.renewals, e.sequence) == duplicate {
		return
	}
	switch why := c.apply(e); {
	case why != applied:
		c.counts.drop(why)
		// The sender has what this replica could have.
		s.wanted = s.wanted || why == dropUnknownID
	case orphan:
		c.countLearned(1)
	}
}

// countLearned counts what others may not have heard of: they will ask for it.
func (c *core) countLearned(n int) {
	if n > 0 {
		c.counts.merged.Add(uint64(n))
		c.counts.unannounced.Store(true)
	}
}

// noteNumber takes note of an event's number, in one of the sender's two series.
func (c *core) noteNumber(s *sender, of *coverage, n uint64) arrival {
	what, lost := of.arrived(n)
	switch what {
	case fresh:
		c.countLost(s, lost)
	case late:
		c.counts.late.Add(1)
	case duplicate:
		c.counts.duplicates.Add(1)
	}
	return what
}

// behind: something that the sender has said is not known here.
func (s *sender) incomplete() bool { return s.hasGap() || s.renewals.hasGap() }

func (c *core) countLost(s *sender, n uint64) {
	c.counts.lost.Add(n)
	s.unreported += n
}

// apply returns why an event had no effect.
func (c *core) apply(e *event) reason {
	size, known := c.scopes.BlockSize(e.scope)
	fits := known && size == e.blockSize
	switch {
	case fits && e.kind == booked:
		return reasonOf(c.ledger.ApplyBooked(e.reservation()))
	case !fits && (e.kind == booked || e.kind == renewed || e.origin.Sequence == 0):
		if !known {
			return dropUnknownScope
		}
		return dropBlockSize
	}
	// What happens to a booking that is named by number is noted whether or not
	// the booking could be taken here: it may be taken later.
	switch e.kind {
	case freed:
		return reasonOf(c.ledger.ApplyFreed(e.ref()))
	case renewed:
		return reasonOf(c.ledger.ApplyRenewed(e.ref()))
	}
	return reasonOf(c.ledger.ApplyPrefillCompleted(e.ref()))
}

// announced takes note of a replica's announcement.
func (c *core) announced(peer string, a announcement, now time.Time) {
	c.counts.announcements.Add(1)
	if a.process == c.process {
		c.counts.drop(dropOwn)
		return
	}
	base, err := reachable(a.url, peer)
	if err != nil {
		c.counts.drop(dropMalformed)
		return
	}
	s := c.sender(a.process, peer, now)
	if s.url == "" {
		c.replace(peer, s, now)
		s.wanted = true
	}
	if s.absent && now.Sub(s.replaced) > lateAfterEnd {
		s.absent, s.failures, s.retry = false, 0, time.Time{}
	}
	s.wanted = s.wanted || a.merged > s.merged
	s.url, s.merged = base, max(s.merged, a.merged)
	c.countLost(s, s.advanceTo(a.sequence)+s.renewals.advanceTo(a.renewals))
}

// ranksAdded says that this replica has ranks that it did not have before.
func (c *core) ranksAdded(now time.Time) {
	if c.ranksDue.IsZero() {
		c.ranksDue = now.Add(ranksDelay)
	}
}

// leave forgets what was heard at a peer's endpoint.
func (c *core) leave(peer string) {
	for process, s := range c.senders {
		if s.peer == peer {
			delete(c.senders, process)
		}
	}
}

// fetchRequest is a snapshot to fetch.
type fetchRequest struct {
	process uint64
	url     string // base URL
}

// due returns the snapshots to fetch now, which the caller must report to done,
// and when to ask again at the latest.
func (c *core) due(now time.Time) (requests []fetchRequest, next time.Time) {
	next = now.Add(silentAfter)
	c.findAbsent(now)
	if !c.ranksDue.IsZero() {
		if now.Before(c.ranksDue) {
			next = c.ranksDue
		} else {
			c.followUpRanks()
		}
	}
	for _, s := range c.byProcess() {
		wanted := s.wanted || s.incomplete()
		if !wanted || s.absent || s.fetching || s.url == "" {
			continue
		}
		at := s.lastFetch.Add(fetchSpacing)
		if s.incomplete() {
			at = s.lastFetch.Add(lossSpacing)
		}
		if s.retry.After(at) {
			at = s.retry
		}
		switch {
		case at.After(now):
			next = earlier(next, at)
		case c.fetching < maxFetching: // else done comes first
			s.wanted, s.fetching, s.lastFetch = false, true, now
			c.fetching++
			requests = append(requests, fetchRequest{process: s.process, url: s.url})
		}
	}
	return requests, next
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func (c *core) byProcess() []*sender {
	list := make([]*sender, 0, len(c.senders))
	for _, s := range c.senders {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *sender) int { return cmp.Compare(a.process, b.process) })
	return list
}

// findAbsent notices processes that are not heard any more.
func (c *core) findAbsent(now time.Time) {
	for _, s := range c.byProcess() {
		switch unheard := now.Sub(s.heard); {
		case unheard > forgetAfter && !s.fetching:
			delete(c.senders, s.process)
		case unheard > silentAfter:
			c.becomeAbsent(s)
		}
	}
}

// replace: another process is at an endpoint now, so those before it are gone.
func (c *core) replace(peer string, by *sender, now time.Time) {
	for _, s := range c.senders {
		if s.peer == peer && s != by {
			s.replaced = now
			c.becomeAbsent(s)
		}
	}
}

// becomeAbsent gives a process up until it announces itself again. What it sent last may
// have reached some replicas only, so all others are asked, and shall ask.
func (c *core) becomeAbsent(s *sender) {
	if !s.absent {
		s.absent = true
		c.wantAll()
		c.countLearned(1)
	}
}

func (c *core) wantAll() {
	for _, s := range c.senders {
		s.wanted = true
	}
}

// followUpRanks asks for what was refused for want of the ranks that have come.
// What a fetch under way refuses is not known yet.
func (c *core) followUpRanks() {
	c.ranksDue = time.Time{}
	if c.refused || c.fetching > 0 {
		c.refused = false
		c.wantAll()
	}
}

// fetchResult is how a fetch ended.
type fetchResult struct {
	// sequence is the snapshot's: the effect of all events of its process up to
	// this number is known now.
	sequence uint64
	renewals uint64 // the same for renewals
	// refused: bookings were refused for want of a scope or rank.
	refused bool
	err     error
}

// done takes note of the end of a fetch. failures is how many have failed in a
// row.
func (c *core) done(process uint64, f fetchResult, now time.Time) (failures int) {
	c.fetching--
	c.refused = c.refused || f.refused
	if f.err != nil {
		c.counts.snapshotsFailed.Add(1)
	} else {
		c.counts.snapshots.Add(1)
	}
	s := c.senders[process]
	if s == nil {
		return 1
	}
	s.fetching = false
	if f.err != nil {
		s.wanted = true
		s.failures++
		s.retry = now.Add(min(maxBackoff, lossSpacing<<min(s.failures, 8)))
		return s.failures
	}
	s.failures, s.retry = 0, time.Time{}
	s.noteSnapshot(f.sequence)
	s.renewals.noteSnapshot(f.renewals)
	return 0
}
