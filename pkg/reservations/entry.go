package reservations

import (
	"math"
	"math/bits"
	"time"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/reservations/history"
)

// entry is one live reservation in the ledger. The fields of the first group never
// change once scope.mu has been released after the entry was added, but for the callerState that TakeOver
// gives to another entry under that lock; those of the second are guarded by scope.mu.
type entry struct {
	id          string
	scope       *scope
	slot        uint32
	perScope    bool // as in the Request
	pair        bool // it is a side of a pair: see Ledger.BookPair
	track       bool // prefill tokens count as load
	rank        catalog.Rank
	tail        uint32  // names the prompt; see prefixes.hold
	blocks      uint32  // distinct prompt blocks
	tokens      uint64  // prefill tokens as booked, whether tracked or not
	output      *uint32 // expected output tokens
	origin      Origin
	callerState CallerState

	prefillDone bool
	relayed     bool          // known from another process than the one that accepted it
	ended       bool          // it is in no list of the ledger any more
	inHeap      int32         // index in scope.deadlines
	inRank      int32         // index in load.held
	inLog       int32         // index in entryLog.records
	deadline    time.Duration // since Ledger.start; r ends when the time is later
	lease       *lease        // nil: it lives by its age
	// No other reservation ever holds an output block, so that two numbers are enough:
	// blocks of full weight, and blocks that share one deficit.
	fullOutput, decayedOutput uint64
	outputDeficit             uint32
	// charge is what r took when it was booked, fresh how many blocks were new in the tree then:
	// see room. They never change while r is live.
	charge, fresh uint32

	inShare *sharePlace // which peer reported it; nil for a reservation of this process

	next *entry // of the same id; guarded by idShard.mu
}

// waits reports whether the prefill of r counts as load and is not complete.
func (e *entry) waits() bool { return e.track && !e.prefillDone }

// countedTokens returns the part of the rank's prefill tokens that is r's.
func (e *entry) countedTokens() uint64 {
	if e.waits() {
		return e.tokens
	}
	return 0
}

// workUnknown reports whether nothing is known of the request's work: it has no blocks, and no
// tokens were booked, whether tracked or not. It never changes while r is live.
func (e *entry) workUnknown() bool { return !e.track && e.tokens == 0 && e.blocks == 0 }

// accepted returns when the reservation was accepted, as far as is known, since
// Ledger.start. It needs the scope's lock.
func (e *entry) accepted() time.Duration {
	if e.lease != nil {
		return e.lease.accepted
	}
	return e.deadline - e.scope.ledger.lifetime
}

// expiredID returns the name by which the caller frees r.
func (e *entry) expiredID() history.ExpiredID {
	if e.perScope {
		return history.ExpiredID{Scope: e.scope.name, PerScope: true, ID: e.id}
	}
	return history.ExpiredID{ID: e.id}
}

// name returns the full name of a reservation that has a number.
func (e *entry) name() history.Name {
	return history.Name{Origin: e.origin, Hash: history.NameHash(e.scope.name, e.id, e.rank)}
}

func (e *entry) event() Event {
	return Event{Scope: e.scope.name, ID: e.id, Rank: e.rank, Origin: e.origin, PerScope: e.perScope, Pair: e.pair}
}

// fullWeight is the weight of a full block in fixed-point units. Weights are kept as
// deficits (fullWeight - weight), so that a rank without decayed blocks has the sum
// zero: no history of additions and subtractions can make it drift.
const fullWeight = 1 << 31

// deficitOf converts a fraction in [0, 1].
func deficitOf(fraction float64) uint32 {
	return uint32(math.Round((1 - fraction) * fullWeight))
}

// load is what one rank carries.
type load struct {
	prefill tokenSum // unfinished prefill tokens
	blocks  uint64   // distinct prompt blocks and output blocks
	deficit uint64   // sum over these blocks, in units of 1/fullWeight block
	decayed uint64   // how many of these blocks have a deficit
	held    []*entry
	queue   *queue // nil: none is kept
	signs   uint64 // see View.Signs
}

// reweigh accounts for n blocks whose deficit changes.
func (l *load) reweigh(n uint64, from, to uint32) {
	l.deficit += n*uint64(to) - n*uint64(from)
	if from != 0 {
		l.decayed -= n
	}
	if to != 0 {
		l.decayed += n
	}
}

// active returns the weighted number of blocks, rounded half away from zero. Each
// deficit is exact to half a unit only (three blocks at 5/6 make 2.5, whatever the
// last bit says), so that a sum within the error of a half is rounded up.
func (l *load) active() uint64 {
	return (l.blocks*fullWeight - l.deficit + fullWeight/2 + l.decayed/2) / fullWeight
}

// tokenSum is a 128-bit sum: it cannot wrap, so that subtracting what was added leads
// back to exactly zero, whatever numbers clients send.
type tokenSum struct{ hi, lo uint64 }

func (s *tokenSum) add(n uint64) {
	var carry uint64
	s.lo, carry = bits.Add64(s.lo, n, 0)
	s.hi += carry
}

func (s *tokenSum) sub(n uint64) {
	var borrow uint64
	s.lo, borrow = bits.Sub64(s.lo, n, 0)
	s.hi -= borrow
}

// value returns the sum, at most 2^64-1.
func (s tokenSum) value() uint64 {
	if s.hi != 0 {
		return math.MaxUint64
	}
	return s.lo
}
