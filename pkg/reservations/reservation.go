package reservations

import (
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations/history"
)

// entry is one live booking. The fields of the first group never change
// once scope.mu has been released after the entry; those of the second are
// guarded by scope.mu.
type entry struct {
	id       string
	scope    *scope
	slot     uint32
	perScope bool
	track    bool
	rank     catalog.Rank
	hashes   []uint64 // distinct prompt blocks
	tokens   uint64   // as booked, whether tracked or not
	output   *uint32
	origin   Origin

	callerState CallerState

	prefillDone bool // the prefill is complete
	ended       bool
	inHeap      int32         // index in scope.deadlines
	inRank      int32         // index in load.held
	inLog       int32         // index in roll.lines
	deadline    time.Duration // since Ledger.start
	lease       *lease        // nil: it lives by its age
	// Output blocks have random identities, so nobody else ever holds them:
	// two numbers stand for them. plain ones have full weight, the aged ones
	// share one deficit.
	fullOutput, decayedOutput uint64
	outputDeficit             uint32

	next *entry // of the same id; guarded by idShard.mu
}

// countedTokens returns the tokens that the rank's sum has for r.
func (r *entry) countedTokens() uint64 {
	if r.track && !r.prefillDone {
		return r.tokens
	}
	return 0
}

// accepted is when the reservation was accepted, as far as known. It needs the
// scope's lock.
func (r *entry) accepted() time.Duration {
	if r.lease != nil {
		return r.lease.accepted
	}
	return r.deadline - r.scope.ledger.lifetime
}

// expiredID is what the caller frees r by.
func (r *entry) expiredID() history.ExpiredID {
	if r.perScope {
		return history.ExpiredID{Scope: r.scope.name, PerScope: true, ID: r.id}
	}
	return history.ExpiredID{ID: r.id}
}

func (r *entry) event() Event {
	return Event{Scope: r.scope.name, ID: r.id, Rank: r.rank, Origin: r.origin, PerScope: r.perScope}
}

// assignSequence returns the sequence number of a booking from what the observer said,
// and notes it.
func (l *Ledger) assignSequence(sequence uint64) uint64 {
	if sequence == 0 {
		return l.lastSequence.Add(1)
	}
	for {
		last := l.lastSequence.Load()
		if last >= sequence || l.lastSequence.CompareAndSwap(last, sequence) {
			return sequence
		}
	}
}
