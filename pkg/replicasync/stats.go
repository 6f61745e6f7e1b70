package replicasync

import (
	"slices"
	"sync/atomic"

	"github.com/select-service/select-service/pkg/reservations"
)

// Stats counts since the start, except for the fields described as states.
type Stats struct {
	// Sent and Received are messages by kind: "booked", "prefill_completed", "freed",
	// "renewed", "session_bound", "session_unbound", "served" and "announcement". Received are
	// those that could be read.
	Sent, Received map[string]uint64
	// Dropped are messages without effect, by reason. Reasons that begin with
	// "send_" are about events of this replica that were not sent; "own", "known"
	// and "ended" are not faults.
	Dropped map[string]uint64
	// Lost are numbered events of other replicas that did not arrive when their
	// successors or an announcement did. Late are those of Lost that came
	// afterwards: Lost - Late never came.
	Lost, Late uint64
	// Duplicates are numbered events that came again.
	Duplicates uint64

	// Snapshots are fetched snapshots, SnapshotsFailed fetches that failed.
	Snapshots, SnapshotsFailed uint64
	// PagesServed are pages of the own snapshot.
	PagesServed uint64
	// Added, Completed and Ended are reservations that snapshots have added, whose
	// prefill they have completed, and that they have ended.
	Added, Completed, Ended uint64

	// States: Peers is the number of registered endpoints, Connected of those that are
	// connected, Replicas of processes that announce themselves; SendQueue is the number
	// of events and ReceiveQueue that of messages that wait.
	Peers, Connected, Replicas int
	SendQueue, ReceiveQueue    int
	// Sequence is the last number given to an own event.
	Sequence uint64
}

// announcementText is the label of announcements beside the kinds.
const announcementText = "announcement"

// Stats returns the counters, read one by one.
func (r *Replica) Stats() Stats {
	c := &r.counts
	st := Stats{
		Sent:      byKind(&c.sent, &c.sentAnnouncements),
		Received:  byKind(&c.received, &c.announcements),
		Dropped:   make(map[string]uint64, numReasons),
		Lost:      c.lost.Load(),
		Late:      c.late.Load(),
		Snapshots: c.snapshots.Load(), SnapshotsFailed: c.snapshotsFailed.Load(),
		Duplicates:  c.duplicates.Load(),
		PagesServed: c.snapshotsServed.Load(),
		Added:       c.addedBySnapshot.Load(), Completed: c.completedBySnapshot.Load(), Ended: c.endedBySnapshot.Load(),
		SendQueue: r.outbox.queue.len(), ReceiveQueue: r.inbox.len(),
	}
	st.Sequence, _ = r.outbox.last()
	for why := applied + 1; int(why) < numReasons; why++ {
		st.Dropped[why.String()] = c.dropped[why].Load()
	}
	r.coreMu.Lock()
	for _, id := range r.core.identities {
		if slices.ContainsFunc(id.senders, func(s *sender) bool { return s.url != "" && !s.absent }) {
			st.Replicas++
		}
	}
	r.coreMu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	st.Peers = len(r.peers)
	for _, p := range r.peers {
		if p.up.Load() {
			st.Connected++
		}
	}
	return st
}

func byKind(events *[numKinds]atomic.Uint64, announcements *atomic.Uint64) map[string]uint64 {
	m := map[string]uint64{announcementText: announcements.Load()}
	for k := range events {
		m[kind(k).String()] = events[k].Load()
	}
	return m
}

// reason says why a message was dropped. Its text is a label of counters.
type reason uint8

const (
	applied reason = iota

	// Received messages that could not be read.

	dropMalformed
	dropOversized
	dropNamesDiffer
	dropQueueFull

	// Received messages without effect.

	dropOwn // of this replica
	dropUnknownScope
	dropUnknownRank
	dropBlockSize
	dropWrongRank
	dropKnown     // a reservation that is live here, or a prefill that is complete here
	dropEnded     // about a reservation that has ended
	dropStale     // a reservation that is too old
	dropUnknownID // a step of a reservation that is not live here
	dropFull      // too many processes have live reservations
	dropForeign   // in the name of a process for which another endpoint speaks
	dropJump      // numbers beyond what the process's snapshot confirms
	dropProcesses // too many processes at one endpoint
	// A reservation whose prefix is not known here. Its number counts as lost.
	dropUnknownPrefix

	// Own events that were not sent. Their numbers are used up.

	dropSendQueueFull
	dropSendOversized
	dropSendFailed
	dropSendScope // the catalog does not have the scope any more

	numReasons = int(iota)
)

var reasonTexts = [numReasons]string{
	applied:           "applied",
	dropMalformed:     "malformed",
	dropOversized:     "oversized",
	dropNamesDiffer:   "names_differ",
	dropQueueFull:     "queue_full",
	dropOwn:           "own",
	dropUnknownScope:  "unknown_scope",
	dropUnknownRank:   "unknown_rank",
	dropBlockSize:     "block_size",
	dropWrongRank:     "wrong_rank",
	dropKnown:         "known",
	dropEnded:         "ended",
	dropStale:         "stale",
	dropUnknownID:     "unknown_id",
	dropFull:          "full",
	dropForeign:       "foreign",
	dropJump:          "jump",
	dropProcesses:     "too_many_processes",
	dropUnknownPrefix: "unknown_prefix",
	dropSendQueueFull: "send_queue_full",
	dropSendOversized: "send_oversized",
	dropSendFailed:    "send_failed",
	dropSendScope:     "send_unknown_scope",
}

func (r reason) String() string { return reasonTexts[r] }

// reasonOf translates the ledger's result.
func reasonOf(v reservations.ApplyResult) reason {
	switch v {
	case reservations.Applied, reservations.Updated:
		return applied
	case reservations.Known:
		return dropKnown
	case reservations.Ended:
		return dropEnded
	case reservations.Stale:
		return dropStale
	case reservations.UnknownScope:
		return dropUnknownScope
	case reservations.UnknownRank:
		return dropUnknownRank
	case reservations.WrongRank:
		return dropWrongRank
	case reservations.Full:
		return dropFull
	case reservations.UnknownPrefix:
		return dropUnknownPrefix
	}
	return dropUnknownID
}

// counters of a replica.
type counters struct {
	sent, received      [numKinds]atomic.Uint64
	sentAnnouncements   atomic.Uint64
	announcements       atomic.Uint64
	dropped             [numReasons]atomic.Uint64
	lost                atomic.Uint64
	late, duplicates    atomic.Uint64
	snapshots           atomic.Uint64
	snapshotsFailed     atomic.Uint64
	snapshotsServed     atomic.Uint64 // pages
	addedBySnapshot     atomic.Uint64
	completedBySnapshot atomic.Uint64
	endedBySnapshot     atomic.Uint64
	// merged counts what this replica has learned and others may have missed: from
	// snapshots, from the last messages of absent processes, and the ends of reservations
	// with their rank.
	merged      atomic.Uint64
	unannounced atomic.Bool // merged has risen since the last announcement
}

func (c *counters) drop(why reason) { c.dropped[why].Add(1) }
