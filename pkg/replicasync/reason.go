package replicasync

import (
	"sync/atomic"

	"github.com/select-service/select-service/pkg/reservations"
)

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
	dropKnown     // a booking that is here, or a mark that was made
	dropEnded     // a booking that has ended
	dropStale     // a booking that is too old, or was dropped with its rank
	dropUnknownID // an end or mark of a booking that is not here
	dropFull      // too many processes have bookings

	// Own events that were not sent. Their numbers are used up.

	dropSendQueueFull
	dropSendOversized
	dropSendFailed
	dropSendScope // the scope is gone

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
	dropSendQueueFull: "send_queue_full",
	dropSendOversized: "send_oversized",
	dropSendFailed:    "send_failed",
	dropSendScope:     "send_unknown_scope",
}

func (r reason) String() string { return reasonTexts[r] }

// reasonOf translates the ledger's verdict.
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
	adopted             atomic.Uint64
	completedBySnapshot atomic.Uint64
	endedBySnapshot     atomic.Uint64
	// merged counts what this replica has learned and others may not hear of:
	// from snapshots, and from what a process sent last.
	merged      atomic.Uint64
	unannounced atomic.Bool // merged has risen since the last announcement
}

func (c *counters) drop(why reason) { c.dropped[why].Add(1) }
