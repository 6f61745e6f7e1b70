package replicasync

import (
	"cmp"
	"maps"
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
	MergeFreed(teller uint64, names []history.Name) (freed int, fresh []history.Name)
	Bind(process uint64, peer string)
	Unbind(process uint64)
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
	freed   *freedLog

	identities map[uint64]*identity // by process: replicas that number their events
	endpoints  map[string]*endpoint // of these
	// fetched says when the last fetch from a base URL began, for lossSpacing: any
	// number of endpoints may announce the URL of one replica.
	fetched map[string]time.Time
	// refused: since the peers were last asked for that, something was refused for
	// want of a scope or rank.
	refused  bool
	ranksDue time.Time // when ranks that were added will be followed up; zero: none
	fullDue  time.Time // when to try again what there was no room for; zero: nothing
	fetching int       // fetches under way, at most maxFetching
}

// sender is a process that numbers its events, as one endpoint tells of it. Whether it
// is present, whether its snapshot is wanted and whether that is being fetched are
// independent of each other; due combines them.
type sender struct {
	process   uint64
	peer      string    // the endpoint at which its messages come
	url       string    // base URL; "" before its first announcement
	host      string    // of the endpoint
	confirmed bool      // the snapshot at url is that of the process
	coverage            // of its events
	renewals  coverage  // of its renewals
	claimed   uint64    // the highest number of an event that its messages have shown
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
	barren    int       // fetches in a row that brought nothing
	quick     int       // fetches in a row because of losses, whatever they brought
	retry     time.Time // after a failure: no fetch before
}

const (
	// forgetAfter is how long a process is silent before it is forgotten.
	forgetAfter = 10 * time.Minute
	// maxFetching bounds the snapshots that are fetched at a time, one of each
	// endpoint: a slow one delays no other.
	maxFetching = 64
	// maxJump is how far the numbers of a process may jump before its snapshot has
	// confirmed it. It is below history.Window, so that a message alone never makes
	// numbers old.
	maxJump = 1 << 20

	// fullDelay is how long after a reservation was refused for want of room the
	// snapshots of all are wanted, which still have it.
	fullDelay = 10 * time.Second

	fetchSpacing = time.Second            // between two fetches from one replica
	lossSpacing  = 350 * time.Millisecond // if messages were lost
	// maxQuick is how many fetches in a row may be lossSpacing apart. A peer that shows losses
	// for ever could have something new in each of its snapshots.
	maxQuick = 10
	// lateAfterEnd is how long announcements of a process may still be under way
	// after another one took its endpoint.
	lateAfterEnd = silentAfter / 2
	// maxBackoff is after failures, and where losses are shown again and again of which no
	// snapshot brings anything: agreement within 5 s needs less.
	maxBackoff = 2 * time.Second
	// ranksDelay collects registrations that come one after the other.
	ranksDelay = 200 * time.Millisecond
)

func newCore(process uint64, l ledger, scopes Scopes, counts *counters) *core {
	return &core{
		process: process, ledger: l, scopes: scopes, counts: counts, freed: newFreedLog(),
		identities: make(map[uint64]*identity), endpoints: make(map[string]*endpoint), fetched: make(map[string]time.Time),
	}
}

// onEvent applies an event that a peer published.
func (c *core) onEvent(peer string, e *event, now time.Time) {
	c.counts.received[e.kind].Add(1)
	if e.sender == c.process {
		c.counts.drop(dropOwn)
		return
	}
	var s *sender
	word := reservations.Relayed
	orphan := false // its process is absent or unknown: other replicas may not get it
	switch id := c.identities[e.sender]; {
	case id.spoken() && (e.sequence == 0 || !id.confirmedAt(peer)):
		if s = id.at(peer); s != nil && e.sequence != 0 { // it has announced itself as that process
			s.claimed, s.lastHeard = max(s.claimed, e.sequence), now
		}
		c.counts.drop(dropForeign)
		return
	case e.sequence != 0:
		if s = c.sender(e.sender, peer, now); s == nil {
			c.counts.drop(dropProcesses)
			return
		}
		word = c.wordOf(s)
		orphan = s.absent || s.url == ""
		if e.kind == renewed {
			c.onRenewal(s, e, word, orphan)
			return
		}
		switch c.noteNumber(s, &s.coverage, e.sequence) {
		case jump:
			return
		case duplicate:
			if s.confirmed && !s.absent && word != reservations.OwnWord { // another one speaks for it, too
				c.counts.drop(dropForeign)
				return
			}
		case fresh, late:
		}
	}
	why := c.applyToLedger(peer, e, word)
	if why != applied {
		c.counts.drop(why)
	}
	if s != nil && e.kind == freed && e.origin.Numbered() {
		c.freed.add(e.sender, e.name(), now)
	}
	switch {
	case why == dropUnknownScope, why == dropUnknownRank:
		c.refused = true
	case why == dropFull:
		c.noteFull(now)
	case orphan && (why == applied || e.kind != booked):
		c.countLearned(1)
	}
}

// onRenewal applies that a lease was renewed. A renewal counts from its arrival, so
// a repeated one is ignored.
func (c *core) onRenewal(s *sender, e *event, word reservations.Word, orphan bool) {
	if what := c.noteNumber(s, &s.renewals, e.sequence); what == duplicate || what == jump {
		return
	}
	switch why := c.applyToLedger(s.peer, e, word); {
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
	if of == &s.coverage {
		s.claimed = max(s.claimed, n)
	}
	if of.jumps(n) {
		c.counts.drop(dropJump)
		s.wanted = true
		return jump
	}
	what, lost := of.onNumber(n)
	switch what {
	case fresh:
		c.countLost(s, lost)
	case late:
		c.counts.late.Add(1)
	case duplicate:
		c.counts.duplicates.Add(1)
	case jump: // was returned above
	}
	return what
}

// advance takes note of the last number that a sender has announced, of one of its
// series.
func (c *core) advance(s *sender, of *coverage, n uint64) {
	if of.jumps(n) {
		c.counts.drop(dropJump)
		s.wanted = true
		return
	}
	c.countLost(s, of.advanceTo(n))
}

// incomplete reports whether something that the sender has published is not known
// here.
func (s *sender) incomplete() bool { return s.hasGap() || s.renewals.hasGap() }

func (c *core) countLost(s *sender, n uint64) {
	c.counts.lost.Add(n)
	s.unreported += n
}

// applyToLedger applies an event of a peer and returns why it had no effect, or
// applied. word is the sender's about its own reservations.
func (c *core) applyToLedger(peer string, e *event, word reservations.Word) reason {
	size, known := c.scopes.BlockSize(e.scope)
	fits := known && size == e.blockSize
	switch {
	case fits && e.kind == booked:
		return reasonOf(c.ledger.ApplyBooked(e.reservation(peer, word)))
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
		return reasonOf(c.ledger.ApplyFreed(e.ref(word)))
	case renewed:
		return reasonOf(c.ledger.ApplyRenewed(e.ref(word)))
	}
	return reasonOf(c.ledger.ApplyPrefillCompleted(e.ref(word)))
}

// onAnnouncement takes note of a replica's announcement.
func (c *core) onAnnouncement(peer string, a announcement, now time.Time) {
	c.counts.announcements.Add(1)
	if a.process == c.process {
		c.counts.drop(dropOwn)
		return
	}
	base, host, err := reachable(a.url, peer)
	if err != nil {
		c.counts.drop(dropMalformed)
		return
	}
	s := c.sender(a.process, peer, now)
	if s == nil {
		c.counts.drop(dropProcesses)
		return
	}
	if s.url == "" {
		c.replace(peer, s, now)
		s.wanted = true
	}
	if s.absent && now.Sub(s.replaced) > lateAfterEnd {
		s.becomePresent()
	}
	if s.url != "" && s.url != base { // that is to be confirmed again
		s.confirmed, s.wanted = false, true
	}
	s.wanted = s.wanted || a.merged > s.merged
	s.url, s.host, s.merged, s.claimed = base, host, max(s.merged, a.merged), max(s.claimed, a.sequence)
	c.settle(a.process)
	c.advance(s, &s.coverage, a.sequence)
	c.advance(s, &s.renewals, a.renewals)
}

// onRanksAdded takes note that this replica has ranks that it did not have before.
func (c *core) onRanksAdded(now time.Time) {
	if c.ranksDue.IsZero() {
		c.ranksDue = now.Add(ranksDelay)
	}
}

// fetchRequest is a snapshot to fetch.
type fetchRequest struct {
	process uint64
	peer    string // the endpoint at which the process has announced itself
	url     string // base URL
	host    string // of the endpoint
	claimed uint64 // the highest number that it had shown before
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
	maps.DeleteFunc(c.fetched, func(_ string, at time.Time) bool { return now.Sub(at) >= lossSpacing })
	switch {
	case c.fullDue.IsZero():
	case now.Before(c.fullDue):
		next = earlier(next, c.fullDue)
	default:
		c.fullDue = time.Time{}
		c.wantAll()
	}
	for _, s := range c.byUrgency() {
		wanted := s.wanted || s.incomplete()
		if !wanted || s.absent || s.fetching || s.url == "" {
			continue
		}
		at := s.lastFetch.Add(s.spacing())
		if s.retry.After(at) {
			at = s.retry
		}
		p := c.endpoints[s.peer]
		if last, ok := c.fetched[s.url]; ok && last.Add(lossSpacing).After(at) {
			at = last.Add(lossSpacing)
		}
		switch {
		case p.fetching: // fetchDone comes first
		case at.After(now):
			next = earlier(next, at)
		case c.fetching < maxFetching: // else fetchDone comes first
			if s.quick++; now.Sub(s.lastFetch) >= 2*fetchSpacing {
				s.quick = 1
			}
			for _, same := range c.sharing(s.process, s.peer, s.url) {
				same.wanted, same.lastFetch = false, now
			}
			s.fetching, p.fetching, c.fetched[s.url] = true, true, now
			c.fetching++
			requests = append(requests, fetchRequest{process: s.process, peer: s.peer, url: s.url, host: s.host, claimed: s.claimed})
		}
	}
	return requests, next
}

// spacing is the time between two fetches.
func (s *sender) spacing() time.Duration {
	if !s.incomplete() {
		return fetchSpacing
	}
	d := min(maxBackoff, lossSpacing<<min(max(0, s.barren-1), 8))
	if s.quick >= maxQuick {
		d = max(d, fetchSpacing)
	}
	if s.wanted {
		d = min(d, fetchSpacing)
	}
	return d
}

// noteFull takes note that there was no room for a reservation.
func (c *core) noteFull(now time.Time) {
	if c.fullDue.IsZero() {
		c.fullDue = now.Add(fullDelay)
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// byProcess returns all senders in a fixed order.
func (c *core) byProcess() []*sender {
	list := make([]*sender, 0, len(c.identities))
	for _, id := range c.identities {
		list = append(list, id.senders...)
	}
	slices.SortFunc(list, func(a, b *sender) int {
		return cmp.Or(cmp.Compare(a.process, b.process), cmp.Compare(a.peer, b.peer))
	})
	return list
}

// byUrgency returns all senders: first those that are confirmed, then those that have
// failed least, then those that have waited longest.
func (c *core) byUrgency() []*sender {
	list := c.byProcess()
	slices.SortStableFunc(list, func(a, b *sender) int {
		if a.confirmed != b.confirmed {
			if a.confirmed {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.failures, b.failures), a.lastFetch.Compare(b.lastFetch))
	})
	return list
}

// sharing returns for which senders of a process a snapshot counts that is read from a
// base URL because of what is told at an endpoint: that one, and those which are
// confirmed to be the same process at the same URL.
func (c *core) sharing(process uint64, peer, url string) (list []*sender) {
	if id := c.identities[process]; id != nil {
		for _, s := range id.senders {
			if s.peer == peer || s.confirmed && s.url == url {
				list = append(list, s)
			}
		}
	}
	return list
}

// findAbsent notices processes that have been silent for long.
func (c *core) findAbsent(now time.Time) {
	for _, s := range c.byProcess() {
		switch unheard := now.Sub(s.lastHeard); {
		case unheard > forgetAfter && !s.fetching:
			c.forget(s)
		case unheard > silentAfter:
			c.becomeAbsent(s)
		}
	}
}

// replace takes note that another process is at an endpoint now: those that were
// there before are absent.
func (c *core) replace(peer string, by *sender, now time.Time) {
	for _, s := range c.byProcess() {
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
		c.settle(s.process)
		c.wantAll()
		c.countLearned(1)
	}
}

// becomePresent ends the absence of a sender. Failures before it do not count.
func (s *sender) becomePresent() { s.absent, s.failures, s.retry = false, 0, time.Time{} }

func (c *core) wantAll() {
	for _, id := range c.identities {
		for _, s := range id.senders {
			s.wanted = true
		}
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
	full    bool // and for want of room
	learned bool // the ledger has changed: something lost was in the snapshot
	err     error
}

// fetchDone takes note of the end of a fetch. failures is how many have failed in a
// row.
func (c *core) fetchDone(q fetchRequest, f fetchResult, now time.Time) (failures int) {
	c.fetching--
	c.refused = c.refused || f.refused
	if f.full {
		c.noteFull(now)
	}
	if f.err != nil {
		c.counts.snapshotsFailed.Add(1)
	} else {
		c.counts.snapshots.Add(1)
	}
	if p := c.endpoints[q.peer]; p != nil {
		p.fetching = false
	}
	for _, s := range c.sharing(q.process, q.peer, q.url) {
		if s.wanted = s.wanted || f.err != nil; f.err == nil {
			s.noteSnapshot(f.sequence)
			s.renewals.noteSnapshot(f.renewals)
		}
	}
	s := c.identities[q.process].at(q.peer)
	if s == nil {
		return 1
	}
	s.fetching = false
	if f.err != nil {
		s.failures++
		s.retry = now.Add(min(maxBackoff, lossSpacing<<min(s.failures, 8)))
		return s.failures
	}
	s.failures, s.retry = 0, time.Time{}
	if s.barren++; f.learned {
		s.barren = 0
	}
	return 0
}

// caughtUp reports whether no snapshot is wanted or being fetched, and a message has
// come from each of the given endpoints.
func (c *core) caughtUp(endpoints []string) bool {
	if !c.ranksDue.IsZero() {
		return false
	}
	heard := make(map[string]bool)
	for _, s := range c.byProcess() {
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
