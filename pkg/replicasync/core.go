package replicasync

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/select-service/select-service/pkg/reservations"
	"github.com/select-service/select-service/pkg/reservations/history"
)

// ledger is the part of *reservations.Ledger that joins the states of two replicas, by
// events and by snapshots.
type ledger interface {
	ApplyBooked(reservations.Reservation) reservations.ApplyResult
	ApplyPrefillCompleted(reservations.Ref) reservations.ApplyResult
	ApplyFreed(reservations.Ref) reservations.ApplyResult
	MergeReservation(reservations.Reservation) reservations.ApplyResult
	ApplyRenewed(reservations.Ref) reservations.ApplyResult
	MergeEnded(process uint64, ended history.EndedSet) (freed int)
	MergeFreed(reporter uint64, names []history.Name) (freed int, fresh []history.Name)
	Bind(process uint64, peer string)
	Unbind(process uint64)
	Reservations(after reservations.Cursor, limit int) (page []reservations.Reservation, next reservations.Cursor, more bool)
	ListedReservations(after reservations.Cursor, limit int) (page []reservations.ListedReservation, next reservations.Cursor, more bool)
	Ended() map[uint64]history.EndedSet
}

// core decides what effect a message has, and when to fetch which replica's snapshot. It
// has no goroutine, socket or clock, and is not safe for concurrent use.
type core struct {
	process uint64
	ledger  ledger
	scopes  Scopes
	counts  *counters
	freed   *freedLog
	speaker func(announced, peer string) (Speaker, error)

	identities map[uint64]*identity // by process, of replicas that number their events
	endpoints  map[string]*endpoint // by endpoint, of their senders
	// fetched says when the last fetch from a base URL began, for lossSpacing: any
	// number of endpoints may announce the URL of one replica.
	fetched map[string]time.Time
	// refused: something was refused because a scope or rank is unknown, and the
	// snapshots have not been requested for that since.
	refused  bool
	ranksDue time.Time // when to follow up ranks that were added; zero: none were
	fullDue  time.Time // when to try again what was refused for lack of room; zero: nothing
	fetching int       // fetches under way, at most maxFetching
}

// sender is a process that numbers its events, as seen at one endpoint. Whether it is
// present, whether its snapshot is wanted and whether that is being fetched are
// independent of each other; due combines them.
type sender struct {
	process   uint64
	peer      string // the endpoint at which its messages come
	url       string // Speaker.Base; "" before its first announcement
	host      string // Speaker.Host
	confirmed bool   // the snapshot at url is that of the process
	// authenticated is Speaker.Authenticated.
	authenticated bool
	// also is the endpoint at which the process is authenticated, as the snapshot at url says; "": at none.
	also      string
	coverage            // of its events
	renewals  coverage  // of its renewals
	claimed   uint64    // the highest number of an event in its messages and announcements
	merged    uint64    // the highest announcement.merged so far
	lastHeard time.Time // when its latest message came
	// absent: it was silent for long, or replaced. Nothing is fetched from it until
	// it announces itself again.
	absent bool
	// replaced is when another process announced itself at the same endpoint.
	replaced time.Time
	// unreported counts lost events that were not yet reported to the watcher; reported
	// is when that was last called.
	unreported uint64
	reported   time.Time

	wanted    bool      // its snapshot is wanted, for a reason other than lost messages
	fetching  bool      // its snapshot is being fetched
	lastFetch time.Time // when the last fetch began
	failures  int       // failed fetches since the last success
	fruitless int       // latest successful fetches, in a row, that brought nothing new
	quick     int       // latest fetches, in a row, that followed each other quickly
	retry     time.Time // after a failure: no fetch before this time
}

const (
	// forgetAfter is how long a process is silent before it is forgotten.
	forgetAfter = 10 * time.Minute
	// maxFetching bounds the snapshots that are fetched at a time, one of each
	// endpoint: a slow one delays no other.
	maxFetching = 64
	// maxJump is how far the numbers of a process may jump ahead unless its snapshot
	// confirms it. It is below history.Window, so that a message alone never makes
	// numbers count as old.
	maxJump = 1 << 20

	// fullDelay is the time from the refusal of a reservation for lack of room until the
	// snapshots of all replicas, which still have it, are wanted.
	fullDelay = 10 * time.Second

	fetchSpacing = time.Second            // between two fetches from one replica
	lossSpacing  = 350 * time.Millisecond // the same if messages were lost
	// maxQuick is how many fetches in a row may be lossSpacing apart: a peer that shows
	// losses without end could have something new in each of its snapshots.
	maxQuick = 10
	// lateAfterEnd is how long announcements of a process may still be under way
	// after another one took its endpoint.
	lateAfterEnd = silentAfter / 2
	// maxBackoff bounds the spacing after failures, and while losses are shown again and
	// again but no snapshot brings anything new. Replicas are to agree within 5 s, so it
	// is less.
	maxBackoff = 2 * time.Second
	// ranksDelay is how long onRanksAdded waits for further registrations.
	ranksDelay = 200 * time.Millisecond
)

func newCore(process uint64, l ledger, scopes Scopes, counts *counters) *core {
	return &core{
		process: process, ledger: l, scopes: scopes, counts: counts, freed: newFreedLog(), speaker: EndpointSpeaker,
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
	var what arrival
	authority := reservations.Relayed
	orphan := false // its process is absent or unknown: other replicas may miss it
	switch id := c.identities[e.sender]; {
	case id.hasConfirmed() && (e.sequence == 0 || !id.confirmedAt(peer)):
		if s = id.at(peer); s != nil && e.sequence != 0 { // it claims to be that process
			s.claimed, s.lastHeard = max(s.claimed, e.sequence), now
		}
		c.counts.drop(dropForeign)
		return
	case e.sequence != 0:
		if s = c.sender(e.sender, peer, now); s == nil {
			c.counts.drop(dropProcesses)
			return
		}
		authority = c.authorityOf(s)
		orphan = s.absent || s.url == ""
		if e.kind == renewed {
			c.onRenewal(s, e, authority, orphan)
			return
		}
		switch what = c.noteNumber(s, &s.coverage, e.sequence); what {
		case jump:
			return
		case duplicate:
			if s.confirmed && !s.absent && authority != reservations.ByOwner { // another endpoint speaks for the process, too
				c.counts.drop(dropForeign)
				return
			}
		case fresh, late:
		}
	}
	why := c.applyToLedger(peer, e, authority)
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
	case why == dropUnknownPrefix && what != duplicate:
		s.lose(e.sequence)
		c.countLost(s, 1)
	case orphan && (why == applied || e.kind != booked):
		c.countLearned(1)
	}
}

// onRenewal applies the renewal of a lease. A renewal counts from its arrival, so that a
// repeated one must be ignored.
func (c *core) onRenewal(s *sender, e *event, authority reservations.Authority, orphan bool) {
	if what := c.noteNumber(s, &s.renewals, e.sequence); what == duplicate || what == jump {
		return
	}
	switch why := c.applyToLedger(s.peer, e, authority); {
	case why != applied:
		c.counts.drop(why)
		// The sender has a reservation that this replica lacks.
		s.wanted = s.wanted || why == dropUnknownID
	case orphan:
		c.countLearned(1)
	}
}

// countLearned counts n changes of which other replicas may not have heard. The next
// announcement states the count, so that they read this replica's snapshot.
func (c *core) countLearned(n int) {
	if n > 0 {
		c.counts.merged.Add(uint64(n))
		c.counts.unannounced.Store(true)
	}
}

// noteNumber records an event's number, in one of the sender's two series.
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

// advance records the last number that a sender has announced, of one of its series.
func (c *core) advance(s *sender, of *coverage, n uint64) {
	if of.jumps(n) {
		c.counts.drop(dropJump)
		s.wanted = true
		return
	}
	c.countLost(s, of.advanceTo(n))
}

// incomplete reports whether something that the sender published was lost and its effect
// is not known from a snapshot either.
func (s *sender) incomplete() bool { return s.hasGap() || s.renewals.hasGap() }

func (c *core) countLost(s *sender, n uint64) {
	c.counts.lost.Add(n)
	s.unreported += n
}

// applyToLedger applies an event of a peer and returns applied, or the reason why it had
// no effect. authority is the sender's about its own reservations.
func (c *core) applyToLedger(peer string, e *event, authority reservations.Authority) reason {
	size, known := c.scopes.BlockSize(e.scope)
	fits := known && size == e.blockSize
	switch {
	case fits && e.kind == booked:
		return reasonOf(c.ledger.ApplyBooked(e.reservation(peer, authority)))
	case !fits && (e.kind == booked || e.kind == renewed || e.origin.Sequence == 0):
		if !known {
			return dropUnknownScope
		}
		return dropBlockSize
	}
	// A step of a numbered reservation is recorded even if the reservation could not be
	// taken here, because it may be taken later.
	switch e.kind {
	case freed:
		return reasonOf(c.ledger.ApplyFreed(e.ref(authority)))
	case renewed:
		return reasonOf(c.ledger.ApplyRenewed(e.ref(authority)))
	}
	return reasonOf(c.ledger.ApplyPrefillCompleted(e.ref(authority)))
}

// onAnnouncement handles a replica's announcement.
func (c *core) onAnnouncement(peer string, a announcement, now time.Time) {
	c.counts.announcements.Add(1)
	if a.process == c.process {
		c.counts.drop(dropOwn)
		return
	}
	speaker, err := c.speaker(a.url, peer)
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
	if s.url != "" && s.url != speaker.Base { // the new URL has to be confirmed
		s.confirmed, s.wanted = false, true
	}
	s.wanted = s.wanted || a.merged > s.merged
	s.url, s.host, s.authenticated = speaker.Base, speaker.Host, speaker.Authenticated
	s.merged, s.claimed = max(s.merged, a.merged), max(s.claimed, a.sequence)
	c.settle(a.process)
	c.advance(s, &s.coverage, a.sequence)
	c.advance(s, &s.renewals, a.renewals)
}

// onRanksAdded is called when this replica has new ranks.
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
	claimed uint64 // sender.claimed when the fetch began
}

// due returns the snapshots to fetch now, and when to call it again at the latest. The
// caller must call fetchDone at the end of each fetch.
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
		for _, last := range []time.Time{c.fetched[s.url], p.fetched} { // whatever number of processes and URLs an endpoint tells of
			if last.Add(lossSpacing).After(at) {
				at = last.Add(lossSpacing)
			}
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
			s.fetching, p.fetching, p.fetched, c.fetched[s.url] = true, true, now, now
			c.fetching++
			requests = append(requests, fetchRequest{process: s.process, peer: s.peer, url: s.url, host: s.host, claimed: s.claimed})
		}
	}
	return requests, next
}

// spacing returns the minimum time between the beginnings of two fetches.
func (s *sender) spacing() time.Duration {
	if !s.incomplete() {
		return fetchSpacing
	}
	d := min(maxBackoff, lossSpacing<<min(max(0, s.fruitless-1), 8))
	if s.quick >= maxQuick {
		d = max(d, fetchSpacing)
	}
	if s.wanted {
		d = min(d, fetchSpacing)
	}
	return d
}

// noteFull schedules another try for a reservation for which there was no room.
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

// byUrgency returns all senders in the order in which to fetch from them: confirmed ones
// first, then those with fewer failures, then those that have waited longer.
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

// sharing returns the senders of a process to which a snapshot belongs that was read from url,
// as announced at the endpoint peer. They are the sender at peer, and those that are confirmed to
// be the same process at the same URL.
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

// findAbsent makes processes absent that have been silent for silentAfter, and forgets
// them after forgetAfter.
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

// excuse says that silence at the endpoints which reachable does not report means nothing: this
// process itself is cut off from them.
func (c *core) excuse(reachable func(peer string) bool, now time.Time) {
	for _, id := range c.identities {
		for _, s := range id.senders {
			if !s.absent && !reachable(s.peer) {
				s.lastHeard = now
			}
		}
	}
}

// replace is called when the process by has announced itself at an endpoint for the first
// time: the processes that were there before become absent.
func (c *core) replace(peer string, by *sender, now time.Time) {
	for _, s := range c.byProcess() {
		if s.peer == peer && s != by {
			s.replaced = now
			c.becomeAbsent(s)
		}
	}
}

// becomeAbsent gives a process up until it announces itself again. Its last events may
// have reached only some replicas. Hence this replica wants the snapshots of all others,
// and makes them want its own.
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

// followUpRanks is called some time after ranks were added. It wants all snapshots if
// something was refused that may belong to these ranks, or while a fetch is under way,
// whose refusals are not known yet.
func (c *core) followUpRanks() {
	c.ranksDue = time.Time{}
	if c.refused || c.fetching > 0 {
		c.refused = false
		c.wantAll()
	}
}

// fetchResult is the result of a fetch.
type fetchResult struct {
	// sequence is the snapshot's: the effects of all events of its process up to this
	// number are known now.
	sequence uint64
	renewals uint64 // the same for renewals
	// refused: reservations were refused because their scope or rank is unknown.
	refused bool
	full    bool // reservations were refused for lack of room
	learned bool // the ledger has changed: something lost was in the snapshot
	err     error
}

// fetchDone handles the end of a fetch. It returns how many fetches from that sender
// have failed in a row.
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
	if s.fruitless++; f.learned {
		s.fruitless = 0
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

// lossEvery is the minimum interval between two reports of lost events of one process.
const lossEvery = time.Second

// loss is a report of lost events.
type loss struct {
	peer            string
	process, events uint64
}

// losses returns the reports that are due, and when there may be further ones.
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
