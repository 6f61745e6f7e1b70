package reservations

import (
	"fmt"
	"sync/atomic"

	"github.com/select-service/select-service/pkg/memory"
)

// Limits bound the live reservations of a ledger; 0 is no limit.
type Limits struct {
	// Reservations is the maximum number of live ones, of all processes together.
	Reservations int
	// Blocks is the maximum number of prompt blocks of a caller's reservation.
	Blocks int
	// Memory, if not nil, is the account of the bytes of live reservations and, up to an
	// eighth of its limit, of the history of other processes' reservations.
	Memory *memory.Account
}

// The limits that a LimitError names.
const (
	LimitReservations = "reservations"
	LimitBlocks       = "reservation_blocks"
	LimitMemory       = "memory"
)

// LimitError refuses to book because of a limit. Nothing was booked.
type LimitError struct {
	Limit string // LimitReservations and so on
	// Full: there are too many live reservations, so the same one may succeed once
	// others have ended. Otherwise it is too large.
	Full   bool
	Reason string
}

// Error returns the reason.
func (e *LimitError) Error() string { return e.Reason }

// entryBytes estimates what a reservation takes without its blocks, in bytes: the entry, its
// rows in tables and lists, two nodes of the tree and what they leave unused of their chunks.
const entryBytes = 736

// callerBytes is charged for a CallerState.
const callerBytes = 448

// chargeUnit is the unit of entry.charge in bytes.
const chargeUnit = 64

// room counts what live reservations take: those of this process's callers without a
// lock, those of other processes also per reporting peer (see peers.go).
//
// Blocks that several reservations hold are counted once. A booking reserves memory for those
// that are new; what the tree of a scope really takes is known after each change, and
// scope.settle corrects the account by the difference. So a run stays on the account until its
// last holder ends, whichever that is. While a reservation is live, the tree takes at least what
// was charged for its new blocks; giveBack is called before that ends, so that the account never
// falls below zero when other scopes use it meanwhile.
type room struct {
	limits    Limits
	keepLocal bool // see Ledger.KeepLocalHashes
	live      atomic.Int64
	peers     peerShares
}

// checkSize returns a *LimitError for a prompt that no reservation may have.
func (ro *room) checkSize(blocks int) error {
	if most := ro.limits.Blocks; most > 0 && blocks > most {
		return &LimitError{Limit: LimitBlocks, Reason: fmt.Sprintf("the prompt has %d blocks, the maximum is %d", blocks, most)}
	}
	return nil
}

// chargeOf returns what a reservation takes with r.fresh new blocks, in units of chargeUnit.
func (ro *room) chargeOf(r *entry) uint32 {
	bytes := entryBytes + int64(len(r.id)) + ro.chargedBlocks(r)
	if r.callerState != nil {
		bytes += callerBytes
	}
	return uint32((bytes + chargeUnit - 1) / chargeUnit)
}

// chargedBlocks returns the part of the charge that was for new blocks, in bytes.
func (ro *room) chargedBlocks(r *entry) int64 {
	block := int64(blockBytes)
	if ro.keepLocal {
		block += localBytes
	}
	return block * int64(r.fresh)
}

// take counts r, which a caller of this process books, or returns a *LimitError if
// there is no room.
func (ro *room) take(r *entry) error {
	most := int64(ro.limits.Reservations)
	if live := ro.live.Add(1); most > 0 && live > most {
		ro.live.Add(-1)
		return &LimitError{Limit: LimitReservations, Full: true, Reason: fmt.Sprintf("the limit of %d live reservations is reached", most)}
	}
	charge := ro.chargeOf(r)
	if !ro.limits.Memory.Reserve(int64(charge) * chargeUnit) {
		ro.live.Add(-1)
		return &LimitError{Limit: LimitMemory, Full: true, Reason: "the memory for live reservations is used up"}
	}
	r.charge = charge
	return nil
}

// undo undoes take of a reservation that is not in the tree.
func (ro *room) undo(r *entry) {
	ro.live.Add(-1)
	ro.limits.Memory.Release(int64(r.charge) * chargeUnit)
}

// giveBack undoes take or takeFrom, except for the blocks: see scope.settle.
func (ro *room) giveBack(r *entry) {
	if r.inShare != nil && !ro.peers.remove(r) {
		// Another reservation has got its room (see peerShares.giveWay), the blocks included.
		ro.limits.Memory.Add(ro.chargedBlocks(r))
		return
	}
	ro.live.Add(-1)
	ro.limits.Memory.Release(int64(r.charge)*chargeUnit - ro.chargedBlocks(r))
}

// settle corrects the account by what the scope's tree takes now and did not take when it was
// last settled. reserved is the part of it that was reserved meanwhile.
func (s *scope) settle(reserved int64) {
	now := s.blocks.bytes()
	s.ledger.room.limits.Memory.Add(now - s.settled - reserved)
	s.settled = now
}
