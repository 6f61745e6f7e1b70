package replicasync

import (
	"cmp"
	"slices"
	"time"

	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/reservations/history"
)

// ledger is what the core needs of *reservations.Ledger: to join the states of two
// replicas, by events and by snapshots.
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
	// refused: since the peers were last asked for that, something was refused for
	// want of a scope or rank.
	refused  bool
	ranksDue time.Time // when ranks that were added will be followed up; zero: none
	fetching int       // fetches under way, at most maxFetching
}

// sender is a process that numbers its events. Whether it is present, whether its
// snapshot is wanted and whether that is being fetched are independent of each
// other; due combines them.
type sender struct {
	process   uint64
	peer      string    // the endpoint at which its latest message came
	url       string    // base URL; "" before its first announcement
	coverage            // of its events
	renewals  coverage  // of its renewals
	merged    uint64    // the highest that it has announced
	lastHeard time.Time // when its latest message came
	// absent: it was silent for long, or replaced. Nothing is fetched from it until
	// it announces itself again.
	absent bool
	// replaced is when another process announced itself at the same endpoint.
	replaced time.Time
	// unreported are lost events of which the watcher was not told; reported is
	// when it was told last.
	unreported uint64
	reported   time.Time

	wanted    bool      // its snapshot is wanted, for another reason than lost messages
	fetching  bool      // its snapshot is being fetched
	lastFetch time.Time // when the last fetch began
	failures  int       // since the last success
	retry     time.Time // after a failure: no fetch before
}

const (
	// maxSenders bounds the processes that are tracked; the one that was silent for
	// longest makes room.
	maxSenders = 256
	// forgetAfter is how long a process is silent before it is forgotten.
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

// sender returns the entry of a process whose message has just come from peer.
func (c *core) sender(process uint64, peer string, now time.Time) *sender {
	s := c.senders[process]
	if s == nil {
		if len(c.senders) >= maxSenders {
			c.evict()
		}
		s = &sender{process: process}
		c.senders[process] = s
	}
	s.peer, s.lastHeard = peer, now
	return s
}

func (c *core) evict() {
	var oldest *sender
	for _, s := range c.senders {
		if oldest == nil || cmp.Or(s.lastHeard.Compare(oldest.lastHeard), cmp.Compare(s.process, oldest.process)) < 0 {
			oldest = s
		}
	}
	delete(c.senders, oldest.process)
}

// onEvent applies an event that a peer published.
func (c *core) onEvent(peer string, e *event, now time.Time) {
	c.counts.received[e.kind].Add(1)
	if e.sender == c.process {
		c.counts.drop(dropOwn)
		return
	}
	orphan := false // its process is absent or unknown: other replicas may not get it
	if e.sequence != 0 {
		s := c.sender(e.sender, peer, now)
		orphan = s.absent || s.url == ""
		if e.kind == renewed {
			c.onRenewal(s, e, orphan)
			return
		}
		c.noteNumber(s, &s.coverage, e.sequence)
	}
	why := c.applyToLedger(e)
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

// onRenewal applies that a lease was renewed. A renewal counts from its arrival, so
// a repeated one is ignored.
func (c *core) onRenewal(s *sender, e *event, orphan bool) {
	if c.noteNumber(s, &s.renewals, e.sequence) == duplicate {
		return
	}
	switch why := c.applyToLedger(e); {
	case why != applied:
		c.counts.drop(why)
		// The sender has a reservation that this replica could have, too.
		s.wanted = s.wanted || why == dropUnknownID
	case orphan:
		c.countLearned(1)
	}
}

// countLearned counts what other replicas may not have heard of. The next
// announcement has the count, so that they read this replica's snapshot.
func (c *core) countLearned(n int) {
	if n > 0 {
		c.counts.merged.Add(uint64(n))
		c.counts.unannounced.Store(true)
	}
}

// noteNumber takes note of an event's number, in one of the sender's two series.
func (c *core) noteNumber(s *sender, of *coverage, n uint64) arrival {
	what, lost := of.onNumber(n)
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

// incomplete reports whether something that the sender has published is not known
// here.
func (s *sender) incomplete() bool { return s.hasGap() || s.renewals.hasGap() }

func (c *core) countLost(s *sender, n uint64) {
	c.counts.lost.Add(n)
	s.unreported += n
}

// applyToLedger applies an event and returns why it had no effect, or applied.
func (c *core) applyToLedger(e *event) reason {
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
	// A step of a reservation that is named by number is noted even if the
	// reservation could not be taken here: it may be taken later.
	switch e.kind {
	case freed:
		return reasonOf(c.ledger.ApplyFreed(e.ref()))
	case renewed:
		return reasonOf(c.ledger.ApplyRenewed(e.ref()))
	}
	return reasonOf(c.ledger.ApplyPrefillCompleted(e.ref()))
}

// onAnnouncement takes note of a replica's announcement.
func (c *core) onAnnouncement(peer string, a announcement, now time.Time) {
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
		s.becomePresent()
	}
	s.wanted = s.wanted || a.merged > s.merged
	s.url, s.merged = base, max(s.merged, a.merged)
	c.countLost(s, s.advanceTo(a.sequence)+s.renewals.advanceTo(a.renewals))
}

// onRanksAdded takes note that this replica has ranks that it did not have before.
func (c *core) onRanksAdded(now time.Time) {
	if c.ranksDue.IsZero() {
		c.ranksDue = now.Add(ranksDelay)
	}
}

// forgetPeer forgets the processes whose messages came from a peer's endpoint.
func (c *core) forgetPeer(peer string) {
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

// due returns the snapshots to fetch now, whose ends the caller must report to
// fetchDone, and when to ask again at the latest.
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
		case c.fetching < maxFetching: // else fetchDone comes first
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

// findAbsent notices processes that have been silent for long.
func (c *core) findAbsent(now time.Time) {
	for _, s := range c.byProcess() {
		switch unheard := now.Sub(s.lastHeard); {
		case unheard > forgetAfter && !s.fetching:
			delete(c.senders, s.process)
		case unheard > silentAfter:
			c.becomeAbsent(s)
		}
	}
}

// replace takes note that another process is at an endpoint now: those that were
// there before are absent.
func (c *core) replace(peer string, by *sender, now time.Time) {
	for _, s := range c.senders {
		if s.peer == peer && s != by {
			s.replaced = now
			c.becomeAbsent(s)
		}
	}
}

// becomeAbsent gives a process up until it announces itself again. Its last events
// may have reached some replicas only, so the snapshots of all others are wanted,
// and they are made to want this replica's.
func (c *core) becomeAbsent(s *sender) {
	if !s.absent {
		s.absent = true
		c.wantAll()
		c.countLearned(1)
	}
}

// becomePresent ends the absence of a sender. Failures before it do not count.
func (s *sender) becomePresent() { s.absent, s.failures, s.retry = false, 0, time.Time{} }

func (c *core) wantAll() {
	for _, s := range c.senders {
		s.wanted = true
	}
}

// followUpRanks wants the snapshots of all if something was refused for want of the
// ranks that have come. What a fetch under way refuses is not known yet.
func (c *core) followUpRanks() {
	c.ranksDue = time.Time{}
	if c.refused || c.fetching > 0 {
		c.refused = false
		c.wantAll()
	}
}

// fetchResult is how a fetch ended.
type fetchResult struct {
	// sequence is the snapshot's: the effects of all events of its process up to this
	// number are known now.
	sequence uint64
	renewals uint64 // the same for renewals
	// refused: reservations were refused for want of a scope or rank.
	refused bool
	err     error
}

// fetchDone takes note of the end of a fetch. failures is how many have failed in a
// row.
func (c *core) fetchDone(process uint64, f fetchResult, now time.Time) (failures int) {
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

// caughtUp reports whether no snapshot is wanted or being fetched, and a message has
// come from each of the given endpoints.
func (c *core) caughtUp(endpoints []string) bool {
	if !c.ranksDue.IsZero() {
		return false
	}
	heard := make(map[string]bool)
	for _, s := range c.senders {
		if s.absent || s.url == "" {
			continue
		}
		if s.fetching || s.wanted || s.incomplete() {
			return false
		}
		heard[s.peer] = true
	}
	for _, e := range endpoints {
		if !heard[e] {
			return false
		}
	}
	return true
}

// lossEvery is how often lost events of one process are reported at most.
const lossEvery = time.Second

// loss is a report of lost events.
type loss struct {
	peer            string
	process, events uint64
}

// losses returns what is to be reported, and when there may be more.
func (c *core) losses(now time.Time) (found []loss, next time.Time) {
	next = now.Add(silentAfter)
	for _, s := range c.byProcess() {
		if s.unreported == 0 {
			continue
		}
		if at := s.reported.Add(lossEvery); at.After(now) {
			next = earlier(next, at)
			continue
		}
		found = append(found, loss{s.peer, s.process, s.unreported})
		s.unreported, s.reported = 0, now
	}
	return found, next
}
