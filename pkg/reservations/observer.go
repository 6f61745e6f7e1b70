package reservations

import (
	"time"

	"github.com/select-service/select-service/pkg/catalog"
)

// Observer is told of bookings made and ended through the ledger's methods for
// callers, whichever process accepted them, and of the end of a lease that the
// ledger granted itself. Expiry by age, the removal of a rank and what is learned
// from other processes are not announced.
//
// The calls come under the scope's lock, after the change and before the caller
// of the ledger returns: events of one scope arrive in the order in which they
// happened. An observer must not block or call the ledger.
type Observer interface {
	// Booked returns the sequence number that names the booking: it rises from
	// call to call, and is 1 or more. An observer that does not count returns 0,
	// always; the ledger then counts for itself.
	Booked(Event) (sequence uint64)
	// PrefillCompleted comes again whenever a caller repeats it.
	PrefillCompleted(Event)
	Freed(Event)
	// Renewed: the lease was renewed by whatever step of a caller. It comes at most
	// once in a quarter of the lease; what was too early is made up for by Expire.
	Renewed(Event)
}

// Event is one step in the life of a reservation. Only Booked fills the fields
// after PerScope.
type Event struct {
	Scope catalog.Scope
	ID    string
	Rank  catalog.Rank
	// Origin is the booking's; in Booked its Sequence is zero.
	Origin   Origin
	PerScope bool

	Hashes         []uint64 // as in the Request; read only
	PrefillTokens  uint64   // as in the Placement, whether tracked or not
	TrackPrefill   bool
	ExpectedOutput *uint32
	Lease          time.Duration // 0: none
}

type noObserver struct{}

func (noObserver) Booked(Event) uint64    { return 0 }
func (noObserver) PrefillCompleted(Event) {}
func (noObserver) Freed(Event)            {}
func (noObserver) Renewed(Event)          {}
