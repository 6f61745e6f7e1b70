package reservations

import (
	"fmt"
	"sync/atomic"

	"github.com/select-service/select-service/internal/budget"
)

// Limits bound the live reservations of a ledger; 0 is no limit.
type Limits struct {
	// Reservations is how many may be live, of whatever process.
	Reservations int
	// Blocks is how many prompt blocks a reservation of a caller may have.
	Blocks int
	// Memory, if not nil, is where the bytes of live reservations are reserved, and up to
	// an eighth for what has ended of other processes'.
	Memory *budget.Account
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

func (e *LimitError) Error() string { return e.Reason }

// What a reservation takes, in bytes, with the growth of the tables that it is in.
const (
	entryBytes = 640
	blockBytes = 96
)

// chargeUnit is the unit of entry.charge in bytes.
const chargeUnit = 64

// room counts what live reservations take: those of this process's callers without a
// lock, those of other processes also by the peer that told of them (see peers.go).
type room struct {
	limits Limits
	live   atomic.Int64
	peers  peerShares
}

// checkSize returns a *LimitError for a prompt that no reservation may have.
func (m *room) checkSize(blocks int) error {
	if most := m.limits.Blocks; most > 0 && blocks > most {
		return &LimitError{Limit: LimitBlocks, Reason: fmt.Sprintf("the prompt has %d blocks, the maximum is %d", blocks, most)}
	}
	return nil
}

// chargeOf is what a reservation takes, in units.
func chargeOf(r *entry) uint32 {
	return uint32((entryBytes + len(r.id) + blockBytes*len(r.hashes) + chargeUnit - 1) / chargeUnit)
}

// take makes room for r, which a caller of this process books, or returns a
// *LimitError.
func (m *room) take(r *entry) error {
	most := int64(m.limits.Reservations)
	if live := m.live.Add(1); most > 0 && live > most {
		m.live.Add(-1)
		return &LimitError{Limit: LimitReservations, Full: true, Reason: fmt.Sprintf("the limit of %d live reservations is reached", most)}
	}
	charge := chargeOf(r)
	if !m.limits.Memory.Reserve(int64(charge) * chargeUnit) {
		m.live.Add(-1)
		return &LimitError{Limit: LimitMemory, Full: true, Reason: "the memory for live reservations is used up"}
	}
	r.charge = charge
	return nil
}

// giveBack undoes take or takeFrom.
func (m *room) giveBack(r *entry) {
	if r.told != nil && !m.peers.remove(r) {
		return // it has given its room to another one
	}
	m.live.Add(-1)
	m.limits.Memory.Release(int64(r.charge) * chargeUnit)
}
