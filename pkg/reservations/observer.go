package reservations

import "github.com/select-service/select-service/pkg/catalog"

// Observer is told of bookings made and ended through the ledger's methods.
// Expiry and the removal of a rank are not announced.
//
// The calls come under the scope's lock, after the change and before the caller
// of the ledger returns: events of one scope arrive in the order in which they
// happened. An observer must not block or call the ledger.
type Observer interface {
	Booked(Event)
	// PrefillCompleted comes again whenever a caller repeats it.
	PrefillCompleted(Event)
	Freed(Event)
}

// Event is one step in the life of a reservation. Only Booked fills the fields
// after Rank.
type Event struct {
	Scope catalog.Scope
	ID    string
	Rank  catalog.Rank

	Hashes         []uint64 // as in the Request; read only
	PrefillTokens  uint64   // as in the Placement, whether tracked or not
	TrackPrefill   bool
	ExpectedOutput *uint32
}

type silent struct{}

func (silent) Booked(Event)           {}
func (silent) PrefillCompleted(Event) {}
func (silent) Freed(Event)            {}
