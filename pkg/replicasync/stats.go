package replicasync

import "sync/atomic"

// Stats counts since the start, but for the fields of which it is said that they
// are a state.
type Stats struct {
	// Sent and Received are messages by kind: "booked", "prefill_completed",
	// "freed", "renewed" and "announcement". Received are those that could be read.
	Sent, Received map[string]uint64
	// Dropped are messages without effect, by reason. Reasons that begin with
	// "send_" are events of this replica that were not sent; "own", "known" and
	// "ended" are no faults.
	Dropped map[string]uint64
	// Lost are numbered events of other replicas that did not arrive when their
	// successors or an announcement did. Late are those of Lost that came
	// afterwards: Lost - Late never came.
	Lost, Late uint64
	// Duplicates are numbered events that came again.
	Duplicates uint64

	// Snapshots that were fetched, and fetches that failed.
	Snapshots, SnapshotsFailed uint64
	// PagesServed are pages of the own snapshot.
	PagesServed uint64
	// Adopted, Completed and Ended count bookings that were learned of,
	// completed and ended by snapshots.
	Adopted, Completed, Ended uint64

	// Peers are the registered endpoints, Connected those that are connected,
	// Replicas the processes that announce themselves, SendQueue and
	// ReceiveQueue what waits. All are states.
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
		Adopted:     c.adopted.Load(), Completed: c.completedBySnapshot.Load(), Ended: c.endedBySnapshot.Load(),
		SendQueue: r.outbox.queue.len(), ReceiveQueue: r.inbox.len(),
	}
	st.Sequence, _ = r.outbox.last()
	for why := applied + 1; int(why) < numReasons; why++ {
		st.Dropped[why.String()] = c.dropped[why].Load()
	}
	r.coreMu.Lock()
	for _, s := range r.core.senders {
		if s.url != "" && !s.absent {
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
